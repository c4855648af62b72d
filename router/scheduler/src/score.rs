//! Logprobs of prompts: every position is computed, and what follows it reported.
//!
//! A position whose K and V a prefix hit spares has no logits, so such a prompt shares nothing with what is in the KV
//! index; what it computes enters the index as anything else. After a preemption what was reported is not again.

use crate::budget::PrefillNeed;
use crate::event::{EndReason, Update};
use crate::plan::TokenScore;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, SequenceKey};

impl Sequence {
    /// Positions of the prompt whose next token's logprob is asked for, from the first on.
    pub(crate) fn num_to_score(&self) -> u32 {
        if self.sampling.prompt_logprobs.is_some() { self.num_prompt_tokens - 1 } else { 0 }
    }

    /// Whether its next position is one of those.
    pub(crate) fn is_scoring(&self) -> bool {
        let num_to_score = self.num_to_score();
        num_to_score > 0 && self.run.as_ref().is_some_and(|run| run.planned < num_to_score)
    }

    /// The tokens to be looked up in the KV index, which finds at most all but the last of them.
    pub(crate) fn shareable(&self) -> &[u32] {
        if self.num_scored < self.num_to_score() {
            &self.tokens[..=self.num_scored as usize]
        } else {
            &self.tokens
        }
    }
}

impl Scheduler {
    /// Bounds what sequences that are scored get of a step that has `num_rows` positions with logits to give: half of
    /// what those before them leave, so that others get in; all if nobody else wants any.
    pub(crate) fn cap_scored(&self, needs: &mut [PrefillNeed], mut num_rows: u32) {
        let is_shared = needs.len() > 1;
        for need in needs {
            if self.sequences[need.key].is_scoring() {
                let most = if is_shared { num_rows.div_ceil(2) } else { num_rows };
                need.num_tokens = need.num_tokens.min(most);
                num_rows -= need.num_tokens;
            }
        }
    }

    /// Reports what a chunk over `first .. end` said of the prompt. False if the sequence ended with that.
    pub(crate) fn take_scores(
        &mut self,
        key: SequenceKey,
        (first, end): (u32, u32),
        mut scores: Vec<TokenScore>,
        updates: &mut Vec<Update>,
    ) -> bool {
        let sequence = &mut self.sequences[key];
        let num_to_score = sequence.num_to_score();
        if scores.len() as u64 != u64::from(end.min(num_to_score) - first) {
            self.fail_result(key, "the result lacks logprobs of the prompt that were asked for", updates);
            return false;
        }
        // What was reported before a preemption.
        let num_known = sequence.num_scored.saturating_sub(first).min(scores.len() as u32);
        scores.drain(..num_known as usize);
        sequence.num_scored += scores.len() as u32;
        let is_over = sequence.max_new_tokens == 0 && sequence.num_scored == num_to_score;
        if !scores.is_empty() {
            updates.push(Update::Scored { id: sequence.id, scores });
        }
        if is_over {
            self.pin_prompt(key, updates);
            self.end(key, EndReason::Length, updates);
        }
        !is_over
    }
}
