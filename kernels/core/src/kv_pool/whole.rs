//! Whole blocks for other tiers: the layers in order, wherever they lie in the pool.

use trunkline_store::Piece;

use super::{KvPool, KvPoolError};

impl KvPool {
    /// The bytes of a whole block as consecutive pieces. Fails if its window part was dropped.
    pub fn whole_block(&self, block_id: u32) -> Result<impl Iterator<Item = &[u8]>, KvPoolError> {
        self.check_block(block_id)?;
        if !self.has_window_part(block_id) {
            return Err(KvPoolError::WindowPartGone { block_id });
        }
        let layer_bytes = self.geometry.layer_bytes();
        let (num_pieces, piece_bytes) = match self.is_contiguous() {
            true => (1, self.geometry.bytes_per_block()),
            false => (self.geometry.num_layers, layer_bytes),
        };
        Ok((0..num_pieces).map(move |layer| match &self.windows {
            None => &self.map[self.strides.offset(layer, block_id)..][..piece_bytes],
            Some(windows) => {
                let (is_windowed, offset) = windows.offset(layer, block_id, layer_bytes);
                let map = if is_windowed { &windows.map } else { &self.map };
                &map[offset..][..layer_bytes]
            }
        }))
    }

    /// Returns true if the bytes of each block follow each other.
    fn is_contiguous(&self) -> bool {
        self.windows.is_none() && self.strides.layer == self.geometry.layer_bytes()
    }

    /// The destinations of the bytes of a whole block. Without a window part, its windowed layers are left out.
    ///
    /// The pointers are valid while the pool lives and the block keeps its window part.
    pub fn pieces(&mut self, block_id: u32) -> Result<Vec<Piece>, KvPoolError> {
        self.check_block(block_id)?;
        let layer_bytes = self.geometry.layer_bytes();
        let has_part = self.has_window_part(block_id);
        let strides = self.strides;
        if self.is_contiguous() {
            let num_bytes = self.geometry.bytes_per_block();
            let destination = self.map[strides.offset(0, block_id)..][..num_bytes].as_mut_ptr();
            return Ok(vec![Piece { offset: 0, num_bytes, destination }]);
        }
        let mut pieces: Vec<Piece> = Vec::new();
        for layer in 0..self.geometry.num_layers {
            let (map, start) = match &mut self.windows {
                Some(windows) if windows.is_windowed(layer) && !has_part => continue,
                Some(windows) => match windows.offset(layer, block_id, layer_bytes) {
                    (true, start) => (&mut windows.map, start),
                    (false, start) => (&mut self.map, start),
                },
                None => (&mut self.map, strides.offset(layer, block_id)),
            };
            let destination = map[start..][..layer_bytes].as_mut_ptr();
            let offset = layer * layer_bytes;
            match pieces.last_mut() {
                Some(last)
                    if last.offset + last.num_bytes == offset
                        && last.destination.wrapping_add(last.num_bytes) == destination =>
                {
                    last.num_bytes += layer_bytes;
                }
                _ => pieces.push(Piece { offset, num_bytes: layer_bytes, destination }),
            }
        }
        Ok(pieces)
    }
}
