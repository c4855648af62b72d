//! Constraints on a sequence's output: appended tokens and masks.

use std::sync::Arc;

use super::late_masks::{LateMask, LateMasks};
use super::sequence::Allowed;
use super::{Executor, ExecutorError, SequenceFailure};
use crate::sampling::processors::check_mask_size;

impl Executor {
    /// Appends tokens that were not sampled to a sequence's output.
    pub fn append(&mut self, sequence_id: u64, token_ids: &[u32]) -> Result<(), ExecutorError> {
        self.sequence_mut(sequence_id)?.append(token_ids);
        Ok(())
    }

    /// Restricts the next sample of a sequence to the tokens of `mask`, in the format of `Chunk.allowed_tokens` in
    /// `shard.proto`.
    ///
    /// A mask whose size does not match the vocabulary fails the next chunk. A mask that leaves no token fails the
    /// sample.
    pub fn allow(&mut self, sequence_id: u64, mask: Vec<u8>) -> Result<(), ExecutorError> {
        let vocab_size = self.program.vocab_size;
        self.sequence_mut(sequence_id)?.allow(mask, vocab_size);
        Ok(())
    }

    /// Makes the next sample of a sequence wait for its mask. A mask whose size does not match the vocabulary fails the
    /// sample.
    pub fn await_mask(&mut self, sequence_id: u64, masks: Arc<LateMasks>) -> Result<(), ExecutorError> {
        self.sequence_mut(sequence_id)?.allowed = Allowed::Late(LateMask::new(sequence_id, masks));
        Ok(())
    }

    /// Clears a sequence's late mask after a step. Returns `None` if the sequence has no late mask or was sampled with
    /// it, `Some(Ok)` if an empty mask suppressed the sample, and `Some(Err)` if the mask had the wrong size.
    pub(super) fn settle_late(&mut self, sequence_id: u64) -> Option<Result<(), SequenceFailure>> {
        let vocab_size = self.program.vocab_size;
        let slot = self.sequences.find(sequence_id)?;
        let sequence = self.sequences.at_mut(slot);
        let Allowed::Late(late) = &sequence.allowed else { return None };
        let num_told = late.told().map(<[u8]>::len);
        sequence.allowed = Allowed::All;
        match num_told {
            // The chunk failed before it was sampled and reports its own error.
            None => None,
            Some(0) => Some(Ok(())),
            Some(count) => {
                check_mask_size(count, vocab_size).err().map(SequenceFailure::InvalidPlan).map(Err)
            }
        }
    }
}
