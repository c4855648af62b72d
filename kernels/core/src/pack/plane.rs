//! The planes of a packed weight: arrays that interleave 16 output features.

use std::sync::Arc;

use super::TILE;
use super::region::Region;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaneShape {
    pub num_tiles: usize,
    pub vectors_per_tile: usize,
    /// Bytes per lane of a vector.
    pub lane_bytes: usize,
}

impl PlaneShape {
    /// The shape of a plane that a format does not have.
    pub const NONE: Self = Self { num_tiles: 0, vectors_per_tile: 0, lane_bytes: 1 };

    #[inline]
    pub fn tile_bytes(&self) -> usize {
        self.vectors_per_tile * self.lane_bytes * TILE
    }

    /// Bytes of all tiles; `None` if the number overflows.
    pub fn num_bytes(&self) -> Option<usize> {
        self.vectors_per_tile.checked_mul(self.lane_bytes * TILE)?.checked_mul(self.num_tiles)
    }
}

/// Bytes in the order `[tile][vector][lane]`. Lane `l` of tile `t` belongs to output feature `16 t + l`. A vector holds
/// the same piece, of `lane_bytes` bytes, of all 16 features.
#[derive(Debug)]
pub struct Plane {
    region: Arc<Region>,
    /// Offset of the first byte in the region.
    offset: usize,
    shape: PlaneShape,
}

impl Plane {
    /// Creates a plane at `offset` of `region`. Panics if it exceeds the region.
    pub fn new(region: Arc<Region>, offset: usize, shape: PlaneShape) -> Self {
        let end = shape.num_bytes().and_then(|len| len.checked_add(offset));
        assert!(end.is_some_and(|end| end <= region.len()), "a plane lies inside its region");
        Self { region, offset, shape }
    }

    pub fn num_bytes(&self) -> usize {
        self.shape.num_tiles * self.shape.tile_bytes()
    }

    #[inline]
    pub fn tile(&self, tile: usize) -> &[u8] {
        // A plane that a format does not have returns empty tiles.
        let tile_bytes = self.shape.tile_bytes();
        let start = self.offset + tile * tile_bytes;
        self.region.slice(start..start + tile_bytes)
    }
}
