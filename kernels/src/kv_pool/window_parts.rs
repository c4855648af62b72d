//! Blocks in two parts: the layers without a window in one pool, those with a window in another, of fewer parts.
//!
//! A block has its window part from when it is first written until the part is dropped; what it takes is given to other
//! blocks then. Nobody but who drops parts decides how many are in use.

use memmap2::MmapMut;

use super::{KvGeometry, KvPoolError, map_bytes};

const NONE: u32 = u32::MAX;

/// Which layers have a window, and how many blocks may have their part of these at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    pub is_windowed: Vec<bool>,
    /// Window parts of the pool.
    pub num_parts: usize,
}

/// Where a layer lies in a block.
#[derive(Clone, Copy, Debug)]
struct Place {
    is_windowed: bool,
    /// Among the layers of its part.
    index: usize,
}

/// Owns the window parts.
#[derive(Debug)]
pub(super) struct WindowParts {
    pub(super) map: MmapMut,
    places: Vec<Place>,
    part_of: Vec<u32>,
    free: Vec<u32>,
    pub(super) part_bytes: usize,
    /// Bytes of the other part of a block.
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
        let (mut counts, mut places) = ([0, 0], Vec::with_capacity(g.num_layers));
        for is_windowed in &limits.is_windowed {
            let count = &mut counts[usize::from(*is_windowed)];
            places.push(Place { is_windowed: *is_windowed, index: *count });
            *count += 1;
        }
        let [base_bytes, part_bytes] = counts.map(|count| count * g.layer_bytes());
        Ok(Self {
            map: map_bytes(part_bytes, num_parts)?,
            places,
            part_of: vec![NONE; num_blocks],
            // The lowest come first.
            free: (0..num_parts as u32).rev().collect(),
            part_bytes,
            base_bytes,
        })
    }

    /// The part of a block, if it has one.
    pub(super) fn part(&self, block_id: u32) -> Option<usize> {
        let part = self.part_of[block_id as usize];
        (part != NONE).then_some(part as usize)
    }

    /// Gives a block its part, if it has none.
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
        self.places[layer].is_windowed
    }

    /// Whether a layer of a block lies among the parts, and where there or among the bases it begins. Panics if it is
    /// in a part that the block does not have.
    pub(super) fn offset(&self, layer: usize, block_id: u32, layer_bytes: usize) -> (bool, usize) {
        let Place { is_windowed, index } = self.places[layer];
        let start = if is_windowed {
            self.part(block_id).expect("the block has its window part") * self.part_bytes
        } else {
            block_id as usize * self.base_bytes
        };
        (is_windowed, start + index * layer_bytes)
    }

    pub(super) fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn view(&mut self) -> WindowView<'_> {
        WindowView {
            bytes: self.map.as_mut_ptr(),
            places: &self.places,
            part_of: &self.part_of,
            part_bytes: self.part_bytes,
            base_bytes: self.base_bytes,
        }
    }
}

/// Window parts for the threads of one step.
#[derive(Clone, Copy)]
pub(super) struct WindowView<'a> {
    bytes: *mut u8,
    places: &'a [Place],
    part_of: &'a [u32],
    part_bytes: usize,
    base_bytes: usize,
}

impl WindowView<'_> {
    /// Where a layer of a block begins: in `base`, the pool of the layers without a window, or among the parts. Panics
    /// if there is no such layer or block, or it has no part.
    ///
    /// # Safety
    /// `base` holds the block.
    pub(super) unsafe fn layer(
        &self,
        base: *mut u8,
        layer: usize,
        block_id: u32,
        layer_bytes: usize,
    ) -> *mut u8 {
        let Place { is_windowed, index } = self.places[layer];
        // SAFETY: a part that a block has lies in the mapping of parts, the rest in `base` by the contract.
        unsafe {
            if !is_windowed {
                return base.add(block_id as usize * self.base_bytes + index * layer_bytes);
            }
            let part = self.part_of[block_id as usize];
            assert!(part != NONE, "block {block_id} has no window part");
            self.bytes.add(part as usize * self.part_bytes + index * layer_bytes)
        }
    }
}
