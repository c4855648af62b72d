//! Window parts: windowed layers store K and V, and recurrent layers their states, in parts of blocks that the router
//! can drop (docs/decisions/0015, docs/decisions/0038).

use super::sequence::Chunk;
use super::state_runs::state_runs;
use super::{Executor, ExecutorError};
use crate::kv_pool::KvPoolError;

impl Executor {
    pub fn bytes_per_window_part(&self) -> usize {
        self.kv.bytes_per_window_part()
    }

    /// Number of unused window parts; 0 if blocks have none.
    pub fn num_free_window_parts(&self) -> usize {
        self.kv.num_free_window_parts()
    }

    /// Drops the window parts of blocks. Blocks without one are skipped.
    pub fn drop_window_parts(&mut self, block_ids: &[u32]) -> Result<(), ExecutorError> {
        for block_id in block_ids {
            self.kv.drop_window_part(*block_id)?;
        }
        Ok(())
    }

    /// Checks that the window of an accepted chunk is present, and allocates window parts for the blocks that it
    /// writes.
    pub(super) fn admit_window(&mut self, slot: usize, chunk: &Chunk) -> Result<(), String> {
        let Some(window) = self.kept_window else { return Ok(()) };
        let block_size = self.program.config.geometry.block_size;
        let first_position = chunk.first_position as usize;
        let sequence = self.sequences.at(slot);
        // A partly filled first block is read as well as written.
        let read = window.first_visible(first_position) / block_size..first_position.div_ceil(block_size);
        if let Some(id) = sequence.block_table[read].iter().find(|id| !self.kv.has_window_part(**id)) {
            return Err(format!("block {id} has no window part, but position {first_position} needs it"));
        }
        let written = sequence.written_blocks(chunk, block_size);
        let taken: Result<(), KvPoolError> = if self.program.state_size > 0 {
            let runs = state_runs(first_position..first_position + chunk.num_rows(), block_size);
            runs.map(|run| sequence.block_table[run.block]).try_for_each(|id| self.kv.take_window_part(id))
        } else {
            written.iter().try_for_each(|id| self.kv.take_window_part(*id))
        };
        taken.map_err(|error| error.to_string())
    }

    /// Drops the window parts that no position from `position` on can see, for a text stored from block 0 on.
    pub(super) fn drop_scored(&mut self, position: usize) -> Result<(), String> {
        let Some(window) = self.kept_window else { return Ok(()) };
        let end = window.first_visible(position) / self.program.config.geometry.block_size;
        self.drop_window_parts(&(0..end as u32).collect::<Vec<_>>()).map_err(|error| error.to_string())
    }
}
