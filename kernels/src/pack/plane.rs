//! One array of a packed weight: 16 output features side by side.

use crate::aligned::AlignedBytes;
use crate::linear::TILE;

/// Bytes in the order [tile, vector, lane]: lane `l` of tile `t` belongs to output feature `16 t + l`, and a vector
/// holds the same piece (`lane_bytes` long) of all 16.
#[derive(Debug)]
pub(crate) struct Plane {
    bytes: AlignedBytes,
    lane_bytes: usize,
    vectors_per_tile: usize,
}

impl Plane {
    /// A plane of zeros.
    pub(crate) fn zeroed(num_tiles: usize, vectors_per_tile: usize, lane_bytes: usize) -> Self {
        let bytes = AlignedBytes::zeroed(num_tiles * vectors_per_tile * lane_bytes * TILE);
        Self { bytes, lane_bytes, vectors_per_tile }
    }

    /// A plane that the format does not have.
    pub(crate) fn none() -> Self {
        Self::zeroed(0, 0, 1)
    }

    /// A plane of zeros of this shape, but so many tiles.
    pub(crate) fn zeroed_like(&self, num_tiles: usize) -> Self {
        Self::zeroed(num_tiles, self.vectors_per_tile, self.lane_bytes)
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn tile_bytes(&self) -> usize {
        self.vectors_per_tile * self.lane_bytes * TILE
    }

    /// The vectors of one tile.
    pub(crate) fn tile(&self, tile: usize) -> &[u8] {
        &self.bytes.as_slice()[tile * self.tile_bytes()..][..self.tile_bytes()]
    }

    /// The vectors of one tile, for writing.
    pub(crate) fn tile_mut(&mut self, tile: usize) -> &mut [u8] {
        let tile_bytes = self.tile_bytes();
        &mut self.bytes.as_mut_slice()[tile * tile_bytes..][..tile_bytes]
    }

    /// The pieces of one output feature, in order.
    pub(crate) fn lane(&self, tile: usize, lane: usize) -> impl Iterator<Item = &[u8]> {
        let (lane_bytes, tile) = (self.lane_bytes, self.tile(tile));
        tile.chunks_exact(lane_bytes * TILE).map(move |vector| &vector[lane * lane_bytes..][..lane_bytes])
    }

    /// Copies output features `0..count` of `source` to `first..`.
    pub(crate) fn copy_features(&mut self, first: usize, source: &Plane, count: usize) {
        if source.vectors_per_tile == 0 {
            return;
        }
        if first.is_multiple_of(TILE) {
            // Whole tiles; lanes behind `count` are padding, and overwritten by what follows.
            let (start, tile_bytes) = (first / TILE * self.tile_bytes(), self.tile_bytes());
            let len = count.div_ceil(TILE) * tile_bytes;
            self.bytes.as_mut_slice()[start..][..len].copy_from_slice(&source.bytes.as_slice()[..len]);
            return;
        }
        let lane_bytes = self.lane_bytes;
        for feature in 0..count {
            let (tile, lane) = ((first + feature) / TILE, (first + feature) % TILE);
            let pieces = source.lane(feature / TILE, feature % TILE);
            for (vector, piece) in self.tile_mut(tile).chunks_exact_mut(lane_bytes * TILE).zip(pieces) {
                vector[lane * lane_bytes..][..lane_bytes].copy_from_slice(piece);
            }
        }
    }
}
