//! What a plan says of a sequence's output beside its chunks: tokens that follow without being sampled, and which
//! ones may be sampled next.

use std::sync::Arc;

use super::late_masks::{LateMask, LateMasks};
use super::sequence::Allowed;
use super::{Executor, ExecutorError, SequenceFailure};

impl Executor {
    /// Appends tokens to a sequence's output that were not sampled.
    pub fn append(&mut self, sequence_id: u64, token_ids: &[u32]) -> Result<(), ExecutorError> {
        let slot = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        self.sequences.at_mut(slot).append(token_ids);
        Ok(())
    }

    /// Restricts the next sample of a sequence to the tokens whose bit is set: bit `i % 8` of byte `i / 8` is token
    /// `i`. A mask of another size than the vocabulary's fails the next chunk, one that leaves no token its sample.
    pub fn allow(&mut self, sequence_id: u64, mask: Vec<u8>) -> Result<(), ExecutorError> {
        let vocab_size = self.program.vocab_size;
        let slot = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        self.sequences.at_mut(slot).allow(mask, vocab_size);
        Ok(())
    }

    /// The next sample of a sequence waits for its mask. One of another size than the vocabulary's fails it.
    pub fn await_mask(&mut self, sequence_id: u64, masks: Arc<LateMasks>) -> Result<(), ExecutorError> {
        let slot = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        self.sequences.at_mut(slot).allowed = Allowed::Late(LateMask::new(sequence_id, masks));
        Ok(())
    }

    /// After a step: what a late mask leaves of a sequence's result, if not a sampled token. `Ok`: no result.
    pub(super) fn settle_late(&mut self, sequence_id: u64) -> Option<Result<(), SequenceFailure>> {
        let num_bytes = self.program.vocab_size.div_ceil(8);
        let slot = self.sequences.find(sequence_id)?;
        let sequence = self.sequences.at_mut(slot);
        let Allowed::Late(late) = &sequence.allowed else { return None };
        let num_told = late.told().map(<[u8]>::len);
        sequence.allowed = Allowed::All;
        match num_told {
            // Its chunk failed before, and says so itself.
            None => None,
            Some(0) => Some(Ok(())),
            Some(count) if count == num_bytes => None,
            Some(count) => {
                let message = format!("a mask of {count} bytes, expected {num_bytes}");
                Some(Err(SequenceFailure::InvalidPlan(message)))
            }
        }
    }
}
