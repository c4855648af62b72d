//! The planes of integer formats: how a block of one output feature is written to a lane of a tile, and read back.
//!
//! Codes of `n` bits lie in runs of 32 elements of a row, which is 8 quads. A run takes `n` vectors of 16 lanes of 4
//! bytes: for each of the powers of two 8, 4, 2 and 1 whose sum is `n`, as many vectors hold that number of bits of
//! each code, the lowest bits first. Vector `v` of `w` holds the quads `v`, `v + w`, `v + 2 w`, ..., lowest bits first.
//! Codes of 8 bits are thus bytes, and those of 4 bits nibbles, the first half of a run in the low ones.
//!
//! Blocks of [`Codes::Words`] lie in vectors of one word of each lane, then 2 bytes of each lane if they are left.
//!
//! Scales that are not floats lie in a record for each block: `[group][lane]` bytes of scales, the same of minima, and
//! `[lane]` binary16 factors of scales, then of minima.

use std::ops::Range;

use super::int::{Codes, IntFormat, MAX_BLOCK_BYTES, Scales, UnpackedBlock};
use super::plane::PlaneShape;
use super::{QUAD, TILE};

/// Elements of a row whose codes lie together.
pub const RUN: usize = 32;
const VECTOR_BYTES: usize = TILE * QUAD;

/// Bits of a code, which is the number of vectors of a run. Expanded blocks have bytes.
pub const fn code_bits<F: IntFormat>() -> usize {
    match F::CODES {
        Codes::Bits(bits) => bits,
        Codes::Levels(_) => 4,
        Codes::Words(_) => 8,
    }
}

/// True if kernels read the codes where packed weights hold them, and not in memory to which they are expanded.
pub const fn has_ready_quants<F: IntFormat>() -> bool {
    matches!(F::CODES, Codes::Bits(4 | 8))
}

/// The powers of two whose sum is the bits of a code, and the bits below each.
fn fields(bits: usize) -> impl Iterator<Item = Field> {
    let mut at = 0;
    [8, 4, 2, 1].into_iter().filter(move |width| bits & width != 0).map(move |width| {
        at += width;
        Field { width, at: at - width }
    })
}

/// `width` bits of each code, from bit `at` on. Their first vector is vector `at` of a run.
#[derive(Clone, Copy)]
struct Field {
    width: usize,
    at: usize,
}

impl Field {
    /// The lowest `width` bits of each byte of a quad.
    fn mask(self) -> u32 {
        u32::from_ne_bytes([u8::MAX >> (8 - self.width); QUAD])
    }

    /// The quads of vector `vector` of this field, and the lowest bit of each in the vector.
    fn quads(self, vector: usize) -> impl Iterator<Item = (usize, usize)> {
        (vector..RUN / QUAD).step_by(self.width).enumerate().map(move |(at, quad)| (quad, at * self.width))
    }
}

const fn block_groups<F: IntFormat>() -> usize {
    F::BLOCK_ELEMENTS / F::GROUP
}

/// The part of a block's record that holds the scales of groups, in bytes per lane, and the number of factors.
const fn record_parts<F: IntFormat>() -> (usize, usize) {
    let kinds = if F::HAS_MIN { 2 } else { 1 };
    match F::SCALES {
        Scales::Half | Scales::Single => (0, 0),
        Scales::Bytes | Scales::SignedBytes => (kinds * block_groups::<F>(), kinds),
        Scales::Nibbles => (block_groups::<F>(), kinds),
        Scales::Exponents => (block_groups::<F>(), 0),
        Scales::OfBlock => (0, 1),
    }
}

/// Bytes of a lane in a block's record; 0 for scales that are floats.
pub const fn record_lane_bytes<F: IntFormat>() -> usize {
    let (groups, factors) = record_parts::<F>();
    groups + 2 * factors
}

/// The offset of the factors in a block's record.
pub const fn factors_at<F: IntFormat>() -> usize {
    record_parts::<F>().0 * TILE
}

/// Bytes of a scale that is a float.
pub const fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// The shapes of the planes of quants, scales and minima.
pub(super) fn plane_shapes<F: IntFormat>(num_tiles: usize, in_features: usize) -> [PlaneShape; 3] {
    let plane = |vectors_per_tile, lane_bytes| PlaneShape { num_tiles, vectors_per_tile, lane_bytes };
    if let Codes::Words(_) = F::CODES {
        let blocks = plane(in_features / F::BLOCK_ELEMENTS, F::BLOCK_BYTES);
        return [blocks, PlaneShape::NONE, PlaneShape::NONE];
    }
    let codes = plane(in_features / RUN * code_bits::<F>(), QUAD);
    if record_lane_bytes::<F>() > 0 {
        let records = plane(in_features / F::BLOCK_ELEMENTS, record_lane_bytes::<F>());
        return [codes, records, PlaneShape::NONE];
    }
    let floats = plane(in_features / F::GROUP, scale_bytes::<F>());
    [codes, floats, if F::HAS_MIN { floats } else { PlaneShape::NONE }]
}

/// Bytes of a block's codes in a tile.
const fn block_bytes<F: IntFormat>() -> usize {
    F::BLOCK_ELEMENTS / RUN * code_bits::<F>() * VECTOR_BYTES
}

/// A lane of a tile, whose planes are `quants`, `scales` and `mins`.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub(super) index: usize,
}

impl Lane {
    /// The bytes of this lane in vector `vector` of a run.
    fn quad(self, vector: usize) -> Range<usize> {
        let start = vector * VECTOR_BYTES + self.index * QUAD;
        start..start + QUAD
    }

    /// Writes block `block` of the row. Returns false if a scale or minimum is not finite.
    pub(super) fn put<F: IntFormat>(
        self,
        block: usize,
        source: &[u8],
        unpacked: &mut UnpackedBlock,
        [quants, scales, mins]: [&mut [u8]; 3],
    ) -> bool {
        F::unpack(source, unpacked);
        if let Codes::Words(_) = F::CODES {
            let mut bytes = [0; MAX_BLOCK_BYTES];
            let bytes = &mut bytes[..F::BLOCK_BYTES];
            bytes.copy_from_slice(source);
            F::to_words(bytes);
            for (at, part) in self.word_parts::<F>(block) {
                quants[at].copy_from_slice(&bytes[part]);
            }
            return unpacked.is_finite::<F>();
        }
        self.put_codes::<F>(unpacked, &mut quants[block * block_bytes::<F>()..]);
        if record_lane_bytes::<F>() > 0 {
            let bytes = record_lane_bytes::<F>() * TILE;
            self.put_record::<F>(unpacked, &mut scales[block * bytes..][..bytes]);
        } else {
            self.put_floats::<F>(&unpacked.scales, block, scales);
            if F::HAS_MIN {
                self.put_floats::<F>(&unpacked.mins, block, mins);
            }
        }
        unpacked.is_finite::<F>()
    }

    /// The ranges of block `block` in the plane of words, and in the block.
    fn word_parts<F: IntFormat>(self, block: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
        (0..F::BLOCK_BYTES).step_by(QUAD).map(move |start| {
            let len = QUAD.min(F::BLOCK_BYTES - start);
            let at = (block * F::BLOCK_BYTES + start) * TILE + self.index * len;
            (at..at + len, start..start + len)
        })
    }

    /// Writes the codes of a block to its runs, which `runs` begins with.
    fn put_codes<F: IntFormat>(self, unpacked: &UnpackedBlock, runs: &mut [u8]) {
        let runs = runs.chunks_exact_mut(code_bits::<F>() * VECTOR_BYTES);
        for (codes, run) in unpacked.codes[..F::BLOCK_ELEMENTS].chunks_exact(RUN).zip(runs) {
            let (quads, _) = codes.as_chunks::<QUAD>();
            for field in fields(code_bits::<F>()) {
                for vector in 0..field.width {
                    let bits = |(quad, shift): (usize, usize)| {
                        (u32::from_le_bytes(quads[quad]) >> field.at & field.mask()) << shift
                    };
                    let word = field.quads(vector).map(bits).fold(0, |word, bits| word | bits);
                    run[self.quad(field.at + vector)].copy_from_slice(&word.to_le_bytes());
                }
            }
        }
    }

    fn put_record<F: IntFormat>(self, unpacked: &UnpackedBlock, record: &mut [u8]) {
        let groups = block_groups::<F>();
        // The bits of scales in records fit in a byte.
        for group in 0..groups {
            let (scale, min) = (unpacked.scales[group] as u8, unpacked.mins[group] as u8);
            match F::SCALES {
                Scales::Nibbles => record[group * TILE + self.index] = scale | min << 4,
                Scales::OfBlock => {}
                _ => {
                    record[group * TILE + self.index] = scale;
                    if F::HAS_MIN {
                        record[(groups + group) * TILE + self.index] = min;
                    }
                }
            }
        }
        let factors = record[factors_at::<F>()..].chunks_exact_mut(2 * TILE);
        for (factor, bits) in factors.zip(unpacked.factors) {
            factor[2 * self.index..][..2].copy_from_slice(&bits.to_le_bytes()[..2]);
        }
    }

    #[inline(always)]
    fn put_floats<F: IntFormat>(self, bits: &[u32], block: usize, plane: &mut [u8]) {
        let width = scale_bytes::<F>();
        let vectors = plane[block * block_groups::<F>() * TILE * width..].chunks_exact_mut(TILE * width);
        for (bits, vector) in bits[..block_groups::<F>()].iter().zip(vectors) {
            vector[self.index * width..][..width].copy_from_slice(&bits.to_le_bytes()[..width]);
        }
    }

    /// Reads block `block` of the row.
    pub(super) fn get<F: IntFormat>(
        self,
        block: usize,
        [quants, scales, mins]: [&[u8]; 3],
        unpacked: &mut UnpackedBlock,
    ) {
        if let Codes::Words(_) = F::CODES {
            let mut bytes = [0; MAX_BLOCK_BYTES];
            let bytes = &mut bytes[..F::BLOCK_BYTES];
            for (at, part) in self.word_parts::<F>(block) {
                bytes[part].copy_from_slice(&quants[at]);
            }
            F::from_words(bytes);
            return F::unpack(bytes, unpacked);
        }
        self.get_codes::<F>(&quants[block * block_bytes::<F>()..], unpacked);
        if record_lane_bytes::<F>() > 0 {
            let bytes = record_lane_bytes::<F>() * TILE;
            self.get_record::<F>(&scales[block * bytes..][..bytes], unpacked);
        } else {
            self.get_floats::<F>(block, scales, &mut unpacked.scales);
            if F::HAS_MIN {
                self.get_floats::<F>(block, mins, &mut unpacked.mins);
            }
        }
    }

    fn get_codes<F: IntFormat>(self, runs: &[u8], unpacked: &mut UnpackedBlock) {
        let (words, _) = runs.as_chunks::<QUAD>();
        let runs = words.chunks_exact(code_bits::<F>() * TILE);
        for (codes, run) in unpacked.codes[..F::BLOCK_ELEMENTS].chunks_exact_mut(RUN).zip(runs) {
            let (quads, _) = codes.as_chunks_mut::<QUAD>();
            quads.fill([0; QUAD]);
            for field in fields(code_bits::<F>()) {
                for vector in 0..field.width {
                    let word = u32::from_le_bytes(run[(field.at + vector) * TILE + self.index]);
                    for (quad, shift) in field.quads(vector) {
                        let bits = (word >> shift & field.mask()) << field.at;
                        quads[quad] = (u32::from_le_bytes(quads[quad]) | bits).to_le_bytes();
                    }
                }
            }
        }
    }

    fn get_record<F: IntFormat>(self, record: &[u8], unpacked: &mut UnpackedBlock) {
        let groups = block_groups::<F>();
        for group in 0..groups {
            let byte = |at: usize| u32::from(record[at * TILE + self.index]);
            match F::SCALES {
                Scales::Nibbles => {
                    (unpacked.scales[group], unpacked.mins[group]) = (byte(group) & 15, byte(group) >> 4);
                }
                Scales::OfBlock => {}
                _ => {
                    unpacked.scales[group] = byte(group);
                    if F::HAS_MIN {
                        unpacked.mins[group] = byte(groups + group);
                    }
                }
            }
        }
        let factors = record[factors_at::<F>()..].chunks_exact(2 * TILE);
        for (factor, bits) in factors.zip(&mut unpacked.factors) {
            let bytes = &factor[2 * self.index..][..2];
            *bits = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        }
    }

    fn get_floats<F: IntFormat>(self, block: usize, plane: &[u8], bits: &mut [u32]) {
        let width = scale_bytes::<F>();
        let vectors = plane[block * block_groups::<F>() * TILE * width..].chunks_exact(TILE * width);
        for (bits, vector) in bits[..block_groups::<F>()].iter_mut().zip(vectors) {
            let mut bytes = [0; 4];
            bytes[..width].copy_from_slice(&vector[self.index * width..][..width]);
            *bits = u32::from_le_bytes(bytes);
        }
    }
}
