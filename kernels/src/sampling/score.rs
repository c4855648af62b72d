//! Scores of known tokens in the model's own distribution.

use super::sampler::{NotFinite, Sampler};
use super::scan::{Distribution, Largest, count, largest, mass};
use crate::isa::Isa;

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
    /// Scores `token_id`, which must be less than the number of `logits`, and lists the `num_top` most likely tokens.
    ///
    /// The result depends only on the arguments and is the same on every instruction set.
    pub fn score(
        &mut self,
        isa: Isa,
        logits: &[f32],
        token_id: u32,
        num_top: usize,
    ) -> Result<TokenScore, NotFinite> {
        let Largest::Finite(top) = largest(isa, logits) else { return Err(NotFinite) };
        let own = Distribution { top, log_mass: mass(isa, logits, top, 1.0).ln() };
        let mut top_logprobs = Vec::new();
        self.top(isa, logits, &own, num_top, &mut top_logprobs);
        let logit = *logits.get(token_id as usize).ok_or(NotFinite)?;
        let rank = count(isa, logits, logit) as u32;
        Ok(TokenScore { logprob: own.logprob(logit), rank, top_logprobs })
    }
}
