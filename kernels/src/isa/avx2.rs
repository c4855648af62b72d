//! Kernels for AVX2, FMA and F16C.
//!
//! A tile's 16 output features are two registers of 8 lanes, computed one after the other; up to 4 rows at a time keep
//! their sums in registers. 4-bit weights: `vpmaddubsw` sums pairs in 16 bits, which a whole group cannot overflow
//! (16 pairs of 2 * 15 * 127). 8-bit weights would overflow it, so even and odd bytes are widened for `vpmaddwd`.

use std::arch::x86_64::*;

use crate::isa::scalar::scale_and_reciprocal;
use crate::isa::x86::prefetch;
use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{QuantizedPanel, RowTarget};

/// Lanes of a register.
const LANES: usize = 8;
/// Bytes of a vector of a tile: two registers.
const VECTOR: usize = 64;
/// Most rows whose sums are kept in registers.
const MAX_ROWS: usize = 4;

/// Calls `$function::<F, R>` with the constant `R` of 1 to 4 that equals `$rows`.
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

/// Part of a panel times part of a tile.
#[derive(Clone, Copy)]
struct Part {
    first_row: usize,
    /// Of the tile: 0 or 8.
    first_lane: usize,
}

/// Calls `kernel(part, rows)` for every part of a panel and a tile that has a lane to write.
fn for_each_part(panel_rows: usize, num_lanes: usize, mut kernel: impl FnMut(Part, usize)) {
    for first_lane in (0..num_lanes).step_by(LANES) {
        for first_row in (0..panel_rows).step_by(MAX_ROWS) {
            kernel(Part { first_row, first_lane }, MAX_ROWS.min(panel_rows - first_row));
        }
    }
}

/// Quantises one row in groups of `group`; see [`crate::quantize`].
///
/// # Safety
/// The CPU has the features; `target` is a row of `x.len()` elements in this group, and nobody else uses it.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn quantize_row(x: &[f32], group: usize, target: RowTarget) {
    let mut wide = [0i32; 32];
    let mut quants = [0i8; 32];
    let magnitude_bits = _mm256_set1_epi32(i32::MAX);
    for (group_idx, values) in x.chunks_exact(group).enumerate() {
        let mut max = _mm256_setzero_si256();
        for eight in values.chunks_exact(LANES) {
            // SAFETY: 8 elements.
            let bits = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
            max = _mm256_max_epu32(max, _mm256_and_si256(bits, magnitude_bits));
        }
        let mut maxima = [0u32; LANES];
        // SAFETY: 8 elements.
        unsafe { _mm256_storeu_si256(maxima.as_mut_ptr().cast(), max) };
        let (scale, reciprocal) = scale_and_reciprocal(maxima.iter().copied().max().unwrap_or(0));
        if reciprocal == 0.0 {
            wide.fill(0);
        } else {
            let factor = _mm256_set1_ps(reciprocal);
            for (eight, wide) in values.chunks_exact(LANES).zip(wide.chunks_exact_mut(LANES)) {
                // SAFETY: 8 elements each.
                unsafe {
                    let scaled = _mm256_mul_ps(_mm256_loadu_ps(eight.as_ptr()), factor);
                    _mm256_storeu_si256(wide.as_mut_ptr().cast(), _mm256_cvtps_epi32(scaled));
                }
            }
        }
        let mut sum = 0;
        for (quant, wide) in quants[..group].iter_mut().zip(&wide[..group]) {
            // At most 127 in magnitude.
            *quant = *wide as i8;
            sum += wide;
        }
        // SAFETY: by the contract.
        unsafe { target.put(group_idx, scale, sum, &quants[..group]) };
    }
}

/// One panel times one tile of integer weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(panel.quants.len() >= in_features * panel.num_rows);
    let metas = [panel.scales.len(), panel.scaled_sums.len(), panel.negated_sums.len()];
    assert!(metas.iter().all(|&len| len >= num_groups * panel.num_rows));
    for_each_part(panel.num_rows, out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the rest by the contract.
        unsafe { dispatch_rows!(rows, int_part::<F>(num_groups, tile, panel, out, part)) }
    });
}

/// # Safety
/// As [`linear_int`], which has checked the lengths; the part has `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int_part<F: IntFormat, const R: usize>(
    num_groups: usize,
    tile: &Tile<'_>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
    part: Part,
) {
    let panel_rows = panel.num_rows;
    let mut acc = [_mm256_setzero_ps(); R];
    for group in 0..num_groups {
        let meta = group * panel_rows + part.first_row;
        // SAFETY: group, rows and lanes are within the lengths checked before.
        unsafe {
            let weights =
                tile.quants.as_ptr().add(group * group_vectors::<F>() * VECTOR + part.first_lane * QUAD);
            let x = panel.quants.as_ptr().add(group * F::GROUP * panel_rows + part.first_row * QUAD);
            let dot = if F::NIBBLES {
                nibble_dots::<F, R>(weights, x, panel_rows)
            } else {
                byte_dots::<F, R>(weights, x, panel_rows)
            };
            let at = (group * TILE + part.first_lane) * scale_bytes::<F>();
            let scale = load_scales::<F>(tile.scales.as_ptr().add(at));
            for row in 0..R {
                let mut dot = dot[row];
                if F::ZERO_POINT != 0 {
                    let sum = i32::from(F::ZERO_POINT) * *panel.negated_sums.as_ptr().add(meta + row);
                    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(sum));
                }
                let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*panel.scales.as_ptr().add(meta + row)));
                acc[row] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), acc[row]);
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(tile.mins.as_ptr().add(at));
                for (row, acc) in acc.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*panel.scaled_sums.as_ptr().add(meta + row));
                    *acc = _mm256_fmadd_ps(min, x, *acc);
                }
            }
        }
    }
    // SAFETY: by the contract.
    unsafe { store(&acc, out, part) };
}

/// Sums of a group of nibbles times the group's activations, `R` rows of a panel of `panel_rows`.
///
/// # Safety
/// The pointers are at the group's first lane of 8 and first row of `R`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn nibble_dots<F: IntFormat, const R: usize>(
    weights: *const u8,
    x: *const i8,
    panel_rows: usize,
) -> [__m256i; R] {
    let low_nibbles = _mm256_set1_epi8(15);
    let mut sums = [_mm256_setzero_si256(); R];
    for vector in 0..group_vectors::<F>() {
        // SAFETY: by the contract.
        unsafe {
            prefetch(weights, vector * VECTOR);
            let pair = _mm256_loadu_si256(weights.add(vector * VECTOR).cast());
            let low = _mm256_and_si256(pair, low_nibbles);
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pair), low_nibbles);
            for (row, sum) in sums.iter_mut().enumerate() {
                let x_low = broadcast_quad(x.add((vector * panel_rows + row) * QUAD));
                let x_high =
                    broadcast_quad(x.add(((vector + group_vectors::<F>()) * panel_rows + row) * QUAD));
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(low, x_low));
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(high, x_high));
            }
        }
    }
    sums.map(|sum| _mm256_madd_epi16(sum, _mm256_set1_epi16(1)))
}

/// Sums of a group of bytes times the group's activations, `R` rows of a panel of `panel_rows`.
///
/// # Safety
/// The pointers are at the group's first lane of 8 and first row of `R`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn byte_dots<F: IntFormat, const R: usize>(
    weights: *const u8,
    x: *const i8,
    panel_rows: usize,
) -> [__m256i; R] {
    let mut sums = [_mm256_setzero_si256(); R];
    for vector in 0..group_vectors::<F>() {
        // SAFETY: by the contract.
        unsafe {
            prefetch(weights, vector * VECTOR);
            let bytes = _mm256_loadu_si256(weights.add(vector * VECTOR).cast());
            let even = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
            let odd = _mm256_srli_epi16::<8>(bytes);
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = broadcast_quad(x.add((vector * panel_rows + row) * QUAD));
                let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
                let x_odd = _mm256_srai_epi16::<8>(x);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(even, x_even));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(odd, x_odd));
            }
        }
    }
    sums
}

/// One panel times one tile of float weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &PanelOutput<'_>,
) {
    assert!(tile.quants.len() >= panel.in_features * TILE * F::ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    for_each_part(panel.num_rows, out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the rest by the contract.
        unsafe { dispatch_rows!(rows, float_part::<F>(tile, panel, out, part)) }
    });
}

/// # Safety
/// As [`linear_float`], which has checked the lengths; the part has `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn float_part<F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &PanelOutput<'_>,
    part: Part,
) {
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: elements, rows and lanes are within the lengths checked before.
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

/// Bytes of a scale or minimum.
const fn scale_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { 2 } else { 4 }
}

/// # Safety
/// `pointer` has 8 scales.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m256 {
    // SAFETY: by the contract.
    unsafe {
        if F::HALF_SCALES {
            _mm256_cvtph_ps(_mm_loadu_si128(pointer.cast()))
        } else {
            _mm256_loadu_ps(pointer.cast())
        }
    }
}

/// 8 weights as f32, exactly.
///
/// # Safety
/// `pointer` has 8 elements.
#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_weights<F: FloatFormat>(pointer: *const u8) -> __m256 {
    // SAFETY: by the contract.
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
/// `pointer` has 4 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn broadcast_quad(pointer: *const i8) -> __m256i {
    // SAFETY: by the contract.
    _mm256_set1_epi32(unsafe { pointer.cast::<i32>().read_unaligned() })
}

/// Adds the bias and writes a part's sums.
///
/// # Safety
/// `out` may be written for the part's `R` rows and its lanes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const R: usize>(acc: &[__m256; R], out: &PanelOutput<'_>, part: Part) {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    // At most 16.
    let num_lanes = _mm256_set1_epi32((out.num_lanes - part.first_lane) as i32);
    let mask = _mm256_cmpgt_epi32(num_lanes, lanes);
    // SAFETY: masked to the lanes that exist, in the output and in the bias.
    unsafe {
        let bias = out.bias.map(|bias| _mm256_maskload_ps(bias.as_ptr().add(part.first_lane), mask));
        for (row, acc) in acc.iter().enumerate() {
            let value = bias.map_or(*acc, |bias| _mm256_add_ps(*acc, bias));
            let target = out.values.add((part.first_row + row) * out.row_stride + part.first_lane);
            _mm256_maskstore_ps(target, mask, value);
        }
    }
}
