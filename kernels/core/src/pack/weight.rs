//! Packed weights and their layout.

use std::sync::Arc;

use super::codes::{self, Lane};
use super::float::FloatFormat;
use super::int::{IntFormat, UnpackedBlock};
use super::plane::PlaneShape;
use super::region::Region;
use super::{Format, PackError, Plane, SourceRows, TILE, dispatch_format};
use crate::aligned::{ALIGNMENT_BYTES, AlignedBytes};

/// A matrix `[out_features, in_features]` in the order in which the kernels read it.
///
/// Output features are stored in tiles of [`TILE`] interleaved lanes. The last tile is padded with zeros:
///
/// ```text
/// integer format, tile:  quants  [run][vector][lane][4 codes]    the codes of runs of 32 elements
///                        scales  [group][lane]      f16 or f32, in a separate plane; or a record for each block
///                        mins    [group][lane]      likewise, if the format has them
///                        (`codes.rs` defines the vectors of codes of few bits, and the records)
/// float format, tile:    quants  [element][lane]    as stored
/// bfloat16, tile:        quants  [run][vector][lane][2 elements]     elements v and v + 16 of a run of 32
/// ```
///
/// A product reads each plane front to back, with any number of rows.
#[derive(Debug)]
pub struct PackedWeight {
    format: Format,
    out_features: usize,
    in_features: usize,
    quants: Plane,
    scales: Plane,
    mins: Plane,
}

/// One tile of each plane, for reading.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    pub quants: &'a [u8],
    pub scales: &'a [u8],
    pub mins: &'a [u8],
}

/// One tile of each plane, for writing.
#[derive(Debug)]
pub struct TileMut<'a> {
    pub quants: &'a mut [u8],
    pub scales: &'a mut [u8],
    pub mins: &'a mut [u8],
}

/// The layout of a packed weight: its planes in one run of bytes, each aligned to [`ALIGNMENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLayout {
    format: Format,
    out_features: usize,
    in_features: usize,
    planes: [PlaneShape; 3],
}

impl WeightLayout {
    /// Computes the layout. Fails if the shape is invalid for the format or too large.
    pub fn new(format: Format, out_features: usize, in_features: usize) -> Result<Self, PackError> {
        fn int<F: IntFormat>(num_tiles: usize, in_features: usize) -> [PlaneShape; 3] {
            codes::plane_shapes::<F>(num_tiles, in_features)
        }
        fn float<F: FloatFormat>(num_tiles: usize, in_features: usize) -> [PlaneShape; 3] {
            let quants = PlaneShape {
                num_tiles,
                vectors_per_tile: F::num_vectors(in_features),
                lane_bytes: F::LANE_BYTES,
            };
            [quants, PlaneShape::NONE, PlaneShape::NONE]
        }
        let too_large = PackError::TooLarge { format, out_features, in_features };
        format.row_bytes(in_features)?.checked_mul(out_features).ok_or(too_large.clone())?;
        let num_tiles = out_features.div_ceil(TILE);
        let planes = dispatch_format!(format, int int, float float, (num_tiles, in_features));
        let layout = Self { format, out_features, in_features, planes };
        layout.checked_num_bytes().ok_or(too_large)?;
        Ok(layout)
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    fn checked_num_bytes(&self) -> Option<usize> {
        let padded = |plane: &PlaneShape| plane.num_bytes()?.checked_next_multiple_of(ALIGNMENT_BYTES);
        self.planes.iter().try_fold(0usize, |sum, plane| sum.checked_add(padded(plane)?))
    }

    /// Bytes of all planes, a multiple of [`ALIGNMENT_BYTES`].
    pub fn num_bytes(&self) -> usize {
        self.checked_num_bytes().expect("checked by `new`")
    }

    pub fn num_tiles(&self) -> usize {
        self.out_features.div_ceil(TILE)
    }

    fn offsets(&self) -> [usize; 3] {
        let mut next = 0;
        self.planes.map(|plane| {
            let offset = next;
            next += plane.num_bytes().expect("checked by `new`").next_multiple_of(ALIGNMENT_BYTES);
            offset
        })
    }

    /// Returns the byte ranges of a tile in each plane. The ranges of different tiles do not overlap.
    pub fn tile_ranges(&self, tile: usize) -> [std::ops::Range<usize>; 3] {
        let offsets = self.offsets();
        std::array::from_fn(|index| {
            let tile_bytes = self.planes[index].tile_bytes();
            let start = offsets[index] + tile * tile_bytes;
            start..start + tile_bytes
        })
    }

    /// Packs one tile. `row` returns the bytes of an output feature in the file's format. Returns the first output
    /// feature with a number that is not finite.
    pub fn pack_tile<'a>(
        &self,
        tile: usize,
        row: impl Fn(usize) -> &'a [u8],
        into: TileMut<'_>,
    ) -> Option<usize> {
        fn int<F: IntFormat>(lane: usize, row: &[u8], into: &mut TileMut<'_>) -> bool {
            pack_int_row::<F>(lane, row, into)
        }
        fn float<F: FloatFormat>(lane: usize, row: &[u8], into: &mut TileMut<'_>) -> bool {
            pack_float_row::<F>(lane, row, into)
        }
        let (mut into, mut bad) = (into, None);
        let first = tile * TILE;
        if first + TILE <= self.out_features {
            let rows = || std::array::from_fn(|lane| row(first + lane));
            let is_packed = match self.format {
                Format::F32 => transpose::<4>(&rows(), into.quants, 0x7f80_0000),
                Format::F16 => transpose::<2>(&rows(), into.quants, 0x7c00),
                _ => false,
            };
            if is_packed {
                return None;
            }
        }
        for feature in first..(first + TILE).min(self.out_features) {
            let lane = feature - first;
            let is_finite =
                dispatch_format!(self.format, int int, float float, (lane, row(feature), &mut into));
            bad = bad.or((!is_finite).then_some(feature));
        }
        bad
    }
}

impl PackedWeight {
    /// Packs the rows of a weight, given in its file's format. Costs one pass over `bytes`.
    pub fn pack(
        format: Format,
        bytes: &[u8],
        out_features: usize,
        in_features: usize,
    ) -> Result<Self, PackError> {
        Self::pack_joined(format, &[SourceRows::new(format, bytes, out_features, in_features)?], in_features)
    }

    pub fn pack_joined(
        format: Format,
        parts: &[SourceRows<'_>],
        in_features: usize,
    ) -> Result<Self, PackError> {
        let out_features = parts.iter().map(SourceRows::num_rows).sum();
        // `SourceRows` has checked the size of the source; the packed form is at most 4 times as large.
        let layout = WeightLayout::new(format, out_features, in_features)?;
        Ok(Self::pack_by(layout, |row| SourceRows::of_joined(parts, row)))
    }

    fn pack_by<'a>(layout: WeightLayout, row: impl Fn(usize) -> &'a [u8]) -> Self {
        let mut bytes = AlignedBytes::zeroed(layout.num_bytes());
        for tile in 0..layout.num_tiles() {
            let [quants, scales, mins] = bytes
                .as_mut_slice()
                .get_disjoint_mut(layout.tile_ranges(tile))
                .expect("planes lie apart, inside the run");
            layout.pack_tile(tile, &row, TileMut { quants, scales, mins });
        }
        Self::place(layout, &Arc::new(Region::from(bytes)), 0)
    }

    /// Creates a weight at `offset` of `region`. Panics if it exceeds the region.
    pub fn place(layout: WeightLayout, region: &Arc<Region>, offset: usize) -> Self {
        let WeightLayout { format, out_features, in_features, planes } = layout;
        let offsets = layout.offsets();
        let plane = |index: usize| Plane::new(Arc::clone(region), offset + offsets[index], planes[index]);
        Self { format, out_features, in_features, quants: plane(0), scales: plane(1), mins: plane(2) }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of the matrix, which are the features of the product.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the matrix, which are the features of the product's input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn num_tiles(&self) -> usize {
        self.out_features.div_ceil(TILE)
    }

    pub fn num_bytes(&self) -> usize {
        self.quants.num_bytes() + self.scales.num_bytes() + self.mins.num_bytes()
    }

    /// Returns true if the input must be quantised (`linear::quantize_rows`).
    pub fn needs_quantized_input(&self) -> bool {
        self.format.needs_quantized_input()
    }

    /// Returns true if the input must be rounded (`linear::round_row`).
    pub fn needs_rounded_input(&self) -> bool {
        self.format.needs_rounded_input()
    }

    /// Dequantises a row, with the same bits as dequantising the row of the file, except that bfloat16 below 2^-50
    /// becomes 0. Used for embeddings.
    ///
    /// Panics if the row does not exist or the length of `out` is not `in_features`.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "row {row} of {}", self.out_features);
        assert_eq!(out.len(), self.in_features, "length of a row");
        dispatch_format!(self.format, int unpack_int_row, float unpack_float_row, (self, row, out));
    }

    #[inline]
    pub fn tile(&self, tile: usize) -> Tile<'_> {
        Tile { quants: self.quants.tile(tile), scales: self.scales.tile(tile), mins: self.mins.tile(tile) }
    }
}

/// Returns false if a scale or minimum is not finite.
fn pack_int_row<F: IntFormat>(lane: usize, row: &[u8], into: &mut TileMut<'_>) -> bool {
    let (lane, mut unpacked, mut is_finite) = (Lane { index: lane }, UnpackedBlock::default(), true);
    for (block, source) in row.chunks_exact(F::BLOCK_BYTES).enumerate() {
        let planes = [&mut *into.quants, &mut *into.scales, &mut *into.mins];
        is_finite &= lane.put::<F>(block, source, &mut unpacked, planes);
    }
    is_finite
}

fn unpack_int_row<F: IntFormat>(weight: &PackedWeight, row: usize, out: &mut [f32]) {
    let (tile, lane) = (weight.tile(row / TILE), Lane { index: row % TILE });
    let mut unpacked = UnpackedBlock::default();
    for (block, values) in out.chunks_exact_mut(F::BLOCK_ELEMENTS).enumerate() {
        lane.get::<F>(block, [tile.quants, tile.scales, tile.mins], &mut unpacked);
        unpacked.dequantize::<F>(values);
    }
}

/// Packs the rows of a whole tile whose vectors have one element of each. Returns false if an element is not finite,
/// which has all bits of `exponent`.
fn transpose<const BYTES: usize>(rows: &[&[u8]; TILE], vectors: &mut [u8], exponent: u32) -> bool {
    const PIECE: usize = 8;
    let (piece_bytes, num_bytes) = (TILE * PIECE, vectors.len() / TILE);
    for (lane, row) in rows.iter().enumerate() {
        let (pieces, rest) = row[..num_bytes].as_chunks::<PIECE>();
        for (piece, vectors) in pieces.iter().zip(vectors.chunks_exact_mut(piece_bytes)) {
            for (element, vector) in piece.chunks_exact(BYTES).zip(vectors.chunks_exact_mut(TILE * BYTES)) {
                vector[lane * BYTES..][..BYTES].copy_from_slice(element);
            }
        }
        let vectors = vectors[pieces.len() * piece_bytes..].chunks_exact_mut(TILE * BYTES);
        for (element, vector) in rest.chunks_exact(BYTES).zip(vectors) {
            vector[lane * BYTES..][..BYTES].copy_from_slice(element);
        }
    }
    // Without an early exit, this loop becomes vectors.
    let is_finite = |element: &[u8; BYTES]| {
        let mut bits = [0; 4];
        bits[..BYTES].copy_from_slice(element);
        u32::from_le_bytes(bits) & exponent != exponent
    };
    vectors.as_chunks().0.iter().fold(true, |all, element| all & is_finite(element))
}

/// Returns false if an element is not finite.
fn pack_float_row<F: FloatFormat>(lane: usize, row: &[u8], into: &mut TileMut<'_>) -> bool {
    for (index, element) in row.chunks_exact(F::ELEMENT_BYTES).enumerate() {
        F::pack(element, &mut into.quants[F::offset(index) + lane * F::LANE_BYTES..][..F::ELEMENT_BYTES]);
    }
    // Without an early exit, this loop becomes vectors.
    row.chunks_exact(F::ELEMENT_BYTES)
        .fold(true, |is_finite, element| is_finite & F::value(element).is_finite())
}

fn unpack_float_row<F: FloatFormat>(weight: &PackedWeight, row: usize, out: &mut [f32]) {
    let (tile, lane) = (weight.quants.tile(row / TILE), row % TILE);
    for (index, value) in out.iter_mut().enumerate() {
        *value = F::value(&tile[F::offset(index) + lane * F::LANE_BYTES..][..F::ELEMENT_BYTES]);
    }
}
