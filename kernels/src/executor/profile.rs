//! Time per instruction, for benchmarks.

use std::time::{Duration, Instant};

/// Time spent on one instruction: the sum over all steps and the mean over the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionTime {
    pub busy: Duration,
    /// Time at the barrier before the instruction, waiting for slower threads.
    pub waiting: Duration,
}

/// The times of one thread, indexed by instruction.
#[derive(Debug)]
pub(super) struct ThreadProfile {
    times: Vec<InstructionTime>,
}

impl ThreadProfile {
    pub(super) fn new(num_instructions: usize) -> Self {
        Self { times: vec![InstructionTime::default(); num_instructions] }
    }
}

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

/// Adds lap times to a thread's profile; does nothing without a profile.
#[derive(Debug)]
pub(super) struct Stopwatch<'a> {
    running: Option<(&'a mut ThreadProfile, Instant)>,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn start(profile: Option<&'a mut ThreadProfile>) -> Self {
        Self { running: profile.map(|profile| (profile, Instant::now())) }
    }

    /// Counts the time since the last lap as waiting before `instruction`.
    pub(super) fn waited(&mut self, instruction: usize) {
        self.lap(|times| &mut times[instruction].waiting);
    }

    /// Counts the time since the last lap as work on `instruction`.
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
