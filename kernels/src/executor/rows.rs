//! The rows of a step: the tokens of its accepted chunks, and which of them are sampled.

use std::ops::Range;

use super::adapters::AdapterUse;
use super::sequence::SequenceTable;
use super::state_runs::state_runs;

/// A chunk that passed all checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedChunk {
    pub(super) slot: usize,
    pub(super) first_position: usize,
    /// Drafts included.
    pub(super) num_tokens: usize,
    pub(super) adapter: Option<AdapterUse>,
}

/// Rows of one sequence between two states that blocks keep.
#[derive(Clone, Debug)]
pub(super) struct StateRows {
    pub(super) rows: Range<usize>,
    /// The block that has the state before the rows; `None` at the beginning of a sequence.
    pub(super) source: Option<u32>,
    /// The block that keeps the state behind the rows. It may be the source.
    pub(super) destination: u32,
}

/// Neighbouring rows whose sequences use one adapter with one scale; at most [`MAX_ADAPTER_ROWS`].
#[derive(Clone, Debug)]
pub(super) struct AdapterRows {
    pub(super) adapter: AdapterUse,
    pub(super) rows: Range<usize>,
}

/// The most rows of [`AdapterRows`], so that their products with a part of a matrix stay in the caches.
pub(super) const MAX_ADAPTER_ROWS: usize = 64;

/// Adds a row to the blocks.
fn push_adapter_row(blocks: &mut Vec<AdapterRows>, adapter: AdapterUse, row: usize) {
    match blocks.last_mut() {
        Some(last)
            if last.adapter == adapter && last.rows.end == row && last.rows.len() < MAX_ADAPTER_ROWS =>
        {
            last.rows.end += 1;
        }
        _ => blocks.push(AdapterRows { adapter, rows: row..row + 1 }),
    }
}

/// The most runs of a chunk.
pub(super) const MAX_STATE_RUNS: usize = 3;

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
    /// Only of models with recurrent layers.
    pub(super) states: Vec<StateRows>,
    /// The rows of sequences that use adapters.
    pub(super) adapter_tokens: Vec<AdapterRows>,
    /// The same, of the rows that are sampled.
    pub(super) adapter_samples: Vec<AdapterRows>,
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
            states: Vec::with_capacity(MAX_STATE_RUNS * max_chunks),
            adapter_tokens: Vec::with_capacity(max_chunks + max_tokens / MAX_ADAPTER_ROWS),
            adapter_samples: Vec::with_capacity(max_chunks),
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
        self.states.clear();
        self.adapter_tokens.clear();
        self.adapter_samples.clear();
    }

    /// Marks a row of the last chunk as one whose logits are computed.
    pub(super) fn push_sample(&mut self, row: usize) {
        if let Some(adapter) = self.chunks.last().and_then(|chunk| chunk.adapter) {
            push_adapter_row(&mut self.adapter_samples, adapter, self.samples.len());
        }
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
        if let Some(adapter) = chunk.adapter {
            let first = self.token_ids.len();
            (first..first + chunk.num_tokens)
                .for_each(|row| push_adapter_row(&mut self.adapter_tokens, adapter, row));
        }
        let known = &sequence.token_ids[chunk.first_position..end - drafts.len()];
        self.token_ids.extend(known.iter().chain(drafts));
        for position in chunk.first_position..end {
            self.positions.push(position as u32);
            self.texts.push(usize::from(position >= sequence.second_text));
            self.slots.push((sequence.block_table[position / block_size], (position % block_size) as u32));
        }
        self.chunks.push(chunk);
    }

    /// Adds the states that the last chunk reads and writes.
    pub(super) fn push_states(&mut self, table: &SequenceTable, block_size: usize) {
        let Some(chunk) = self.chunks.last() else { return };
        let blocks = &table.at(chunk.slot).block_table;
        let first = chunk.first_position;
        let first_row = self.token_ids.len() - chunk.num_tokens;
        let mut source = first.checked_sub(1).map(|before| blocks[before / block_size]);
        for run in state_runs(first..first + chunk.num_tokens, block_size) {
            let rows = run.positions.start - first + first_row..run.positions.end - first + first_row;
            let destination = blocks[run.block];
            self.states.push(StateRows { rows, source, destination });
            source = Some(destination);
        }
    }
}
