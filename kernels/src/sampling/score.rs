//! The model's own distribution: how likely a token is that is known already.

use super::sampler::{NotFinite, Sampler};
use super::scan::{Largest, count, largest, mass};
use crate::isa::Isa;

/// What turns a logit of a row into a logprob.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution {
    pub(super) top: f32,
    /// Natural logarithm of the sum of exp(logit - top).
    pub(super) log_mass: f64,
}

impl Distribution {
    /// Natural logarithm of the probability of a token with this logit.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.top) - self.log_mass) as f32
    }
}

/// A token in the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of its probability: what sampling it would report.
    pub logprob: f32,
    /// How many tokens are at least as likely, itself included.
    pub rank: u32,
    /// The likeliest tokens, ties by lower id.
    pub top_logprobs: Vec<(u32, f32)>,
}

impl Sampler {
    /// How likely `token_id`, which is below the number of `logits`, is in its place, with the `num_top` likeliest
    /// tokens in `list`. A function of the arguments alone, the same on every instruction set.
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
