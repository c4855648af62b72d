//! Lengths of prompts and outputs, in tokens.

use crate::random::Random;

/// Quantile of the standard normal distribution at 0.9.
const NORMAL_P90: f64 = 1.281_551_565_544_6;

/// A distribution of lengths. Each length is at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Uniform between `tokens * (1 - spread)` and `tokens * (1 + spread)`, as `--random-range-ratio` of vLLM.
    Uniform { tokens: u32, spread: f64 },
    /// A log-normal distribution with these quantiles.
    LogNormal { median: f64, p90: f64 },
}

impl Length {
    pub fn draw(&self, random: &mut Random) -> u32 {
        match *self {
            Self::Uniform { tokens, spread } => {
                let low = (f64::from(tokens) * (1.0 - spread)).floor().max(1.0) as u64;
                let high = (f64::from(tokens) * (1.0 + spread)).ceil() as u64;
                random.range(low, high.max(low)) as u32
            }
            Self::LogNormal { median, p90 } => {
                let sigma = (p90 / median).ln() / NORMAL_P90;
                (median * (sigma * random.normal()).exp()).round().max(1.0) as u32
            }
        }
    }
}
