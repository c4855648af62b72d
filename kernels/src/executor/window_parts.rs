//! Layers with a window keep their K and V in parts of blocks that the router drops: docs/decisions/0015.

use super::sequence::Chunk;
use super::{Executor, ExecutorError};
use crate::kv_pool::KvPoolError;

impl Executor {
    /// Bytes of a window part; 0 if blocks are in one piece.
    pub fn bytes_per_window_part(&self) -> usize {
        self.kv.bytes_per_window_part()
    }

    /// Window parts that no block has; 0 if blocks are in one piece.
    pub fn num_free_window_parts(&self) -> usize {
        self.kv.num_free_window_parts()
    }

    /// Takes the window parts of blocks away: no chunk reads them before it writes them anew. A block without one stays
    /// as it is.
    pub fn drop_window_parts(&mut self, block_ids: &[u32]) -> Result<(), ExecutorError> {
        for block_id in block_ids {
            self.kv.drop_window_part(*block_id)?;
        }
        Ok(())
    }

    /// Looks whether the window of an accepted chunk is there, and gives parts to the blocks that it writes.
    pub(super) fn admit_window(&mut self, slot: usize, chunk: &Chunk) -> Result<(), String> {
        let Some(window) = self.kept_window else { return Ok(()) };
        let block_size = self.program.config.geometry.block_size;
        let first_position = chunk.first_position as usize;
        let sequence = self.sequences.at(slot);
        // A block that is filled already in part is read, too.
        let read = window.first_visible(first_position) / block_size..first_position.div_ceil(block_size);
        if let Some(id) = sequence.block_table[read].iter().find(|id| !self.kv.has_window_part(**id)) {
            return Err(format!("block {id} has no window part, and position {first_position} looks at it"));
        }
        let written = sequence.written_blocks(chunk, block_size);
        let taken: Result<(), KvPoolError> = written.iter().try_for_each(|id| self.kv.take_window_part(*id));
        taken.map_err(|error| error.to_string())
    }

    /// Drops the parts of a text's blocks, its first being the pool's first, that no position from `position` on sees.
    pub(super) fn drop_scored(&mut self, position: usize) -> Result<(), String> {
        let Some(window) = self.kept_window else { return Ok(()) };
        let end = window.first_visible(position) / self.program.config.geometry.block_size;
        self.drop_window_parts(&(0..end as u32).collect::<Vec<_>>()).map_err(|error| error.to_string())
    }
}
