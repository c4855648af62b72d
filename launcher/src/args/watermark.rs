//! The watermark that requests may ask for: flags and what they mean.

use std::path::PathBuf;

use clap::Args;

use crate::error::LauncherError;

/// What was typed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Replies")]
pub struct LowWatermark {
    /// Part of the vocabulary that is green in replies with a watermark (TGI's `watermark`), from 0.01 to 0.99
    #[arg(
        long,
        value_name = "PART",
        default_value_t = 0.5,
        env = "TRUNKLINE_WATERMARK_GAMMA",
        hide_env_values = true
    )]
    pub watermark_gamma: f32,
    /// What is added to the logits of green tokens: the more, the surer the mark is found, and the more it changes
    #[arg(
        long,
        value_name = "LOGITS",
        default_value_t = 2.0,
        env = "TRUNKLINE_WATERMARK_DELTA",
        hide_env_values = true
    )]
    pub watermark_delta: f32,
    /// File with the key that says which tokens are green, a whole number below 2^64; without it and
    /// without `TRUNKLINE_WATERMARK_KEY`, which holds one, it is TGI's, which everybody knows
    #[arg(long, value_name = "FILE", env = "TRUNKLINE_WATERMARK_KEY_FILE", hide_env_values = true)]
    pub watermark_key_file: Option<PathBuf>,
}

/// Checked, but for the key, which the router alone reads.
#[derive(Debug, Clone, PartialEq)]
pub struct WatermarkConfig {
    /// Part of the vocabulary that is green.
    pub gamma: f32,
    /// Added to the logits of green tokens.
    pub delta: f32,
    /// The file of the key, absolute.
    pub key_file: Option<PathBuf>,
}

impl WatermarkConfig {
    /// Checks what was typed.
    pub fn new(low: LowWatermark) -> Result<Self, LauncherError> {
        let (gamma, delta) = (low.watermark_gamma, low.watermark_delta);
        if !(0.01..=0.99).contains(&gamma) {
            return Err(LauncherError::usage(format!(
                "`--watermark-gamma` is {gamma}, expected 0.01 to 0.99"
            )));
        }
        if !(delta > 0.0 && delta <= 100.0) {
            let problem = format!("`--watermark-delta` is {delta}, expected above 0 and at most 100");
            return Err(LauncherError::usage(problem));
        }
        let absolute = |path: PathBuf| super::high::absolute("--watermark-key-file", &path);
        Ok(Self { gamma, delta, key_file: low.watermark_key_file.map(absolute).transpose()? })
    }
}
