//! Logprobs of prompts: every position is computed, and the logprob of the token after it is reported.
//!
//! A position that a prefix hit spares has no logits. A scored prompt therefore uses nothing of the KV index up to the
//! last position that is still to be scored; its own blocks enter the index as usual. Scores that were reported before
//! a preemption are not computed again.

use crate::budget::PrefillNeed;
use crate::event::Pooling;
use crate::sequence::Sequence;
use crate::sequences::Sequences;

impl Sequence {
    /// The number of leading prompt positions that are scored.
    pub(crate) fn num_to_score(&self) -> u32 {
        if self.request.sampling.prompt_logprobs.is_some() { self.num_prompt_tokens - 1 } else { 0 }
    }

    /// Returns true if its next position is scored.
    pub(crate) fn is_scoring(&self) -> bool {
        let unscored = self.num_scored..self.num_to_score();
        self.run.as_ref().is_some_and(|run| unscored.contains(&run.planned))
    }

    /// The positions before the next one that is scored, which a chunk must not exceed. They are computed again because
    /// their blocks were lost, but their scores are known.
    pub(crate) fn num_before_scores(&self, planned: u32) -> Option<u32> {
        let is_before = planned < self.num_scored && self.num_scored < self.num_to_score();
        is_before.then(|| self.num_scored - planned)
    }

    /// The tokens to be looked up in the KV index, which finds at most all but the last of them.
    ///
    /// A suspect computes again what it is suspected for. Otherwise a prefix hit would clear it, and it could crash one
    /// shard more.
    pub(crate) fn shareable(&self) -> &[u32] {
        let shareable = self.shareable_if_cleared();
        let first = self.suspected.as_ref().map(|positions| positions.start as usize);
        &shareable[..shareable.len().min(first.map_or(usize::MAX, |first| first + 1))]
    }

    fn shareable_if_cleared(&self) -> &[u32] {
        if self.request.pooling.is_some_and(|pooled| pooled.pooling != Pooling::Last) {
            &self.tokens[..1]
        } else if self.num_scored < self.num_to_score() {
            &self.tokens[..=self.num_scored as usize]
        } else {
            &self.tokens
        }
    }
}

/// Limits the shares of scored sequences in a step that may still compute `num_rows` rows of logits. Each gets at most
/// half of the rows that the sequences before it leave, or all of them if no other sequence needs prefill.
pub(crate) fn cap_scored(sequences: &Sequences, needs: &mut [PrefillNeed], mut num_rows: u32) {
    let is_shared = needs.len() > 1;
    for need in needs {
        if sequences[need.key].is_scoring() {
            let most = if is_shared { num_rows.div_ceil(2) } else { num_rows };
            need.num_tokens = need.num_tokens.min(most);
            num_rows -= need.num_tokens;
        }
    }
}
