//! The measured speed of a shard, and predictions from it.

use crate::step_cost::{StepCost, StepWork};

/// The weight of a new measurement against all older ones.
const WEIGHT: f64 = 0.1;

/// A moving average. It has no value before the first measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |average| average + WEIGHT * (value - average)));
    }
}

/// The work ahead of a request.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The tokens that sequences ahead of it, running or waiting, compute before their next token.
    pub num_prefill_tokens: u64,
    /// The number of sequences ahead of it in the queue.
    pub num_waiting: u64,
    pub num_running: u64,
    pub max_running: u64,
}

/// The measured speed of steps and restores, and the measured time that sequences run.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    /// The time of a step as a function of its work.
    pub step_cost: StepCost,
    /// Milliseconds of a step for each token of prefill in it.
    prefill_token_ms: Average,
    /// Microseconds of one token of the shard's draft model, after the first one.
    draft_us: Average,
    /// Milliseconds from first start to end.
    run_ms: Average,
    /// Milliseconds to read a block from the store.
    restored_block_ms: Average,
    /// Restores that were declined since the last one that was tried.
    num_declined: u32,
}

/// One restore in this many is tried although it is predicted to be slower than computing, because the store may have
/// become quicker.
pub const TRY_EVERY: u32 = 32;

/// A sequence waits for a restore this many times as long as it is predicted to take.
const PATIENCE: f64 = 4.0;
/// It waits at least this part of the time that computing would take, because it then loses no more than that.
const PATIENCE_OF_COMPUTING: f64 = 0.5;
/// It always waits at least this long.
pub const LEAST_PATIENCE_MS: u64 = 2_000;
/// The assumed time to read a block before any was read, as on a slow disk.
const UNMEASURED_BLOCK_MS: f64 = 20.0;

impl Throughput {
    /// Takes the time of a step. In the time of prefill its decodes count as free, so that predicted waits err on the
    /// long side.
    pub fn add_step(&mut self, work: StepWork, num_prefill_tokens: u32, device_time_us: u64) {
        self.step_cost.add(work, device_time_us);
        if num_prefill_tokens > 0 && device_time_us > 0 {
            self.prefill_token_ms.add(device_time_us as f64 / 1e3 / f64::from(num_prefill_tokens));
        }
    }

    /// Takes the time in which the shard's draft model drafted up to `num_drafts` tokens of each sequence. The first
    /// one comes with the step that the draft model makes anyway.
    pub fn add_drafts(&mut self, num_drafts: u32, time_us: u64) {
        if num_drafts > 1 {
            self.draft_us.add(time_us as f64 / f64::from(num_drafts - 1));
        }
    }

    /// The microseconds of one token of the draft model; 0 before it was measured, so that it is tried.
    pub fn draft_us(&self) -> f64 {
        self.draft_us.0.unwrap_or(0.0)
    }

    /// Takes the time that a sequence ran which ended by itself.
    pub fn add_run(&mut self, run_ms: u64) {
        self.run_ms.add(run_ms as f64);
    }

    /// The mean milliseconds that sequences run; 0 before one has ended.
    pub fn mean_run_ms(&self) -> u64 {
        self.run_ms.0.map_or(0, |ms| ms.ceil() as u64)
    }

    /// Takes the time of a restore.
    pub fn add_restore(&mut self, num_blocks: u32, time_us: u64) {
        if num_blocks > 0 {
            self.restored_block_ms.add(time_us as f64 / 1e3 / f64::from(num_blocks));
        }
    }

    /// Returns true if reading `num_blocks` is predicted to take less time than computing `num_tokens`, or should be
    /// tried to measure it.
    pub fn is_restore_quicker(&mut self, num_blocks: u32, num_tokens: u32) -> bool {
        let (Some(block_ms), Some(token_ms)) = (self.restored_block_ms.0, self.prefill_token_ms.0) else {
            return true;
        };
        let is_quicker = f64::from(num_blocks) * block_ms < f64::from(num_tokens) * token_ms;
        let is_tried = is_quicker || self.num_declined + 1 >= TRY_EVERY;
        self.num_declined = if is_tried { 0 } else { self.num_declined + 1 };
        is_tried
    }

    /// Returns how many of `num_tokens` need not be computed if they are read instead: all of them, less those that
    /// could be computed in the time of reading. Before both were measured, half of them.
    pub fn spared_by_reading(&self, num_tokens: u32, block_size: u32) -> u32 {
        let (Some(block_ms), Some(token_ms)) = (self.restored_block_ms.0, self.prefill_token_ms.0) else {
            return num_tokens / 2;
        };
        let part = 1.0 - block_ms / (token_ms * f64::from(block_size));
        (f64::from(num_tokens) * part.max(0.0)) as u32
    }

    /// Milliseconds after which a restore of `num_tokens` is abandoned, if `num_blocks_ahead` are being read with it.
    pub fn restore_patience_ms(&self, num_blocks_ahead: u32, num_tokens: u32) -> u64 {
        let read_ms = f64::from(num_blocks_ahead) * self.restored_block_ms.0.unwrap_or(UNMEASURED_BLOCK_MS);
        let compute_ms = self.predict_prefill_ms(num_tokens).unwrap_or(0.0);
        let patience_ms = (PATIENCE * read_ms).max(PATIENCE_OF_COMPUTING * compute_ms);
        (patience_ms.ceil() as u64).max(LEAST_PATIENCE_MS)
    }

    /// The predicted milliseconds of prefill for `num_tokens`; none before anything was measured.
    pub fn predict_prefill_ms(&self, num_tokens: u32) -> Option<f64> {
        Some(self.prefill_token_ms.0? * f64::from(num_tokens))
    }

    /// The predicted milliseconds until a request behind `load` starts. It waits for the prefill ahead of it, and for
    /// as many sequences to end as there are places missing. None before anything was measured, unless nothing is
    /// ahead.
    pub fn predict_wait_ms(&self, load: Load) -> Option<u64> {
        let prefill_ms = match load.num_prefill_tokens {
            0 => 0.0,
            num_tokens => num_tokens as f64 * self.prefill_token_ms.0?,
        };
        let num_places = load.max_running.saturating_sub(load.num_running);
        let num_ends = (load.num_waiting + 1).saturating_sub(num_places);
        let places_ms = match num_ends {
            0 => 0.0,
            num_ends => num_ends as f64 * self.run_ms.0? / load.num_running.max(1) as f64,
        };
        Some((prefill_ms + places_ms).ceil() as u64)
    }
}

/// The share of right drafts of the shard's draft model in one sequence, the latest counting most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnAcceptance {
    right: f32,
    all: f32,
}

/// The weight of all earlier drafts when one is added.
const ACCEPTANCE_MEMORY: f32 = 0.95;

impl Default for OwnAcceptance {
    /// Two of four drafts are assumed to be right.
    fn default() -> Self {
        Self { right: 2.0, all: 4.0 }
    }
}

impl OwnAcceptance {
    /// Takes drafts of which the first `num_right` were right. Those behind the first wrong one say nothing.
    pub fn add(&mut self, num_drafts: u32, num_right: u32) {
        for index in 0..num_drafts.min(num_right + 1) {
            self.right = self.right * ACCEPTANCE_MEMORY + if index < num_right { 1.0 } else { 0.0 };
            self.all = self.all * ACCEPTANCE_MEMORY + 1.0;
        }
    }

    /// The probability that the next draft is right.
    pub fn probability(self) -> f32 {
        self.right / self.all
    }
}
