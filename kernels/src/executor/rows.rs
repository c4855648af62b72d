//! The rows of a step: the tokens of its accepted chunks, and which of them are sampled.

use super::sequence::SequenceTable;

/// A chunk that passed all checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedChunk {
    pub(super) slot: usize,
    pub(super) first_position: usize,
    /// Drafts included.
    pub(super) num_tokens: usize,
}

/// The rows of a step. The vectors are reused from step to step.
#[derive(Debug)]
pub(super) struct StepRows {
    pub(super) chunks: Vec<AcceptedChunk>,
    pub(super) token_ids: Vec<u32>,
    pub(super) positions: Vec<u32>,
    /// Block id and offset in the block of each token's slot.
    pub(super) slots: Vec<(u32, u32)>,
    /// The text that each token belongs to, 0 or 1.
    pub(super) texts: Vec<usize>,
    pub(super) samples: Vec<usize>,
    pub(super) sample_chunks: Vec<usize>,
}

impl StepRows {
    pub(super) fn for_steps(max_tokens: usize, max_chunks: usize) -> Self {
        Self {
            chunks: Vec::with_capacity(max_chunks),
            token_ids: Vec::with_capacity(max_tokens),
            positions: Vec::with_capacity(max_tokens),
            slots: Vec::with_capacity(max_tokens),
            texts: Vec::with_capacity(max_tokens),
            samples: Vec::with_capacity(max_chunks),
            sample_chunks: Vec::with_capacity(max_chunks),
        }
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.token_ids.clear();
        self.positions.clear();
        self.slots.clear();
        self.texts.clear();
        self.samples.clear();
        self.sample_chunks.clear();
    }

    /// Marks a row of the last chunk as one whose logits are computed.
    pub(super) fn push_sample(&mut self, row: usize) {
        self.samples.push(row);
        self.sample_chunks.push(self.chunks.len() - 1);
    }

    /// Adds the rows of a chunk. The last ones are those of `drafts`.
    pub(super) fn push(
        &mut self,
        chunk: AcceptedChunk,
        drafts: &[u32],
        table: &SequenceTable,
        block_size: usize,
    ) {
        let sequence = table.at(chunk.slot);
        let end = chunk.first_position + chunk.num_tokens;
        let known = &sequence.token_ids[chunk.first_position..end - drafts.len()];
        self.token_ids.extend(known.iter().chain(drafts));
        for position in chunk.first_position..end {
            self.positions.push(position as u32);
            self.texts.push(usize::from(position >= sequence.second_text));
            self.slots.push((sequence.block_table[position / block_size], (position % block_size) as u32));
        }
        self.chunks.push(chunk);
    }
}
