//! Kernels for AVX-512 F, BW, VL, DQ and VNNI.
//!
//! A tile's 16 output features are the 16 lanes of a register. `vpdpbusd` takes 4 unsigned weights a lane times 4
//! signed activations, which are broadcast from memory; 8 rows keep 8 integer and 8 float sums in registers, so each
//! weight is loaded and unpacked once for 8 rows. Sketch for 4 bits, a group of 32 and 8 rows: 64 `vpdpbusd` and 8
//! times (multiply, convert, 1 or 2 FMA) for 4 loads and 12 unpacking operations.

use std::arch::x86_64::*;

use crate::isa::scalar::scale_and_reciprocal;
use crate::isa::x86::prefetch;
use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{QuantizedPanel, RowTarget};

/// Bytes of a register.
const VECTOR: usize = 64;

/// Calls `$function::<F, R>` with the constant `R` of 1 to 8 that equals `$rows`.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1>($($argument),*),
            2 => $function::<$format, 2>($($argument),*),
            3 => $function::<$format, 3>($($argument),*),
            4 => $function::<$format, 4>($($argument),*),
            5 => $function::<$format, 5>($($argument),*),
            6 => $function::<$format, 6>($($argument),*),
            7 => $function::<$format, 7>($($argument),*),
            8 => $function::<$format, 8>($($argument),*),
            rows => unreachable!("a panel of {rows} rows"),
        }
    };
}

/// Quantises one row in groups of `group`; see [`crate::quantize`].
///
/// # Safety
/// The CPU has the features; `target` is a row of `x.len()` elements in this group, and nobody else uses it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn quantize_row(x: &[f32], group: usize, target: RowTarget) {
    let mut quants = [0i8; 32];
    for (group_idx, values) in x.chunks_exact(group).enumerate() {
        let wide: __mmask16 = if group == 32 { 0xffff } else { 0 };
        // SAFETY: `values` has 32 elements, or 16 and the second half is masked.
        let (low, high) = unsafe {
            let second = values.as_ptr().wrapping_add(16);
            (_mm512_loadu_ps(values.as_ptr()), _mm512_maskz_loadu_ps(wide, second))
        };
        let magnitude = |value| _mm512_andnot_si512(_mm512_set1_epi32(i32::MIN), _mm512_castps_si512(value));
        let max_bits = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude(low), magnitude(high)));
        let (scale, reciprocal) = scale_and_reciprocal(max_bits);
        let mut sum = 0;
        if reciprocal == 0.0 {
            quants.fill(0);
        } else {
            let factor = _mm512_set1_ps(reciprocal);
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(low, factor));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(high, factor));
            sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
            // SAFETY: `quants` has 32 elements.
            unsafe {
                _mm_storeu_si128(quants.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(low));
                _mm_storeu_si128(quants.as_mut_ptr().add(16).cast(), _mm512_cvtsepi32_epi8(high));
            }
        }
        // SAFETY: by the contract.
        unsafe { target.put(group_idx, scale, sum, &quants[..group]) };
    }
}

/// One panel times one tile of integer weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * scale_vector_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * scale_vector_bytes::<F>());
    assert!(panel.quants.len() >= in_features * panel.num_rows);
    let metas = [panel.scales.len(), panel.scaled_sums.len(), panel.negated_sums.len()];
    assert!(metas.iter().all(|&len| len >= num_groups * panel.num_rows));
    // SAFETY: lengths are checked; the rest by the contract.
    unsafe { dispatch_rows!(panel.num_rows, int_panel::<F>(num_groups, tile, panel, out)) }
}

/// # Safety
/// As [`linear_int`], which has checked the lengths; the panel has `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn int_panel<F: IntFormat, const R: usize>(
    num_groups: usize,
    tile: &Tile<'_>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let low_nibbles = _mm512_set1_epi8(15);
    let mut acc = [_mm512_setzero_ps(); R];
    let mut quants = tile.quants.as_ptr();
    let (mut scales, mut mins) = (tile.scales.as_ptr(), tile.mins.as_ptr());
    let mut x = panel.quants.as_ptr();
    let (mut x_scales, mut x_scaled_sums) = (panel.scales.as_ptr(), panel.scaled_sums.as_ptr());
    let mut x_negated_sums = panel.negated_sums.as_ptr();
    // Quads between a low nibble and its high one.
    let high_offset = group_vectors::<F>() * QUAD * R;
    // SAFETY: every pointer advances by one group a turn, `num_groups` times, within the lengths checked before.
    unsafe {
        for _ in 0..num_groups {
            let mut dot = [_mm512_setzero_si512(); R];
            if F::ZERO_POINT != 0 {
                for (row, dot) in dot.iter_mut().enumerate() {
                    let sum = _mm512_set1_epi32(*x_negated_sums.add(row));
                    *dot = shift_by_zero_point::<F>(sum);
                }
            }
            for vector in 0..group_vectors::<F>() {
                prefetch(quants, vector * VECTOR);
                let weights = _mm512_loadu_si512(quants.add(vector * VECTOR).cast());
                let quads = x.add(vector * QUAD * R);
                if F::NIBBLES {
                    let low = _mm512_and_si512(weights, low_nibbles);
                    let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), low_nibbles);
                    for (row, dot) in dot.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, low, broadcast_quad(quads.add(row * QUAD)));
                    }
                    for (row, dot) in dot.iter_mut().enumerate() {
                        let quad = quads.add(high_offset + row * QUAD);
                        *dot = _mm512_dpbusd_epi32(*dot, high, broadcast_quad(quad));
                    }
                } else {
                    for (row, dot) in dot.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, weights, broadcast_quad(quads.add(row * QUAD)));
                    }
                }
            }
            let scale = load_scales::<F>(scales);
            for row in 0..R {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scales.add(row)));
                acc[row] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[row]), acc[row]);
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(mins);
                for (row, acc) in acc.iter_mut().enumerate() {
                    *acc = _mm512_fmadd_ps(min, _mm512_set1_ps(*x_scaled_sums.add(row)), *acc);
                }
                mins = mins.add(scale_vector_bytes::<F>());
            }
            quants = quants.add(group_vectors::<F>() * VECTOR);
            scales = scales.add(scale_vector_bytes::<F>());
            x = x.add(F::GROUP * R);
            x_scales = x_scales.add(R);
            x_scaled_sums = x_scaled_sums.add(R);
            x_negated_sums = x_negated_sums.add(R);
        }
        store(&acc, out);
    }
}

/// One panel times one tile of float weights.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &PanelOutput<'_>,
) {
    assert!(tile.quants.len() >= panel.in_features * TILE * F::ELEMENT_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    // SAFETY: lengths are checked; the rest by the contract.
    unsafe { dispatch_rows!(panel.num_rows, float_panel::<F>(tile, panel, out)) }
}

/// # Safety
/// As [`linear_float`], which has checked the lengths; the panel has `R` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,f16c")]
unsafe fn float_panel<F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let (weights, x) = (tile.quants.as_ptr(), panel.values.as_ptr());
    // SAFETY: elements and rows are within the lengths checked before.
    unsafe {
        for run_start in (0..panel.in_features).step_by(FLOAT_RUN) {
            let mut part = [_mm512_setzero_ps(); R];
            for element in run_start..(run_start + FLOAT_RUN).min(panel.in_features) {
                prefetch(weights, element * TILE * F::ELEMENT_BYTES);
                let weight = load_weights::<F>(weights.add(element * TILE * F::ELEMENT_BYTES));
                for (row, part) in part.iter_mut().enumerate() {
                    let x = _mm512_set1_ps(*x.add(row * panel.row_stride + element));
                    *part = _mm512_fmadd_ps(weight, x, *part);
                }
            }
            for (acc, part) in acc.iter_mut().zip(part) {
                *acc = _mm512_add_ps(*acc, part);
            }
        }
        store(&acc, out);
    }
}

/// Bytes of the 16 scales (or minima) of a group.
const fn scale_vector_bytes<F: IntFormat>() -> usize {
    if F::HALF_SCALES { TILE * 2 } else { TILE * 4 }
}

/// # Safety
/// `pointer` has `scale_vector_bytes` bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn load_scales<F: IntFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        if F::HALF_SCALES {
            _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast()))
        } else {
            _mm512_loadu_ps(pointer.cast())
        }
    }
}

/// 16 weights as f32, exactly.
///
/// # Safety
/// `pointer` has 16 elements.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn load_weights<F: FloatFormat>(pointer: *const u8) -> __m512 {
    // SAFETY: by the contract.
    unsafe {
        match F::FORMAT {
            Format::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(pointer.cast())),
            Format::BF16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(pointer.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            _ => _mm512_loadu_ps(pointer.cast()),
        }
    }
}

/// # Safety
/// `pointer` has 4 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn broadcast_quad(pointer: *const i8) -> __m512i {
    // SAFETY: by the contract.
    _mm512_set1_epi32(unsafe { pointer.cast::<i32>().read_unaligned() })
}

/// `sum` times the zero point, a power of two.
#[inline]
#[target_feature(enable = "avx512f")]
fn shift_by_zero_point<F: IntFormat>(sum: __m512i) -> __m512i {
    match F::ZERO_POINT {
        8 => _mm512_slli_epi32::<3>(sum),
        32 => _mm512_slli_epi32::<5>(sum),
        128 => _mm512_slli_epi32::<7>(sum),
        zero_point => _mm512_mullo_epi32(sum, _mm512_set1_epi32(i32::from(zero_point))),
    }
}

/// Adds the bias and writes a panel's sums.
///
/// # Safety
/// `out` may be written for `R` rows and its lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn store<const R: usize>(acc: &[__m512; R], out: &PanelOutput<'_>) {
    let lanes = (u32::from(u16::MAX) >> (TILE - out.num_lanes)) as __mmask16;
    // SAFETY: masked to the lanes that exist, in the output and in the bias.
    unsafe {
        let bias = out.bias.map(|bias| _mm512_maskz_loadu_ps(lanes, bias.as_ptr()));
        for (row, acc) in acc.iter().enumerate() {
            let value = bias.map_or(*acc, |bias| _mm512_add_ps(*acc, bias));
            _mm512_mask_storeu_ps(out.values.add(row * out.row_stride), lanes, value);
        }
    }
}
