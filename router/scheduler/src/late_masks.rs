//! Run-ahead under a grammar: a step begins before it is known which tokens its sequences may sample.
//!
//! ```text
//! step n      ──sampled──▶ token ──Awaits──▶ (mask is computed) ──Allow──▶ late mask, and the plan of step n + 2
//! step n + 1        begins with that token; computes; samples once its masks have arrived
//! ```
//!
//! Each chunk that awaits a mask gets one message: the mask, or that nothing is sampled because tokens are forced or
//! the sequence ends.

use trunkline_contract::TokenMask;

use crate::event::Millis;
use crate::plan::LateMask;
use crate::sequence::{Run, SequenceKey};
use crate::shard::Shard;

impl Shard {
    /// Sends the mask for which a sequence's chunk in flight waits. The chunk samples under it.
    pub(crate) fn send_late_mask(&mut self, run: &mut Run, mask: TokenMask, now: Millis) {
        if let Some(step_id) = run.mask_step_id.take() {
            self.steps.end_awaiting_mask(step_id, now);
            run.sent_mask = Some(mask.clone());
            let late = LateMask { sequence_id: run.wire_id, allowed_tokens: mask.into(), mask_id: 0 };
            self.outbox.send_late_mask(late);
        }
    }

    /// Tells a sequence's chunk in flight that awaits a mask, if there is one, to sample nothing.
    pub(crate) fn cancel_late_mask(&mut self, key: SequenceKey, run: &mut Run, now: Millis) {
        if let Some(step_id) = run.mask_step_id.take() {
            self.steps.end_awaiting_mask(step_id, now);
            let late = LateMask { sequence_id: run.wire_id, ..LateMask::default() };
            self.outbox.send_late_mask(late);
            run.pending_samples -= 1;
            self.steps.cancel_sample(step_id, key);
        }
    }
}
