//! When the mock shard did what, to compare with when the client saw it: one clock, as both are in one process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::mock::{Watch, prompt_of};

/// Steps at the start that are left out: connections open, prompts are computed.
const WARM_UP_TOKENS: usize = 20;
/// Plans in flight: the plan that result `n` makes room for is `n + RUN_AHEAD`.
const RUN_AHEAD: u64 = trunkline_scheduler::RUN_AHEAD as u64;
/// Characters of a stream's number.
const NUMBER_WIDTH: usize = 6;

/// The message of a stream, from which the shard tells streams apart.
pub fn message_of(stream: usize) -> String {
    format!("{stream:0NUMBER_WIDTH$}")
}

/// Where a prompt has the stream's number.
fn number_place() -> Range<usize> {
    let start = prompt_of("").len() - prompt_of_tail();
    start..start + NUMBER_WIDTH
}

/// Tokens of a prompt after the message.
fn prompt_of_tail() -> usize {
    // `<|end|>`, `<|start|>` and the header of the answer.
    2 + "assistant\n".len()
}

/// Times of results by stream, and of plans and results by step.
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

    /// When the client had read a token's event, and how long before the shard had had the token.
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

    /// From the moment that the shard had a result to the moment that it had read the plan that the result let go.
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
