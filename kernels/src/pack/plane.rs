//! One array of a packed weight: 16 output features side by side.

use std::sync::Arc;

use super::region::Region;
use crate::linear::TILE;

/// Sizes of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneShape {
    pub(crate) num_tiles: usize,
    pub(crate) vectors_per_tile: usize,
    /// Bytes of one lane of a vector.
    pub(crate) lane_bytes: usize,
}

impl PlaneShape {
    /// A plane that the format does not have.
    pub(crate) const NONE: Self = Self { num_tiles: 0, vectors_per_tile: 0, lane_bytes: 1 };

    /// Bytes of one tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.vectors_per_tile * self.lane_bytes * TILE
    }

    /// Bytes of all tiles; `None` if no memory can hold them.
    pub(crate) fn num_bytes(&self) -> Option<usize> {
        self.vectors_per_tile.checked_mul(self.lane_bytes * TILE)?.checked_mul(self.num_tiles)
    }
}

/// Bytes in the order [tile, vector, lane]: lane `l` of tile `t` belongs to output feature `16 t + l`, and a vector
/// holds the same piece (`lane_bytes` long) of all 16.
#[derive(Debug)]
pub(crate) struct Plane {
    region: Arc<Region>,
    /// First byte in the region.
    offset: usize,
    shape: PlaneShape,
}

impl Plane {
    /// The plane of this shape that begins at `offset` of `region`. Panics if it does not lie inside.
    pub(crate) fn new(region: Arc<Region>, offset: usize, shape: PlaneShape) -> Self {
        let end = shape.num_bytes().and_then(|len| len.checked_add(offset));
        assert!(end.is_some_and(|end| end <= region.as_slice().len()), "a plane lies inside its region");
        Self { region, offset, shape }
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.shape.num_tiles * self.shape.tile_bytes()
    }

    /// The vectors of one tile.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        // A plane that a format lacks has no tiles, but may be asked for them: they are empty.
        let tile_bytes = self.shape.tile_bytes();
        &self.region.as_slice()[self.offset + tile * tile_bytes..][..tile_bytes]
    }

    /// The pieces of one output feature, in order.
    pub(crate) fn lane(&self, tile: usize, lane: usize) -> impl Iterator<Item = &[u8]> {
        let (lane_bytes, tile) = (self.shape.lane_bytes, self.tile(tile));
        tile.chunks_exact(lane_bytes * TILE).map(move |vector| &vector[lane * lane_bytes..][..lane_bytes])
    }
}
