//! Vectors of prompts: the output of one position, or the mean over all of them.

use super::sequence::Chunk;
use super::{Executor, ExecutorError, SequenceFailure, as_floats};
use crate::program::PooledRows;

/// The vector of a sequence whose prompt the step has completed.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceVector {
    pub sequence_id: u64,
    pub values: Vec<f32>,
}

impl Executor {
    /// Makes a started sequence report a vector where others sample a token. Fails if the program pools nothing.
    ///
    /// `second_text` is the position at which the second of two texts begins, if there are two.
    pub fn set_pooled(&mut self, sequence_id: u64, second_text: Option<usize>) -> Result<(), ExecutorError> {
        let Some(pooled) = self.program.pooled else {
            return Err(ExecutorError::BadStart {
                sequence_id,
                what: "the program has no vectors".to_owned(),
            });
        };
        let num_sums = if pooled.rows == PooledRows::All { pooled.view.width } else { 0 };
        let sequence = self.sequence_mut(sequence_id)?;
        sequence.sums = Some(vec![0.0; num_sums]);
        sequence.second_text = second_text.unwrap_or(usize::MAX);
        Ok(())
    }

    /// The vectors of the last step's sequences, in the order of its chunks. Chunks that failed have none.
    pub fn vectors(&self) -> &[SequenceVector] {
        &self.vectors
    }

    /// Takes the outputs of a chunk of a pooled sequence, whose tokens begin at row `first_token` of the step and whose
    /// row of logits is `first_row`. Adds them up in the order of positions, so that cuts between chunks change no bit.
    pub(super) fn pool_chunk(
        &mut self,
        slot: usize,
        chunk: &Chunk,
        (first_token, first_row): (usize, usize),
    ) -> Result<(), SequenceFailure> {
        let pooled = self.program.pooled.expect("`set_pooled` has checked the program");
        let buffer = &self.program.buffers[pooled.view.buffer];
        let (start, stride) = (buffer.offset + pooled.view.column, buffer.width());
        let floats = as_floats(&mut self.floats);
        let row = |index: usize| &floats[start + index * stride..][..pooled.view.width];
        let sequence = self.sequences.at_mut(slot);
        let sums = sequence.sums.as_mut().expect("the sequence is pooled");
        if pooled.rows == PooledRows::All {
            for index in first_token..first_token + chunk.num_tokens as usize {
                sums.iter_mut().zip(row(index)).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
        if !chunk.sample {
            return Ok(());
        }
        let values: Vec<f32> = if pooled.rows == PooledRows::All {
            let num_tokens = sequence.token_ids.len() as f64;
            sums.iter().map(|sum| (sum / num_tokens) as f32).collect()
        } else {
            row(first_row).to_vec()
        };
        if values.iter().all(|value| value.is_finite()) {
            self.vectors.push(SequenceVector { sequence_id: chunk.sequence_id, values });
            return Ok(());
        }
        Err(SequenceFailure::NotFinite("an element of the vector is NaN or infinite".to_owned()))
    }
}
