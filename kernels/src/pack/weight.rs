//! A weight in kernel layout.

use super::float::FloatFormat;
use super::int::{IntFormat, UnpackedBlock};
use super::{Format, PackError, Plane, dispatch_format};
use crate::linear::{QUAD, TILE};

/// A matrix [out_features, in_features] in the order in which the kernels read it, its numbers unchanged.
///
/// Output features stand in tiles of [`TILE`], the last one padded with zeros, 16 lanes side by side:
///
/// ```text
/// integer format, tile:  quants  [group][vector][lane][4 elements]    element 4 v + i of a group, as u8
///                        (two quants a byte: vector v holds elements 4 v.. low and 4 v + group / 2.. high)
///                        scales  [group][lane]      f16 or f32, a plane of its own
///                        mins    [group][lane]      likewise, where the format has them
/// float format, tile:    quants  [element][lane]    as stored
/// ```
///
/// A product reads each plane front to back, whatever the number of rows.
#[derive(Debug)]
pub struct PackedWeight {
    format: Format,
    out_features: usize,
    in_features: usize,
    quants: Plane,
    scales: Plane,
    mins: Plane,
}

/// The planes of one tile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<'a> {
    pub(crate) quants: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) mins: &'a [u8],
}

impl PackedWeight {
    /// Repacks `bytes`, the rows of a weight as they lie in its file. Cost: one pass; `bytes` is not kept.
    pub fn pack(
        format: Format,
        bytes: &[u8],
        out_features: usize,
        in_features: usize,
    ) -> Result<Self, PackError> {
        let row_bytes = format.check(bytes.len(), out_features, in_features)?;
        // `check` bounded the size by what the caller holds; the packed form is at most 4 times that.
        let mut weight = Self {
            format,
            out_features,
            in_features,
            quants: Plane::none(),
            scales: Plane::none(),
            mins: Plane::none(),
        };
        dispatch_format!(format, int pack_int, float pack_float, (&mut weight, bytes, row_bytes));
        Ok(weight)
    }

    /// One weight that computes what `parts` compute, outputs back to back. They must share format and `in_features`.
    pub fn concat(parts: &[&PackedWeight]) -> Result<Self, PackError> {
        let first = parts.first().ok_or(PackError::Nothing)?;
        for part in parts {
            if part.format != first.format || part.in_features != first.in_features {
                return Err(PackError::Mixed {
                    first_format: first.format,
                    first_in_features: first.in_features,
                    other_format: part.format,
                    other_in_features: part.in_features,
                });
            }
        }
        let out_features: usize = parts.iter().map(|part| part.out_features).sum();
        let num_tiles = out_features.div_ceil(TILE);
        let mut whole = Self {
            format: first.format,
            out_features,
            in_features: first.in_features,
            quants: first.quants.zeroed_like(num_tiles),
            scales: first.scales.zeroed_like(num_tiles),
            mins: first.mins.zeroed_like(num_tiles),
        };
        let mut feature = 0;
        for part in parts {
            whole.quants.copy_features(feature, &part.quants, part.out_features);
            whole.scales.copy_features(feature, &part.scales, part.out_features);
            whole.mins.copy_features(feature, &part.mins, part.out_features);
            feature += part.out_features;
        }
        Ok(whole)
    }

    /// The format of the file that it came from.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of the matrix: features of the product.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Columns of the matrix: features of the product's input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Tiles of [`TILE`] output features: what threads share.
    pub fn num_tiles(&self) -> usize {
        self.out_features.div_ceil(TILE)
    }

    /// Output features of a tile; the last tile may have fewer.
    pub fn tile_out_features(&self) -> usize {
        TILE
    }

    /// Memory held.
    pub fn num_bytes(&self) -> usize {
        self.quants.num_bytes() + self.scales.num_bytes() + self.mins.num_bytes()
    }

    /// True if the input must be quantised ([`crate::quantize`]), false if it stays f32.
    pub fn needs_quantized_input(&self) -> bool {
        fn int<F: IntFormat>() -> bool {
            true
        }
        fn float<F: FloatFormat>() -> bool {
            false
        }
        dispatch_format!(self.format, int int, float float, ())
    }

    /// Row `row` as f32, to the bit what dequantising the file's row gives: the embedding of a token.
    ///
    /// Panics if `row` is no row or `out` not `in_features` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.out_features, "row {row} of {}", self.out_features);
        assert_eq!(out.len(), self.in_features, "length of a row");
        dispatch_format!(self.format, int unpack_int_row, float unpack_float_row, (self, row, out));
    }

    /// The planes of tile `tile`.
    pub(crate) fn tile(&self, tile: usize) -> Tile<'_> {
        Tile { quants: self.quants.tile(tile), scales: self.scales.tile(tile), mins: self.mins.tile(tile) }
    }
}

/// Bytes of a kept scale or minimum.
fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// Vectors of quants of one group.
pub(crate) const fn group_vectors<F: IntFormat>() -> usize {
    if F::NIBBLES { F::GROUP / (2 * QUAD) } else { F::GROUP / QUAD }
}

fn pack_int<F: IntFormat>(weight: &mut PackedWeight, bytes: &[u8], row_bytes: usize) {
    let num_groups = weight.in_features / F::GROUP;
    let num_tiles = weight.num_tiles();
    weight.quants = Plane::zeroed(num_tiles, num_groups * group_vectors::<F>(), QUAD);
    weight.scales = Plane::zeroed(num_tiles, num_groups, scale_bytes::<F>());
    if F::HAS_MIN {
        weight.mins = Plane::zeroed(num_tiles, num_groups, scale_bytes::<F>());
    }
    let block_groups = F::BLOCK_ELEMENTS / F::GROUP;
    let mut block = UnpackedBlock::new();
    for (row, source) in bytes.chunks_exact(row_bytes).enumerate() {
        let (tile, lane) = (row / TILE, row % TILE);
        for (block_idx, source) in source.chunks_exact(F::BLOCK_BYTES).enumerate() {
            F::unpack(source, &mut block);
            let first_group = block_idx * block_groups;
            let group_bytes = group_vectors::<F>() * QUAD * TILE;
            let quants = &mut weight.quants.tile_mut(tile)[first_group * group_bytes..];
            put_quants::<F>(&block, lane, &mut quants[..block_groups * group_bytes]);
            let scales = &block.scales[..block_groups];
            put_scales::<F>(
                scales,
                lane,
                &mut weight.scales.tile_mut(tile)[first_group * TILE * scale_bytes::<F>()..],
            );
            if F::HAS_MIN {
                let mins = &block.mins[..block_groups];
                put_scales::<F>(
                    mins,
                    lane,
                    &mut weight.mins.tile_mut(tile)[first_group * TILE * scale_bytes::<F>()..],
                );
            }
        }
    }
}

/// Writes the quants of a block into lane `lane` of the vectors of its groups.
fn put_quants<F: IntFormat>(block: &UnpackedBlock, lane: usize, vectors: &mut [u8]) {
    let groups = block.quants.chunks_exact(F::GROUP);
    for (quants, vectors) in groups.zip(vectors.chunks_exact_mut(group_vectors::<F>() * QUAD * TILE)) {
        for (index, vector) in vectors.chunks_exact_mut(QUAD * TILE).enumerate() {
            let piece = &mut vector[lane * QUAD..][..QUAD];
            let low = &quants[index * QUAD..][..QUAD];
            if F::NIBBLES {
                let high = &quants[F::GROUP / 2 + index * QUAD..][..QUAD];
                for ((byte, low), high) in piece.iter_mut().zip(low).zip(high) {
                    *byte = low | (high << 4);
                }
            } else {
                piece.copy_from_slice(low);
            }
        }
    }
}

/// Writes the scales (or minima) of a block into lane `lane`.
fn put_scales<F: IntFormat>(scales: &[u32], lane: usize, vectors: &mut [u8]) {
    let width = scale_bytes::<F>();
    for (bits, vector) in scales.iter().zip(vectors.chunks_exact_mut(TILE * width)) {
        vector[lane * width..][..width].copy_from_slice(&bits.to_le_bytes()[..width]);
    }
}

fn unpack_int_row<F: IntFormat>(weight: &PackedWeight, row: usize, out: &mut [f32]) {
    let (tile, lane) = (row / TILE, row % TILE);
    let bits = |piece: &[u8]| {
        let mut bytes = [0; 4];
        bytes[..piece.len()].copy_from_slice(piece);
        u32::from_le_bytes(bytes)
    };
    let mut pieces = weight.quants.lane(tile, lane);
    let mut scales = weight.scales.lane(tile, lane).map(bits);
    let mut mins = weight.mins.lane(tile, lane).map(bits);
    for values in out.chunks_exact_mut(F::GROUP) {
        let scale = scales.next().unwrap_or_default();
        let min = mins.next().unwrap_or_default();
        for index in 0..group_vectors::<F>() {
            for (element, byte) in pieces.next().unwrap_or_default().iter().enumerate() {
                let at = index * QUAD + element;
                if F::NIBBLES {
                    values[at] = F::value(byte & 15, scale, min);
                    values[F::GROUP / 2 + at] = F::value(byte >> 4, scale, min);
                } else {
                    values[at] = F::value(*byte, scale, min);
                }
            }
        }
    }
}

fn pack_float<F: FloatFormat>(weight: &mut PackedWeight, bytes: &[u8], row_bytes: usize) {
    weight.quants = Plane::zeroed(weight.num_tiles(), weight.in_features, F::ELEMENT_BYTES);
    for (tile, rows) in bytes.chunks(row_bytes * TILE).enumerate() {
        let vectors = weight.quants.tile_mut(tile);
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let elements = row.chunks_exact(F::ELEMENT_BYTES);
            for (element, vector) in elements.zip(vectors.chunks_exact_mut(F::ELEMENT_BYTES * TILE)) {
                vector[lane * F::ELEMENT_BYTES..][..F::ELEMENT_BYTES].copy_from_slice(element);
            }
        }
    }
}

fn unpack_float_row<F: FloatFormat>(weight: &PackedWeight, row: usize, out: &mut [f32]) {
    for (piece, value) in weight.quants.lane(row / TILE, row % TILE).zip(out) {
        *value = F::value(piece);
    }
}
