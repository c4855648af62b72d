//! Expands packed weights to the form that kernels multiply: bytes or nibbles, and scales of binary16 or binary32.
//!
//! Functions are loops over bytes of fixed-size arrays, which the compiler turns into vectors of each instruction set.

use std::cell::RefCell;
use std::ops::Range;

use super::kernels::run_vectors;
use super::quantized::VECTOR_BYTES;
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::pack::codes::{
    RUN, code_bits, factors_at, has_ready_quants, record_lane_bytes, scale_bytes,
};
use trunkline_kernels_core::pack::int::{Codes, IntFormat, SIGN_OFFSET, Scales, exponent_value};
use trunkline_kernels_core::pack::{TILE, Tile};
use trunkline_kernels_core::vector::{ByteLanes, LANES, simd_entry};

/// Elements of a row that are expanded at once: whole blocks of every format. Their expanded form, 12 KiB, stays in the
/// first-level cache beside the rows that it multiplies.
const SPAN: usize = 512;
const RUNS: usize = SPAN / RUN;
const RUN_BYTES: usize = RUN * TILE;
/// The most groups of a span.
const GROUPS: usize = SPAN / 16;
/// Distance in bytes at which codes are prefetched.
const PREFETCH_BYTES: usize = 2 << 10;

const _: () = assert!(LANES == TILE);

/// True if the planes of the scales are those that kernels multiply.
const fn has_ready_scales<F: IntFormat>() -> bool {
    !matches!(F::CODES, Codes::Words(_)) && record_lane_bytes::<F>() == 0
}

/// Returns true if weights of this format are not what kernels multiply.
pub(super) const fn is_expanded<F: IntFormat>() -> bool {
    !has_ready_quants::<F>() || !has_ready_scales::<F>()
}

/// Panics unless the planes that kernels multiply have `in_features` elements.
pub(super) fn check_planes<F: IntFormat>(tile: &Tile<'_>, in_features: usize) {
    assert!(tile.quants.len() >= in_features / RUN * code_bits::<F>() * VECTOR_BYTES, "quants");
    let (width, num_groups) = (scale_bytes::<F>(), in_features / F::GROUP);
    assert!(tile.scales.len() >= num_groups * TILE * width, "scales");
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * width, "minima");
}

/// A span of a tile in the form that kernels multiply.
#[repr(align(64))]
pub(super) struct Expanded {
    quants: [u8; RUNS * RUN_BYTES],
    scales: [[f32; TILE]; GROUPS],
    mins: [[f32; TILE]; GROUPS],
}

thread_local! {
    /// The memory of a span. It is static so that steps do not allocate.
    static EXPANDED: RefCell<Expanded> = const {
        RefCell::new(Expanded { quants: [0; RUNS * RUN_BYTES], scales: [[0.0; TILE]; GROUPS], mins: [[0.0; TILE]; GROUPS] })
    };
}

impl Expanded {
    /// Calls `multiply` for each span of `in_features` columns, in order, with the expanded weights.
    ///
    /// Panics if the planes of `tile` are shorter.
    pub(super) fn each_span<F: IntFormat>(
        isa: Isa,
        tile: &Tile<'_>,
        in_features: usize,
        mut multiply: impl FnMut(Range<usize>, &Tile<'_>),
    ) {
        EXPANDED.with_borrow_mut(|expanded| {
            for start in (0..in_features).step_by(SPAN) {
                let span = start..in_features.min(start + SPAN);
                // SAFETY: there are no conditions.
                unsafe { expand::<F>(isa, tile, span.clone(), expanded) };
                let weights = expanded.tile::<F>(tile, &span);
                multiply(span, &weights);
            }
        });
    }

    /// The form of a span: expanded, or from the planes of the tile where they are ready.
    fn tile<'a, F: IntFormat>(&'a self, tile: &Tile<'a>, span: &Range<usize>) -> Tile<'a> {
        let quants = if has_ready_quants::<F>() {
            let run_bytes = run_vectors::<F>() * VECTOR_BYTES;
            &tile.quants[span.start / RUN * run_bytes..span.end / RUN * run_bytes]
        } else {
            &self.quants[..]
        };
        if !has_ready_scales::<F>() {
            return Tile { quants, scales: bytes_of(&self.scales), mins: bytes_of(&self.mins) };
        }
        let width = TILE * scale_bytes::<F>();
        let groups = span.start / F::GROUP * width..span.end / F::GROUP * width;
        let mins = if F::HAS_MIN { &tile.mins[groups.clone()] } else { &[] };
        Tile { quants, scales: &tile.scales[groups], mins }
    }
}

fn bytes_of(floats: &[[f32; TILE]; GROUPS]) -> &[u8] {
    // SAFETY: floats have no padding, and every bit pattern of a byte is valid.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

#[inline(always)]
unsafe fn expand_generic<L: ByteLanes, F: IntFormat>(
    tile: &Tile<'_>,
    span: Range<usize>,
    into: &mut Expanded,
) {
    match F::CODES {
        Codes::Bits(4 | 8) => {}
        // SAFETY: the caller guarantees the instruction set.
        Codes::Words(_) => return unsafe { expand_words::<L, F>(tile, span, into) },
        _ => {
            let run_bytes = code_bits::<F>() * VECTOR_BYTES;
            let runs = &tile.quants[span.start / RUN * run_bytes..span.end / RUN * run_bytes];
            for (from, to) in runs
                .chunks_exact(run_bytes)
                .zip(into.quants.chunks_exact_mut(run_vectors::<F>() * VECTOR_BYTES))
            {
                // SAFETY: the caller guarantees the instruction set; prefetching reads nothing.
                unsafe {
                    for line in (0..run_bytes).step_by(VECTOR_BYTES) {
                        L::prefetch_near(from.as_ptr().wrapping_add(line + PREFETCH_BYTES));
                    }
                    match F::CODES {
                        Codes::Levels(levels) => look_up::<L>(levels, from, to),
                        _ => expand_run::<F>(from, to),
                    }
                }
            }
        }
    }
    if !has_ready_scales::<F>() {
        let record_bytes = record_lane_bytes::<F>() * TILE;
        let blocks = span.start / F::BLOCK_ELEMENTS..span.end / F::BLOCK_ELEMENTS;
        let groups = F::BLOCK_ELEMENTS / F::GROUP;
        let records = &tile.scales[blocks.start * record_bytes..blocks.end * record_bytes];
        let into = into.scales.chunks_exact_mut(groups).zip(into.mins.chunks_exact_mut(groups));
        for (record, (scales, mins)) in records.chunks_exact(record_bytes).zip(into) {
            // SAFETY: the caller guarantees the instruction set.
            unsafe { expand_record::<L, F>(record, scales, mins) };
        }
    }
}

simd_entry! {
    /// Expands the columns `span` of a tile. Panics if the planes of `tile` are shorter.
    ///
    /// # Safety
    /// There are no conditions. The macro has no safe functions with a type parameter.
    unsafe fn expand<F: IntFormat> = expand_generic(tile: &Tile<'_>, span: Range<usize>, into: &mut Expanded);
}

#[inline(always)]
unsafe fn look_up<L: ByteLanes>(levels: &[u8; 16], from: &[u8], to: &mut [u8]) {
    let from: &[u8; RUN_BYTES / 2] = from.try_into().expect("a run of nibbles");
    let to: &mut [u8; RUN_BYTES] = to.try_into().expect("a run of bytes");
    // SAFETY: the arrays hold the vectors, and the caller guarantees the instruction set.
    unsafe {
        let table = L::load_table(levels.as_ptr());
        for at in (0..from.len()).step_by(VECTOR_BYTES) {
            let [low, high] = L::look_up(table, L::load_bytes(from.as_ptr().add(at)));
            L::store_bytes(low, to.as_mut_ptr().add(at));
            L::store_bytes(high, to.as_mut_ptr().add(at + from.len()));
        }
    }
}

/// Expands the codes of a run.
#[inline(always)]
fn expand_run<F: IntFormat>(from: &[u8], to: &mut [u8]) {
    let mut quads = to.as_chunks_mut::<VECTOR_BYTES>().0.iter_mut();
    let mut put = |quad: [u8; VECTOR_BYTES]| {
        if let Some(to) = quads.next() {
            *to = quad;
        }
    };
    if F::NIBBLES {
        put(two_quads::<F, 0>(from));
        put(two_quads::<F, 1>(from));
        put(two_quads::<F, 2>(from));
        put(two_quads::<F, 3>(from));
    } else {
        put(quad::<F, 0>(from));
        put(quad::<F, 1>(from));
        put(quad::<F, 2>(from));
        put(quad::<F, 3>(from));
        put(quad::<F, 4>(from));
        put(quad::<F, 5>(from));
        put(quad::<F, 6>(from));
        put(quad::<F, 7>(from));
    }
}

/// Returns the codes of a quad of the first half of a run, and in the upper nibbles those of the second half.
#[inline(always)]
fn two_quads<F: IntFormat, const QUAD_INDEX: usize>(from: &[u8]) -> [u8; VECTOR_BYTES] {
    let (low, high) = match QUAD_INDEX {
        0 => (quad::<F, 0>(from), quad::<F, 4>(from)),
        1 => (quad::<F, 1>(from), quad::<F, 5>(from)),
        2 => (quad::<F, 2>(from), quad::<F, 6>(from)),
        _ => (quad::<F, 3>(from), quad::<F, 7>(from)),
    };
    std::array::from_fn(|at| low[at] | high[at] << 4)
}

/// Returns the codes of a quad.
#[inline(always)]
fn quad<F: IntFormat, const INDEX: usize>(from: &[u8]) -> [u8; VECTOR_BYTES] {
    let (mut quad, bits) = ([0; VECTOR_BYTES], code_bits::<F>());
    let mut at = 0;
    for width in [4, 2, 1] {
        if bits & width != 0 {
            let vector = &from[(at + INDEX % width) * VECTOR_BYTES..][..VECTOR_BYTES];
            for (code, byte) in quad.iter_mut().zip(vector) {
                *code |= (byte >> (INDEX / width * width) & ((1 << width) - 1)) << at;
            }
            at += width;
        }
    }
    quad
}

/// Expands the scales and minima of a block.
#[inline(always)]
unsafe fn expand_record<L: ByteLanes, F: IntFormat>(
    record: &[u8],
    scales: &mut [[f32; TILE]],
    mins: &mut [[f32; TILE]],
) {
    let (bytes, _) = record.as_chunks::<TILE>();
    let (halves, _) = record[factors_at::<F>()..].as_chunks::<{ 2 * TILE }>();
    let num_groups = scales.len();
    // SAFETY: the arrays have 16 elements, and the caller guarantees the instruction set.
    unsafe {
        let factor = |index: usize| L::load_f16(halves[index].as_ptr().cast());
        let number = |index: usize| L::load_unsigned(bytes[index].as_ptr());
        let nibbles = |of: fn(u8) -> u8, index: usize| L::load_unsigned(bytes[index].map(of).as_ptr());
        for (group, (scales, mins)) in scales.iter_mut().zip(mins).enumerate() {
            let scale = match F::SCALES {
                Scales::OfBlock => factor(0),
                Scales::Exponents => L::load(bytes[group].map(exponent_value).as_ptr()),
                Scales::SignedBytes => factor(0).mul(number(group).sub(L::splat(SIGN_OFFSET))),
                Scales::Nibbles => factor(0).mul(nibbles(|byte| byte & 15, group)),
                _ => factor(0).mul(number(group)),
            };
            scale.store(scales.as_mut_ptr());
            if F::HAS_MIN {
                let min = match F::SCALES {
                    Scales::Nibbles => nibbles(|byte| byte >> 4, group),
                    _ => number(num_groups + group),
                };
                factor(1).mul(L::splat(-1.0)).mul(min).store(mins.as_mut_ptr());
            }
        }
    }
}

/// Expands whole blocks of words.
#[inline(always)]
unsafe fn expand_words<L: ByteLanes, F: IntFormat>(tile: &Tile<'_>, span: Range<usize>, into: &mut Expanded) {
    let tile_bytes = F::BLOCK_BYTES * TILE;
    let blocks = span.start / F::BLOCK_ELEMENTS * tile_bytes..span.end / F::BLOCK_ELEMENTS * tile_bytes;
    let quants = F::BLOCK_ELEMENTS / RUN * run_vectors::<F>() * VECTOR_BYTES;
    let (all_quants, all_scales) = (&mut into.quants, &mut into.scales);
    let into =
        all_quants.chunks_exact_mut(quants).zip(all_scales.chunks_exact_mut(F::BLOCK_ELEMENTS / F::GROUP));
    for (block, (quants, scales)) in tile.quants[blocks].chunks_exact(tile_bytes).zip(into) {
        // SAFETY: the caller guarantees the instruction set; prefetching reads nothing.
        unsafe {
            for line in (0..tile_bytes).step_by(VECTOR_BYTES) {
                L::prefetch_near(block.as_ptr().wrapping_add(line + PREFETCH_BYTES));
            }
            F::expand::<L>(block, quants, scales);
        }
    }
}
