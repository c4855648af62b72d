//! What a plan says of a sequence's output beside its chunks: tokens that follow without being sampled, and which
//! ones may be sampled next.

use super::{Executor, ExecutorError};

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
}
