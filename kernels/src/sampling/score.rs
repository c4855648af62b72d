//! Scores of known tokens in the model's own distribution.

use super::sampler::{NotFinite, Sampler};
use super::scan::{Largest, count, largest, mass};
use crate::isa::Isa;

/// The constants that turn the logits of a row into logprobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution {
    pub(super) top: f32,
    /// Natural logarithm of the sum of exp(logit - top).
    pub(super) log_mass: f64,
}

impl Distribution {
    /// Returns the natural logarithm of the probability of a token with this logit.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.top) - self.log_mass) as f32
    }
}

/// The score of a token in the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of the token's probability, equal to the logprob that sampling reports.
    pub logprob: f32,
    /// Number of tokens that are at least as likely, including the token itself.
    pub rank: u32,
    /// The most likely tokens, ties by lower id.
    pub top_logprobs: Vec<(u32, f32)>,
}

impl Sampler {
    /// Scores `token_id`, which must be less than the number of `logits`. `list` receives the `num_top` most likely
    /// tokens.
    ///
    /// The result depends only on the arguments and is the same on every instruction set.
    pub fn score(
        &mut self,
        isa: Isa,
        logits: &[f32],
        token_id: u32,
        num_top: usize,
        mut list: Vec<(u32, f32)>,
    ) -> Result<TokenScore, NotFinite> {
        let Largest::Finite(top) = largest(isa, logits) else { return Err(NotFinite) };
        let own = Distribution { top, log_mass: mass(isa, logits, top, 1.0).ln() };
        self.top(isa, logits, &own, num_top, &mut list);
        let logit = *logits.get(token_id as usize).ok_or(NotFinite)?;
        let rank = count(isa, logits, logit) as u32;
        Ok(TokenScore { logprob: own.logprob(logit), rank, top_logprobs: list })
    }
}
