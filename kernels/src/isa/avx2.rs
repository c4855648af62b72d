//! Kernels for AVX2 with FMA and F16C.
//!
//! The 16 output features of a tile are two registers of 8 lanes, computed one after the other. The sums of up to 4
//! rows stay in registers. With 4-bit weights, `vpmaddubsw` adds pairs in 16 bits, which a group of 32 cannot overflow
//! (8 quads of 2 * 15 * 128). 8-bit weights would overflow, so even and odd bytes are widened for `vpmaddwd`.

use std::arch::x86_64::*;

use crate::isa::x86::prefetch;
use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, TileOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{GROUP_QUADS, QUANT_GROUP, QuantGroup, QuantizedBlock};

pub(crate) use super::x86::quantize_rows;

/// Number of lanes per register.
const LANES: usize = 8;
/// Bytes of a vector of a tile, which is two registers.
pub(super) const VECTOR: usize = 64;
/// The most rows whose sums are kept in registers.
const MAX_ROWS: usize = 4;

/// Calls `$function::<F, R>` with the constant `R` equal to `$rows`, 1 to 4.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1>($($argument),*),
            2 => $function::<$format, 2>($($argument),*),
            3 => $function::<$format, 3>($($argument),*),
            4 => $function::<$format, 4>($($argument),*),
            rows => unreachable!("a part of {rows} rows"),
        }
    };
}
pub(super) use dispatch_rows;

/// A part of a product: up to [`MAX_ROWS`] rows and half a tile.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) first_row: usize,
    /// First lane in the tile, 0 or 8.
    pub(super) first_lane: usize,
}

/// Calls `kernel(part, rows)` for every part with a lane in use.
pub(super) fn for_each_part(num_rows: usize, num_lanes: usize, mut kernel: impl FnMut(Part, usize)) {
    for first_lane in (0..num_lanes).step_by(LANES) {
        for first_row in (0..num_rows).step_by(MAX_ROWS) {
            kernel(Part { first_row, first_lane }, MAX_ROWS.min(num_rows - first_row));
        }
    }
}

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The CPU must have the features, and `out` must be writable for the block's rows and `num_lanes` lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * scale_bytes::<F>());
    block.check(in_features);
    for_each_part(block.num_rows(), out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the caller guarantees the rest.
        unsafe { dispatch_rows!(rows, int_part::<F>(in_features, tile, block, out, part)) }
    });
}

/// # Safety
/// The conditions are those of [`linear_int`], which has checked the lengths. The part must have `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int_part<F: IntFormat, const R: usize>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    let mut acc = [_mm256_setzero_ps(); R];
    let parts = QUANT_GROUP / F::GROUP;
    // SAFETY: groups, rows and lanes are within the checked lengths.
    unsafe {
        let groups = block.groups.as_ptr().add(part.first_row * block.row_stride);
        for (row, acc) in acc.iter_mut().enumerate() {
            *acc = _mm256_set1_ps(*block.starts.as_ptr().add(part.first_row + row));
        }
        for x_group in 0..in_features / QUANT_GROUP {
            let x: [*const QuantGroup; R] =
                std::array::from_fn(|row| groups.add(row * block.row_stride + x_group));
            let vectors = x_group * parts * group_vectors::<F>();
            let quants = tile.quants.as_ptr().add(vectors * VECTOR + part.first_lane * QUAD);
            for w_part in 0..parts {
                let dots = dots::<F, R>(quants, &x, w_part);
                let at = ((x_group * parts + w_part) * TILE + part.first_lane) * scale_bytes::<F>();
                let scale = load_scales::<F>(tile.scales.as_ptr().add(at));
                for row in 0..R {
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps((*x[row]).scale));
                    acc[row] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dots[row]), acc[row]);
                }
            }
            if F::HAS_MIN {
                let at = (x_group * TILE + part.first_lane) * scale_bytes::<F>();
                let min = load_scales::<F>(tile.mins.as_ptr().add(at));
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = _mm256_fmadd_ps(min, _mm256_set1_ps((*x).sum), *acc);
                }
            }
        }
        store(&acc, out, part);
    }
}

/// Computes the dot products of weights, minus the zero point, and quants, for the weights' group `part` within the
/// groups `x`.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of the weights for `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dots<F: IntFormat, const R: usize>(
    quants: *const u8,
    x: &[*const QuantGroup; R],
    part: usize,
) -> [__m256i; R] {
    // For nibbles, sums of pairs in 16 bits; otherwise sums in 32 bits.
    let mut sums = [_mm256_setzero_si256(); R];
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        for quad in part * F::GROUP / QUAD..(part + 1) * F::GROUP / QUAD {
            let weights = load_quad::<F>(quants, quad);
            for (sum, x) in sums.iter_mut().zip(x) {
                let product = products::<F>(weights, broadcast_quad((**x).low.as_ptr().add(quad * QUAD)));
                *sum = if F::NIBBLES {
                    _mm256_add_epi16(*sum, product)
                } else {
                    _mm256_add_epi32(*sum, product)
                };
            }
        }
        for (sum, x) in sums.iter_mut().zip(x) {
            if F::NIBBLES {
                *sum = _mm256_madd_epi16(*sum, _mm256_set1_epi16(1));
            }
            let group = &**x;
            if group.top_quad() * QUAD / F::GROUP == part {
                *sum = _mm256_add_epi32(*sum, high_dot::<F>(quants, group));
            }
            if F::ZERO_POINT != 0 {
                let negated_sum = match (F::GROUP < QUANT_GROUP, part) {
                    (false, _) => group.negated_sum,
                    (true, 0) => group.negated_half_sum,
                    (true, _) => group.negated_sum - group.negated_half_sum,
                };
                let shift = i32::from(F::ZERO_POINT) * negated_sum;
                *sum = _mm256_add_epi32(*sum, _mm256_set1_epi32(shift));
            }
        }
    }
    sums
}

/// Multiplies 4 unsigned weights per lane with signed quants. Returns sums of pairs in 16 bits for nibbles, and
/// otherwise sums of quads in 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn products<F: IntFormat>(weights: __m256i, x: __m256i) -> __m256i {
    if F::NIBBLES {
        return _mm256_maddubs_epi16(weights, x);
    }
    let even = _mm256_and_si256(weights, _mm256_set1_epi16(0xff));
    let odd = _mm256_srli_epi16::<8>(weights);
    let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
    let x_odd = _mm256_srai_epi16::<8>(x);
    _mm256_add_epi32(_mm256_madd_epi16(even, x_even), _mm256_madd_epi16(odd, x_odd))
}

/// Computes 256 times the dot products of the high bytes of a group's top quad and their weights.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of the weights for `group`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn high_dot<F: IntFormat>(quants: *const u8, group: &QuantGroup) -> __m256i {
    let num_vectors = if F::NIBBLES { GROUP_QUADS / 2 } else { GROUP_QUADS };
    let vector = group.top_quad() % num_vectors;
    // SAFETY: the caller guarantees the conditions.
    let (bytes, high) = unsafe {
        (_mm256_loadu_si256(quants.add(vector * VECTOR).cast()), broadcast_quad(group.high.as_ptr()))
    };
    if !F::NIBBLES {
        return _mm256_slli_epi32::<8>(products::<F>(bytes, high));
    }
    let is_low = group.top_quad() < num_vectors;
    let nibbles = if is_low { bytes } else { _mm256_srli_epi16::<4>(bytes) };
    let pairs = products::<F>(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)), high);
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(256))
}

/// Loads 8 lanes of quad `quad` of the weights for a group of activations, 4 unsigned weights per lane.
///
/// # Safety
/// `quants` must point to the first of 8 lanes of these weights.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_quad<F: IntFormat>(quants: *const u8, quad: usize) -> __m256i {
    let vector = if F::NIBBLES { quad % (GROUP_QUADS / 2) } else { quad };
    if vector == quad {
        prefetch(quants, vector * VECTOR);
    }
    // SAFETY: the caller guarantees the conditions.
    let bytes = unsafe { _mm256_loadu_si256(quants.add(vector * VECTOR).cast()) };
    match (F::NIBBLES, vector == quad) {
        (false, _) => bytes,
        (true, true) => _mm256_and_si256(bytes, _mm256_set1_epi8(15)),
        (true, false) => _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)),
    }
}

/// Multiplies one panel with one tile of float weights.
///
/// # Safety
/// The CPU must have the features, and `out` must be writable for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    assert!(tile.quants.len() >= panel.in_features * TILE * F::ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    for_each_part(panel.num_rows, out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the caller guarantees the rest.
        unsafe { dispatch_rows!(rows, float_part::<F>(tile, panel, out, part)) }
    });
}

/// # Safety
/// The conditions are those of [`linear_float`], which has checked the lengths. The part must have `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_part<F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
    part: Part,
) {
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: elements, rows and lanes are within the checked lengths.
    unsafe {
        let weights = tile.quants.as_ptr().add(part.first_lane * F::ELEMENT_BYTES);
        let x = panel.values.as_ptr().add(part.first_row * panel.row_stride);
        for run_start in (0..panel.in_features).step_by(FLOAT_RUN) {
            let mut sums = [_mm256_setzero_ps(); R];
            for element in run_start..(run_start + FLOAT_RUN).min(panel.in_features) {
                prefetch(weights, element * TILE * F::ELEMENT_BYTES);
                let weight = load_weights::<F>(weights.add(element * TILE * F::ELEMENT_BYTES));
                for (row, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.add(row * panel.row_stride + element));
                    *sum = _mm256_fmadd_ps(weight, x, *sum);
                }
            }
            for (acc, sum) in acc.iter_mut().zip(sums) {
                *acc = _mm256_add_ps(*acc, sum);
            }
        }
        store(&acc, out, part);
    }
}

/// Size of a scale or minimum in bytes.
pub(super) const fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// # Safety
/// `pointer` must point to 8 scales.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m256 {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        if F::HALF_SCALES {
            _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast()))
        } else {
            _mm256_loadu_ps(pointer.cast())
        }
    }
}

/// Loads 8 weights as f32, exactly.
///
/// # Safety
/// `pointer` must point to 8 elements.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_weights<F: FloatFormat>(pointer: *const u8) -> __m256 {
    // SAFETY: the caller guarantees the conditions.
    unsafe {
        match F::FORMAT {
            Format::F16 => _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast())),
            Format::BF16 => {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(pointer.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            }
            _ => _mm256_loadu_ps(pointer.cast()),
        }
    }
}

/// # Safety
/// `pointer` must point to 4 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn broadcast_quad(pointer: *const i8) -> __m256i {
    // SAFETY: the caller guarantees the conditions.
    _mm256_set1_epi32(unsafe { pointer.cast::<i32>().read_unaligned() })
}

/// Adds the bias and stores the sums of a part.
///
/// # Safety
/// `out` must be writable for the part's `R` rows and its lanes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn store<const R: usize>(acc: &[__m256; R], out: &TileOutput<'_>, part: Part) {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    // The number is at most 16.
    let num_lanes = _mm256_set1_epi32((out.num_lanes - part.first_lane) as i32);
    let mask = _mm256_cmpgt_epi32(num_lanes, lanes);
    // SAFETY: the mask limits accesses to the lanes in use, in the output and in the bias.
    unsafe {
        let bias = out.bias.map(|bias| _mm256_maskload_ps(bias.as_ptr().add(part.first_lane), mask));
        for (row, acc) in acc.iter().enumerate() {
            let value = bias.map_or(*acc, |bias| _mm256_add_ps(*acc, bias));
            let target = out.values.add((part.first_row + row) * out.row_stride + part.first_lane);
            _mm256_maskstore_ps(target, mask, value);
        }
    }
}
