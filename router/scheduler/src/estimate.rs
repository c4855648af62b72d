//! What the shard was measured to do, and how long a new request would wait by that.

/// How much one new measurement weighs against all older ones.
const WEIGHT: f64 = 0.1;

/// A moving average; none before the first measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |average| average + WEIGHT * (value - average)));
    }
}

/// What is ahead of a request.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Tokens to compute for those ahead of it, running or waiting, before their next token.
    pub num_prefill_tokens: u64,
    /// Sequences ahead of it in the queue.
    pub num_waiting: u64,
    pub num_running: u64,
    pub max_running: u64,
}

/// Measured step throughput and how long sequences run.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    /// Milliseconds of a step per token of prefill in it.
    prefill_token_ms: Average,
    /// Milliseconds from first start to end.
    run_ms: Average,
    /// Milliseconds to read a block from the store.
    restored_block_ms: Average,
    /// Restores declined since the last one: the store may have become quicker.
    num_declined: u32,
}

/// One of so many restores that are predicted to lose is tried all the same, to measure the store again.
pub const TRY_EVERY: u32 = 32;

/// A restore is waited for so many times as long as it is predicted to take,
const PATIENCE: f64 = 4.0;
/// half as long as computing would take, as who gives up has lost no more than that,
const PATIENCE_OF_COMPUTING: f64 = 0.5;
/// and at least so long.
pub const LEAST_PATIENCE_MS: u64 = 2_000;
/// What a block is taken to take before one was read: on a slow disk.
const UNMEASURED_BLOCK_MS: f64 = 20.0;

impl Throughput {
    /// A step with prefill came back. Its decodes are taken for free, so the estimate errs on the long side.
    pub fn add_step(&mut self, num_prefill_tokens: u32, device_time_us: u64) {
        if num_prefill_tokens > 0 && device_time_us > 0 {
            self.prefill_token_ms.add(device_time_us as f64 / 1e3 / f64::from(num_prefill_tokens));
        }
    }

    /// A sequence ended by itself.
    pub fn add_run(&mut self, run_ms: u64) {
        self.run_ms.add(run_ms as f64);
    }

    /// How long sequences run, in milliseconds; 0 before one has ended.
    pub fn mean_run_ms(&self) -> u64 {
        self.run_ms.0.map_or(0, |ms| ms.ceil() as u64)
    }

    /// Blocks were read from the store.
    pub fn add_restore(&mut self, num_blocks: u32, time_us: u64) {
        if num_blocks > 0 {
            self.restored_block_ms.add(time_us as f64 / 1e3 / f64::from(num_blocks));
        }
    }

    /// Whether reading so many blocks is predicted to take less time than computing so many tokens. What was not
    /// measured yet is tried.
    pub fn is_restore_quicker(&mut self, num_blocks: u32, num_tokens: u32) -> bool {
        let (Some(block_ms), Some(token_ms)) = (self.restored_block_ms.0, self.prefill_token_ms.0) else {
            return true;
        };
        let is_quicker = f64::from(num_blocks) * block_ms < f64::from(num_tokens) * token_ms;
        let is_tried = is_quicker || self.num_declined + 1 >= TRY_EVERY;
        self.num_declined = if is_tried { 0 } else { self.num_declined + 1 };
        is_tried
    }

    /// Milliseconds after which a restore is given up that brings so many tokens, when so many blocks are being read.
    pub fn restore_patience_ms(&self, num_blocks_ahead: u32, num_tokens: u32) -> u64 {
        let read_ms = f64::from(num_blocks_ahead) * self.restored_block_ms.0.unwrap_or(UNMEASURED_BLOCK_MS);
        let compute_ms = self.predict_prefill_ms(num_tokens).unwrap_or(0.0);
        let patience_ms = (PATIENCE * read_ms).max(PATIENCE_OF_COMPUTING * compute_ms);
        (patience_ms.ceil() as u64).max(LEAST_PATIENCE_MS)
    }

    /// Milliseconds to compute so many tokens of prefill; none before anything was measured.
    pub fn predict_prefill_ms(&self, num_tokens: u32) -> Option<f64> {
        Some(self.prefill_token_ms.0? * f64::from(num_tokens))
    }

    /// Milliseconds until a request behind `load` starts: the prefill ahead of it, and as many ends of others as it
    /// lacks places to run. None before anything was measured, unless nothing is ahead.
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
