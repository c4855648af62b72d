//! Kernels for AVX-512 F, BW, VL, DQ and VNNI.
//!
//! A tile's 16 output features are the 16 lanes of a register. `vpdpbusd` takes 4 unsigned weights a lane times 4
//! signed activations, which are broadcast from memory; 8 rows keep 8 integer and 8 float sums in registers, so each
//! weight is loaded and unpacked once for 8 rows. Sketch for 4 bits, a group of 32 and 8 rows: 64 `vpdpbusd` and 8
//! times (2 conversions, 5 or 6 FMA) for 8 loads and 12 unpacking operations.

use std::arch::x86_64::*;

use crate::isa::x86::prefetch;
use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, LaneSums, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{QUANT_GROUP, QuantizedPanel};

/// Bytes of a register.
const VECTOR: usize = 64;
/// Vectors of unpacked weights for one group of activations.
const HALF_VECTORS: usize = QUANT_GROUP / QUAD;

/// Calls `$function::<F, R>`, or with further constants, with the constant `R` of 1 to 8 that equals `$rows`.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident $(, $constant:literal)?>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1 $(, $constant)?>($($argument),*),
            2 => $function::<$format, 2 $(, $constant)?>($($argument),*),
            3 => $function::<$format, 3 $(, $constant)?>($($argument),*),
            4 => $function::<$format, 4 $(, $constant)?>($($argument),*),
            5 => $function::<$format, 5 $(, $constant)?>($($argument),*),
            6 => $function::<$format, 6 $(, $constant)?>($($argument),*),
            7 => $function::<$format, 7 $(, $constant)?>($($argument),*),
            8 => $function::<$format, 8 $(, $constant)?>($($argument),*),
            rows => unreachable!("a panel of {rows} rows"),
        }
    };
}

/// Sums of a tile's weights over every group of activations, less the zero point: one vector a group.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn weight_sums<F: IntFormat>(tile: &Tile<'_>, sums: &mut [LaneSums]) {
    let halves = F::GROUP / QUANT_GROUP;
    assert!(tile.quants.len() >= sums.len() / halves * group_vectors::<F>() * VECTOR);
    let groups = tile.quants.chunks_exact(group_vectors::<F>() * VECTOR);
    for (group, sums) in groups.zip(sums.chunks_exact_mut(halves)) {
        for (half, sums) in sums.iter_mut().enumerate() {
            let (mut bytes, mut sum) = (_mm512_setzero_si512(), start_sum::<F>());
            for vector in 0..HALF_VECTORS {
                // SAFETY: `group` has all vectors of a group; the store is of 16 floats.
                let weights = unsafe { load_quants::<F>(group.as_ptr(), half, vector) };
                add_weights::<F>(&mut bytes, &mut sum, weights);
            }
            let sum = finish_sum::<F>(bytes, sum);
            // SAFETY: 16 floats.
            unsafe { _mm512_storeu_ps(sums.0.as_mut_ptr(), sum) };
        }
    }
}

/// One panel times one tile of integer weights; `sums` as [`weight_sums`] gives them, or computed on the way.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    sums: Option<&[LaneSums]>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * scale_vector_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * scale_vector_bytes::<F>());
    panel.check(in_features);
    // SAFETY: lengths are checked; the rest by the contract.
    unsafe {
        match sums {
            Some(sums) => {
                assert!(sums.len() >= in_features / QUANT_GROUP);
                let sums = sums.as_ptr();
                dispatch_rows!(panel.num_rows, int_panel::<F, true>(num_groups, tile, sums, panel, out));
            }
            None => {
                let sums = std::ptr::null();
                dispatch_rows!(panel.num_rows, int_panel::<F, false>(num_groups, tile, sums, panel, out));
            }
        }
    }
}

/// # Safety
/// As [`linear_int`], which has checked the lengths; the panel has `R` rows; `sums` are there if `HAS_SUMS`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn int_panel<F: IntFormat, const R: usize, const HAS_SUMS: bool>(
    num_groups: usize,
    tile: &Tile<'_>,
    mut sums: *const LaneSums,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let mut acc = [_mm512_setzero_ps(); R];
    let mut quants = tile.quants.as_ptr();
    let (mut scales, mut mins) = (tile.scales.as_ptr(), tile.mins.as_ptr());
    let mut x = panel.quants.as_ptr();
    let (mut x_scales, mut x_offsets) = (panel.scales.as_ptr(), panel.offsets.as_ptr());
    let (mut x_negated_sums, mut x_sums) = (panel.negated_sums.as_ptr(), panel.sums.as_ptr());
    // SAFETY: every pointer advances by one group a turn, `num_groups` times, within the lengths checked before.
    unsafe {
        for _ in 0..num_groups {
            let mut inner = [_mm512_setzero_ps(); R];
            for half in 0..F::GROUP / QUANT_GROUP {
                let mut dot = [_mm512_setzero_si512(); R];
                if F::ZERO_POINT != 0 {
                    for (row, dot) in dot.iter_mut().enumerate() {
                        let sum = _mm512_set1_epi32(*x_negated_sums.add(row));
                        *dot = shift_by_zero_point::<F>(sum);
                    }
                }
                let (mut bytes, mut sum) = (_mm512_setzero_si512(), start_sum::<F>());
                for vector in 0..HALF_VECTORS {
                    let weights = load_quants::<F>(quants, half, vector);
                    if !HAS_SUMS {
                        add_weights::<F>(&mut bytes, &mut sum, weights);
                    }
                    let quads = x.add(vector * QUAD * R);
                    for (row, dot) in dot.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, weights, broadcast_quad(quads.add(row * QUAD)));
                    }
                }
                let sum =
                    if HAS_SUMS { _mm512_loadu_ps((*sums).0.as_ptr()) } else { finish_sum::<F>(bytes, sum) };
                for row in 0..R {
                    let offset = _mm512_set1_ps(*x_offsets.add(row));
                    let start = if half == 0 {
                        _mm512_mul_ps(offset, sum)
                    } else {
                        _mm512_fmadd_ps(offset, sum, inner[row])
                    };
                    let scale = _mm512_set1_ps(*x_scales.add(row));
                    inner[row] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(dot[row]), start);
                }
                if HAS_SUMS {
                    sums = sums.add(1);
                }
                x = x.add(QUANT_GROUP * R);
                x_scales = x_scales.add(R);
                x_offsets = x_offsets.add(R);
                x_negated_sums = x_negated_sums.add(R);
            }
            let scale = load_scales::<F>(scales);
            for (acc, inner) in acc.iter_mut().zip(inner) {
                *acc = _mm512_fmadd_ps(scale, inner, *acc);
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(mins);
                for (row, acc) in acc.iter_mut().enumerate() {
                    *acc = _mm512_fmadd_ps(min, _mm512_set1_ps(*x_sums.add(row)), *acc);
                }
                mins = mins.add(scale_vector_bytes::<F>());
                x_sums = x_sums.add(R);
            }
            quants = quants.add(group_vectors::<F>() * VECTOR);
            scales = scales.add(scale_vector_bytes::<F>());
        }
        store(&acc, out);
    }
}

/// Where the sum of 16 weights begins: less 16 times the zero point.
#[inline]
#[target_feature(enable = "avx512f")]
fn start_sum<F: IntFormat>() -> __m512i {
    _mm512_set1_epi32(-i32::from(F::ZERO_POINT) * QUANT_GROUP as i32)
}

/// Adds 4 weights a lane to `sum`; nibbles stay apart in `bytes`, where 4 of them fit: additions of bytes have more
/// pipes than dot products.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn add_weights<F: IntFormat>(bytes: &mut __m512i, sum: &mut __m512i, weights: __m512i) {
    if F::NIBBLES {
        *bytes = _mm512_add_epi8(*bytes, weights);
    } else {
        *sum = _mm512_dpbusd_epi32(*sum, weights, _mm512_set1_epi8(1));
    }
}

/// The sum of 16 weights a lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn finish_sum<F: IntFormat>(bytes: __m512i, sum: __m512i) -> __m512 {
    let sum = if F::NIBBLES { _mm512_dpbusd_epi32(sum, bytes, _mm512_set1_epi8(1)) } else { sum };
    _mm512_cvtepi32_ps(sum)
}

/// Vector `vector` of half `half` of a group: 4 unsigned weights a lane.
///
/// # Safety
/// `group` points to a group's vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_quants<F: IntFormat>(group: *const u8, half: usize, vector: usize) -> __m512i {
    let at = if F::NIBBLES { vector } else { half * HALF_VECTORS + vector } * VECTOR;
    if half == 0 || !F::NIBBLES {
        prefetch(group, at);
    }
    // SAFETY: by the contract.
    let bytes = unsafe { _mm512_loadu_si512(group.add(at).cast()) };
    match (F::NIBBLES, half) {
        (false, _) => bytes,
        (true, 0) => _mm512_and_si512(bytes, _mm512_set1_epi8(15)),
        (true, _) => _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)),
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
