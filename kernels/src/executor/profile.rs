//! Where the time of steps goes, by instruction: for benchmarks, off unless asked for.

use std::time::{Duration, Instant};

/// Time that the threads spent on one instruction, all steps together, mean over the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionTime {
    pub busy: Duration,
    /// At the barrier before it: for threads that had more to do in what comes before.
    pub waiting: Duration,
}

/// One thread's times; index is the instruction's.
#[derive(Debug)]
pub(super) struct ThreadProfile {
    times: Vec<InstructionTime>,
}

impl ThreadProfile {
    pub(super) fn new(num_instructions: usize) -> Self {
        Self { times: vec![InstructionTime::default(); num_instructions] }
    }
}

/// Mean of the threads' profiles.
pub(super) fn mean<'a>(
    profiles: impl Iterator<Item = &'a ThreadProfile>,
    num_instructions: usize,
) -> Vec<InstructionTime> {
    let mut sum = vec![InstructionTime::default(); num_instructions];
    let mut num_threads = 0;
    for profile in profiles {
        num_threads += 1;
        for (sum, time) in sum.iter_mut().zip(&profile.times) {
            sum.busy += time.busy;
            sum.waiting += time.waiting;
        }
    }
    for time in &mut sum {
        time.busy /= num_threads.max(1);
        time.waiting /= num_threads.max(1);
    }
    sum
}

/// Measures laps into a thread's profile; does nothing without one.
#[derive(Debug)]
pub(super) struct Stopwatch<'a> {
    running: Option<(&'a mut ThreadProfile, Instant)>,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn start(profile: Option<&'a mut ThreadProfile>) -> Self {
        Self { running: profile.map(|profile| (profile, Instant::now())) }
    }

    /// The lap since the last one was spent waiting for `instruction`.
    pub(super) fn waited(&mut self, instruction: usize) {
        self.lap(|times| &mut times[instruction].waiting);
    }

    /// The lap since the last one was spent doing `instruction`.
    pub(super) fn worked(&mut self, instruction: usize) {
        self.lap(|times| &mut times[instruction].busy);
    }

    fn lap(&mut self, slot: impl FnOnce(&mut [InstructionTime]) -> &mut Duration) {
        if let Some((profile, last)) = &mut self.running {
            let now = Instant::now();
            *slot(&mut profile.times) += now - *last;
            *last = now;
        }
    }
}
