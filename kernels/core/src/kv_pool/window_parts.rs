//! Window parts: windowed layers of blocks, or the states of recurrent layers, are stored in a separate, smaller pool.
//!
//! A block gets a window part when it is first written and keeps it until the part is dropped, which frees it for other
//! blocks. Parts are never dropped automatically; the plans of steps decide.

use memmap2::MmapMut;

use super::{KvGeometry, KvPoolError, map_bytes};

const NONE: u32 = u32::MAX;

/// The windowed layers of a model and the number of their window parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    pub is_windowed: Vec<bool>,
    pub num_parts: usize,
    /// Bytes of the states of recurrent layers in a part, behind the windowed layers.
    pub state_bytes: usize,
}

/// The position of a layer in a block.
#[derive(Clone, Copy, Debug)]
struct LayerIndex {
    is_windowed: bool,
    /// Index among the windowed layers, or among the other layers.
    index: usize,
}

/// The memory of all window parts, and their assignment to blocks.
#[derive(Debug)]
pub(super) struct WindowParts {
    pub(super) map: MmapMut,
    layers: Vec<LayerIndex>,
    part_of: Vec<u32>,
    free: Vec<u32>,
    pub(super) part_bytes: usize,
    pub(super) state_bytes: usize,
    /// Bytes of a block without its window part.
    pub(super) base_bytes: usize,
}

impl WindowParts {
    pub(super) fn new(g: &KvGeometry, num_blocks: usize, limits: &WindowLimits) -> Result<Self, KvPoolError> {
        let num_parts = limits.num_parts;
        if num_parts == 0 || num_parts >= NONE as usize {
            let expected = "1 to 2^32 - 2";
            return Err(KvPoolError::Geometry { field: "num_window_parts", value: num_parts, expected });
        }
        assert_eq!(limits.is_windowed.len(), g.num_layers);
        let (mut counts, mut layers) = ([0, 0], Vec::with_capacity(g.num_layers));
        for is_windowed in &limits.is_windowed {
            let count = &mut counts[usize::from(*is_windowed)];
            layers.push(LayerIndex { is_windowed: *is_windowed, index: *count });
            *count += 1;
        }
        let [base_bytes, windowed_bytes] = counts.map(|count| count * g.layer_bytes());
        let state_bytes = limits.state_bytes;
        let part_bytes = windowed_bytes + state_bytes;
        Ok(Self {
            map: map_bytes(part_bytes, num_parts)?,
            layers,
            part_of: vec![NONE; num_blocks],
            // The last one is taken first, so the lowest number is last.
            free: (0..num_parts as u32).rev().collect(),
            part_bytes,
            state_bytes,
            base_bytes,
        })
    }

    #[inline]
    pub(super) fn part(&self, block_id: u32) -> Option<usize> {
        let part = self.part_of[block_id as usize];
        (part != NONE).then_some(part as usize)
    }

    /// Returns the part of a block. Allocates one if it has none.
    pub(super) fn take(&mut self, block_id: u32) -> Result<usize, KvPoolError> {
        if let Some(part) = self.part(block_id) {
            return Ok(part);
        }
        let num_parts = self.map.len() / self.part_bytes;
        let part = self.free.pop().ok_or(KvPoolError::NoWindowPart { block_id, num_parts })?;
        self.part_of[block_id as usize] = part;
        Ok(part as usize)
    }

    pub(super) fn drop_part(&mut self, block_id: u32) {
        let part = std::mem::replace(&mut self.part_of[block_id as usize], NONE);
        if part != NONE {
            self.free.push(part);
        }
    }

    pub(super) fn is_windowed(&self, layer: usize) -> bool {
        self.layers[layer].is_windowed
    }

    /// Returns whether a layer is windowed, and the offset of a block's layer in the pool of window parts or in the
    /// pool of base parts. Panics if there is no such layer or block, or if the layer is windowed and the block has no
    /// window part.
    #[inline]
    pub(super) fn offset(&self, layer: usize, block_id: u32, layer_bytes: usize) -> (bool, usize) {
        let LayerIndex { is_windowed, index } = self.layers[layer];
        let start = if is_windowed {
            self.part(block_id).expect("the block has its window part") * self.part_bytes
        } else {
            block_id as usize * self.base_bytes
        };
        (is_windowed, start + index * layer_bytes)
    }

    /// The offset of the states of recurrent layers that a block has. Panics if it has no part.
    pub(super) fn state_offset(&self, block_id: u32) -> usize {
        let part = self.part(block_id).expect("the block has its state");
        (part + 1) * self.part_bytes - self.state_bytes
    }

    pub(super) fn num_free(&self) -> usize {
        self.free.len()
    }
}
