//! Time stamps of the mock shard, which are compared with the client's. Both run in one process and use one clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::mock::{Watch, prompt_of};

/// The first steps, which are ignored because connections open and prompts are computed in them.
const WARM_UP_TOKENS: usize = 20;
/// The number of plans in flight. Result `n` makes room for plan `n + RUN_AHEAD`.
const RUN_AHEAD: u64 = trunkline_scheduler::RUN_AHEAD as u64;
/// The number of digits in a stream's number.
const NUMBER_WIDTH: usize = 6;

/// Returns the message of a stream, by which the shard identifies the stream.
pub fn message_of(stream: usize) -> String {
    format!("{stream:0NUMBER_WIDTH$}")
}

/// Returns the positions of a prompt that contain the stream's number.
fn number_place() -> Range<usize> {
    let start = prompt_of("").len() - prompt_of_tail();
    start..start + NUMBER_WIDTH
}

/// Returns the number of prompt tokens after the message.
fn prompt_of_tail() -> usize {
    // `<|end|>`, `<|start|>` and the header of the answer.
    2 + "assistant\n".len()
}

/// The times of results by stream, and of plans and results by step.
pub struct Stamps {
    tokens: Vec<Mutex<Vec<Instant>>>,
    plans: Mutex<BTreeMap<u64, Instant>>,
    results: Mutex<BTreeMap<u64, Instant>>,
    place: Range<usize>,
}

impl Stamps {
    pub fn new(num_streams: usize) -> Self {
        Self {
            tokens: (0..num_streams).map(|_| Mutex::default()).collect(),
            plans: Mutex::default(),
            results: Mutex::default(),
            place: number_place(),
        }
    }

    /// Returns, for each token, the time at which the client read its event, and the time since the shard sampled it.
    pub fn added(&self, arrivals: &[Vec<Instant>]) -> anyhow::Result<Vec<(Instant, Duration)>> {
        let mut added = Vec::new();
        for (stream, (sampled, arrived)) in self.tokens.iter().zip(arrivals).enumerate() {
            let sampled = sampled.lock().unwrap();
            let (s, a) = (sampled.len(), arrived.len());
            ensure!(s == a, "stream {stream}: the shard sampled {s} tokens, the client read {a}");
            let pairs = sampled.iter().zip(arrived).skip(WARM_UP_TOKENS);
            added.extend(
                pairs.map(|(sampled, arrived)| (*arrived, arrived.saturating_duration_since(*sampled))),
            );
        }
        Ok(added)
    }

    /// Returns the times from each result of the shard until it had read the plan for which the result made room.
    pub fn until_next_plan(&self) -> Vec<Duration> {
        let (plans, results) = (self.plans.lock().unwrap(), self.results.lock().unwrap());
        let pairs = results.iter().skip(WARM_UP_TOKENS);
        pairs
            .filter_map(|(step, at)| Some(plans.get(&(step + RUN_AHEAD))?.saturating_duration_since(*at)))
            .collect()
    }
}

impl Watch for Stamps {
    fn plan_read(&self, step_id: u64) {
        self.plans.lock().unwrap().insert(step_id, Instant::now());
    }

    fn result_ready(&self, step_id: u64, prompts: &mut dyn Iterator<Item = &[u32]>) {
        let now = Instant::now();
        self.results.lock().unwrap().insert(step_id, now);
        for prompt in prompts {
            let digits = &prompt[self.place.clone()];
            let stream = digits.iter().fold(0, |number, digit| number * 10 + (digit - u32::from(b'0')));
            self.tokens[stream as usize].lock().unwrap().push(now);
        }
    }
}
