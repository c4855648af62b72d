//! What tenants consumed, for usage reports.

use std::ops::AddAssign;

/// The work that was done for a tenant, in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumption {
    /// Sequences whose first chunk was planned.
    pub sequences: u64,
    /// Prompt tokens of these sequences.
    pub prompt_tokens: u64,
    /// Prompt tokens among them that a prefix hit spared.
    pub cached_tokens: u64,
    /// Output tokens that were reported.
    pub output_tokens: u64,
    /// The tenant's part of the device time of all steps whose results arrived. A step's time is divided among its
    /// chunks by their tokens, including those of sequences that had ended meanwhile.
    pub device_time_us: u64,
}

impl AddAssign for Consumption {
    fn add_assign(&mut self, other: Self) {
        self.sequences += other.sequences;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.output_tokens += other.output_tokens;
        self.device_time_us += other.device_time_us;
    }
}

/// Divides the device time of a step among its chunks. The parts add up to the whole.
#[derive(Debug)]
pub(crate) struct TimeDivision {
    device_time_us: u64,
    num_tokens: u64,
    num_divided: u64,
}

impl TimeDivision {
    /// Divides `device_time_us` among chunks of `num_tokens` in total.
    pub(crate) fn new(device_time_us: u64, num_tokens: u64) -> Self {
        Self { device_time_us, num_tokens, num_divided: 0 }
    }

    /// Returns the part of the next chunk, in microseconds.
    pub(crate) fn next(&mut self, num_tokens: u32) -> u64 {
        let before = self.up_to_here();
        self.num_divided += u64::from(num_tokens);
        self.up_to_here() - before
    }

    fn up_to_here(&self) -> u64 {
        let product = u128::from(self.device_time_us) * u128::from(self.num_divided);
        product.checked_div(self.num_tokens.into()).unwrap_or_default() as u64
    }
}
