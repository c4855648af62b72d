//! Run-ahead under a grammar: a step begins before it is known what its sequences may sample.
//!
//! ```text
//! step n      ──sampled──▶ token ──Awaits──▶ (mask worked out) ──Allow──▶ late mask, and the plan of step n + 2
//! step n + 1        begins with that token; computes; samples once its masks are there
//! ```
//!
//! Each chunk that awaits a mask is told one thing, once: what it may sample, or that it samples nothing (tokens are
//! forced, or the sequence ends).

use crate::event::Allowed;
use crate::plan::{LateMask, TokenMask};
use crate::scheduler::Scheduler;
use crate::sequence::SequenceKey;

impl Scheduler {
    /// What steps in flight may sample, now that it is known: for the shard, at once. Take it after every event and
    /// every plan.
    pub fn take_late_masks(&mut self) -> Vec<LateMask> {
        self.shard.as_mut().map(|shard| std::mem::take(&mut shard.late_masks)).unwrap_or_default()
    }

    /// True while masks are being worked out that will be there in a moment: a plan without those sequences would take
    /// them apart from the others, and each step costs about the same for one as for all.
    pub(crate) fn awaits_masks(&self) -> bool {
        self.running.iter().any(|&key| {
            let sequence = &self.sequences[key];
            sequence.awaits && !sequence.is_slow
        })
    }

    /// What may follow is known: tells the step in flight that awaits it. What is left for later steps is returned.
    pub(crate) fn tell_late(&mut self, key: SequenceKey, allowed: Allowed) -> Option<Allowed> {
        let is_late = self.sequences[key].run.as_ref().is_some_and(|run| run.late_step_id.is_some());
        match allowed.into_mask() {
            Ok(mask) if is_late => {
                self.settle_late(key, Some(mask));
                None
            }
            Ok(mask) => Some(Allowed::from_mask(mask)),
            Err(allowed) => {
                self.cancel_late(key);
                Some(allowed)
            }
        }
    }

    /// The chunk in flight that awaits a mask, if there is one, samples nothing.
    pub(crate) fn cancel_late(&mut self, key: SequenceKey) {
        let Some(step_id) = self.settle_late(key, None) else { return };
        self.sequences[key].run_mut().pending_samples -= 1;
        let shard = self.shard.as_mut().expect("who runs has a shard");
        // It is not in flight if it failed before it was told.
        let step = shard.in_flight.iter_mut().find(|step| step.step_id == step_id);
        if let Some(chunk) = step.and_then(|step| step.chunks.iter_mut().find(|chunk| chunk.key == key)) {
            chunk.sample = false;
        }
    }

    /// Says so once; returns the step.
    fn settle_late(&mut self, key: SequenceKey, mask: Option<TokenMask>) -> Option<u64> {
        let run = self.sequences[key].run.as_mut()?;
        let step_id = run.late_step_id.take()?;
        let shard = self.shard.as_mut().expect("who runs has a shard");
        shard.late_masks.push(LateMask { sequence_id: run.wire_id, allowed_tokens: mask });
        Some(step_id)
    }
}
