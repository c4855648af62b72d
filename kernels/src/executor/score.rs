//! Logits of positions whose next token is known: logprobs of the prompt, and logits of a whole text.

use super::sequence::{Chunk, Sequence};
use super::{Executor, ExecutorError, LogitsRow, RowPurpose, SequenceFailure, as_floats};
use crate::program::PooledRows;
use crate::sampling::{SamplingParams, TokenScore};

#[derive(Clone, Debug, PartialEq)]
pub struct ChunkScores {
    pub sequence_id: u64,
    /// The prompt tokens that follow the chunk's positions, in order.
    pub tokens: Vec<TokenScore>,
}

impl Executor {
    /// The scores of the last step's chunks with `score`, in order. Chunks that failed have none.
    pub fn scores(&self) -> &[ChunkScores] {
        &self.scores
    }

    /// Adds the rows of the step's newest chunk whose logits are needed: the scored ones, then the sampled ones.
    /// Returns the number of scored rows.
    pub(super) fn push_logits_rows(&mut self, slot: usize, chunk: &Chunk) -> usize {
        let first_row = self.rows.token_ids.len() - chunk.num_rows();
        let sequence = self.sequences.at(slot);
        let scored = sequence.scored_positions(chunk);
        let num_scored = scored.len();
        for position in scored {
            self.rows.push_sample(first_row + position - chunk.first_position as usize);
            self.logits_rows.push(LogitsRow {
                slot,
                purpose: RowPurpose::Score { token_id: sequence.token_ids[position + 1] },
            });
        }
        if chunk.sample && sequence.sums.is_some() {
            let is_first = self.program.pooled.is_some_and(|pooled| pooled.rows == PooledRows::First);
            self.rows.push_sample(if is_first { first_row } else { self.rows.token_ids.len() - 1 });
            self.logits_rows.push(LogitsRow { slot, purpose: RowPurpose::Pool });
        } else if chunk.sample {
            let last = self.rows.token_ids.len() - 1 - chunk.draft_token_ids.len();
            for num_drafts in 0..=chunk.draft_token_ids.len() {
                self.rows.push_sample(last + num_drafts);
                self.logits_rows.push(LogitsRow { slot, purpose: RowPurpose::Sample { num_drafts } });
            }
        }
        num_scored
    }

    /// Fails if the chunk would exceed the step's limit of rows of logits.
    pub(super) fn check_logits_rows(&self, sequence: &Sequence, chunk: &Chunk) -> Result<(), String> {
        let most = self.program.config.max_step_sequences;
        let num_sampled = usize::from(chunk.sample) + chunk.draft_token_ids.len();
        let num_rows = sequence.scored_positions(chunk).len() + num_sampled;
        if self.logits_rows.len() + num_rows > most {
            return Err(format!("logits of more than {most} positions in one step"));
        }
        Ok(())
    }

    /// Collects the scores of a chunk from the `num_scored` rows that begin at `first_row`.
    pub(super) fn finish_scores(
        &mut self,
        sequence_id: u64,
        first_row: usize,
        num_scored: usize,
    ) -> Result<(), SequenceFailure> {
        let outcomes = &mut self.outcomes[first_row..first_row + num_scored];
        let scores = outcomes.iter_mut().map(|outcome| match outcome.score.take() {
            Some(Ok(score)) => Ok(score),
            _ => Err(SequenceFailure::NotFinite("a logit in the prompt is NaN or infinite".to_owned())),
        });
        let tokens: Vec<TokenScore> = scores.collect::<Result<_, _>>()?;
        self.scores.push(ChunkScores { sequence_id, tokens });
        Ok(())
    }

    /// Returns the logits of every position of a text, row-major `[tokens, V]`.
    ///
    /// Overwrites the pool's first blocks. Fails if a sequence is started or the text does not fit in the pool.
    pub fn score(&mut self, token_ids: &[u32]) -> Result<Vec<f32>, ExecutorError> {
        let fail = |what: String| ExecutorError::Score { what };
        if !self.sequences.is_empty() {
            return Err(fail("a sequence is started; hint: end it first".to_owned()));
        }
        let config = self.program.config;
        let most = config.num_blocks * config.geometry.block_size;
        if token_ids.len() > most {
            return Err(fail(format!("{} tokens, but the pool holds {most}", token_ids.len())));
        }
        self.drop_window_parts(&(0..config.num_blocks as u32).collect::<Vec<_>>())?;
        self.start(0, token_ids.to_vec(), token_ids.len(), SamplingParams::default())?;
        let outcome = self.score_started(token_ids.len());
        self.reset();
        outcome.map_err(fail)
    }

    fn score_started(&mut self, num_tokens: usize) -> Result<Vec<f32>, String> {
        let logits = self.program.logits.ok_or("the program has no logits")?;
        let config = self.program.config;
        let slice = config.max_step_tokens.min(config.max_step_sequences);
        let mut scores = Vec::with_capacity(num_tokens * self.program.vocab_size);
        let num_blocks = num_tokens.div_ceil(config.geometry.block_size);
        for first in (0..num_tokens).step_by(slice) {
            let count = slice.min(num_tokens - first);
            self.drop_scored(first)?;
            self.compute_text((first, count), num_blocks, |_| true, None)?;
            let start = self.program.buffers[logits.buffer].offset;
            let floats = as_floats(&mut self.floats);
            scores.extend_from_slice(&floats[start..start + count * self.program.vocab_size]);
        }
        Ok(scores)
    }
}
