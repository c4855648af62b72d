//! Kernels for AVX2, FMA and F16C.
//!
//! A tile's 16 output features are two registers of 8 lanes, computed one after the other; up to 4 rows at a time
//! keep their sums in registers. 4-bit weights: `vpmaddubsw` sums pairs in 16 bits, which 16 activations cannot
//! overflow (4 pairs of 2 * 15 * 128). 8-bit weights would overflow it, so even and odd bytes are widened for
//! `vpmaddwd`.

use std::arch::x86_64::*;

use crate::isa::x86::prefetch;
use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, LaneSums, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Format, Tile, group_vectors};
use crate::quantize::{QUANT_GROUP, QuantizedPanel, SUM_GROUP};

/// Lanes of a register.
const LANES: usize = 8;
/// Bytes of a vector of a tile: two registers.
const VECTOR: usize = 64;
/// Vectors of unpacked weights for one group of activations.
const HALF_VECTORS: usize = QUANT_GROUP / QUAD;
/// Most rows whose sums are kept in registers.
pub(crate) const MAX_ROWS: usize = 4;

/// Calls `$function::<F, R>`, or with a further constant, with the constant `R` of 1 to 4 that equals `$rows`.
macro_rules! dispatch_rows {
    ($rows:expr, $function:ident::<$format:ident $(, $constant:literal)?>($($argument:expr),*)) => {
        match $rows {
            1 => $function::<$format, 1 $(, $constant)?>($($argument),*),
            2 => $function::<$format, 2 $(, $constant)?>($($argument),*),
            3 => $function::<$format, 3 $(, $constant)?>($($argument),*),
            4 => $function::<$format, 4 $(, $constant)?>($($argument),*),
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

/// Sums of a tile's weights over every group of activations, less the zero point: 16 lanes a group.
///
/// # Safety
/// The CPU has the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn weight_sums<F: IntFormat>(tile: &Tile<'_>, sums: &mut [LaneSums]) {
    let halves = F::GROUP / QUANT_GROUP;
    assert!(tile.quants.len() >= sums.len() / halves * group_vectors::<F>() * VECTOR);
    let groups = tile.quants.chunks_exact(group_vectors::<F>() * VECTOR);
    for (group, sums) in groups.zip(sums.chunks_exact_mut(halves)) {
        for (half, sums) in sums.iter_mut().enumerate() {
            for (part, sums) in sums.0.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: `group` has all vectors of a group, and the second part begins 8 lanes into a vector.
                let group = unsafe { group.as_ptr().add(part * LANES * QUAD) };
                let mut pairs = _mm256_setzero_si256();
                for vector in 0..HALF_VECTORS {
                    // SAFETY: likewise.
                    pairs = add_pairs(pairs, unsafe { load_quants::<F>(group, half, vector) });
                }
                let sum = finish_sum::<F>(pairs);
                // SAFETY: 8 floats.
                unsafe { _mm256_storeu_ps(sums.as_mut_ptr(), sum) };
            }
        }
    }
}

/// One panel times one tile of integer weights; `sums` as [`weight_sums`] gives them, or computed on the way.
///
/// # Safety
/// The CPU has the features; `out` may be written for the panel's rows and `num_lanes` lanes.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    sums: Option<&[LaneSums]>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let num_groups = in_features / F::GROUP;
    assert!(tile.quants.len() >= num_groups * group_vectors::<F>() * VECTOR);
    assert!(tile.scales.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(!F::HAS_MIN || tile.mins.len() >= num_groups * TILE * scale_bytes::<F>());
    assert!(sums.is_none_or(|sums| sums.len() >= in_features / QUANT_GROUP));
    panel.check(in_features);
    for_each_part(panel.num_rows, out.num_lanes, |part, rows| {
        // SAFETY: lengths are checked; the rest by the contract.
        unsafe {
            match sums {
                Some(sums) => {
                    dispatch_rows!(rows, int_part::<F, true>(num_groups, tile, sums, panel, out, part));
                }
                None => dispatch_rows!(rows, int_part::<F, false>(num_groups, tile, &[], panel, out, part)),
            }
        }
    });
}

/// # Safety
/// As [`linear_int`], which has checked the lengths; the part has `R` rows; `sums` are there if `HAS_SUMS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int_part<F: IntFormat, const R: usize, const HAS_SUMS: bool>(
    num_groups: usize,
    tile: &Tile<'_>,
    sums: &[LaneSums],
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
    part: Part,
) {
    let (panel_rows, halves) = (panel.num_rows, F::GROUP / QUANT_GROUP);
    let mut acc = [_mm256_setzero_ps(); R];
    for group in 0..num_groups {
        // SAFETY: group, rows and lanes are within the lengths checked before.
        unsafe {
            let weights =
                tile.quants.as_ptr().add(group * group_vectors::<F>() * VECTOR + part.first_lane * QUAD);
            let mut inner = [_mm256_setzero_ps(); R];
            for half in 0..halves {
                let x_group = group * halves + half;
                let x = panel.quants.as_ptr().add(x_group * QUANT_GROUP * panel_rows + part.first_row * QUAD);
                let (dots, sum) = half_dots::<F, R, HAS_SUMS>(weights, half, x, panel_rows);
                let sum = if HAS_SUMS {
                    _mm256_loadu_ps((*sums.as_ptr().add(x_group)).0.as_ptr().add(part.first_lane))
                } else {
                    sum
                };
                for row in 0..R {
                    let meta = x_group * panel_rows + part.first_row + row;
                    let mut dot = dots[row];
                    if F::ZERO_POINT != 0 {
                        let shift = i32::from(F::ZERO_POINT) * *panel.negated_sums.as_ptr().add(meta);
                        dot = _mm256_add_epi32(dot, _mm256_set1_epi32(shift));
                    }
                    let offset = _mm256_set1_ps(*panel.offsets.as_ptr().add(meta));
                    let start = if half == 0 {
                        _mm256_mul_ps(offset, sum)
                    } else {
                        _mm256_fmadd_ps(offset, sum, inner[row])
                    };
                    let scale = _mm256_set1_ps(*panel.scales.as_ptr().add(meta));
                    inner[row] = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), start);
                }
            }
            let at = (group * TILE + part.first_lane) * scale_bytes::<F>();
            let scale = load_scales::<F>(tile.scales.as_ptr().add(at));
            for (acc, inner) in acc.iter_mut().zip(inner) {
                *acc = _mm256_fmadd_ps(scale, inner, *acc);
            }
            if F::HAS_MIN {
                let min = load_scales::<F>(tile.mins.as_ptr().add(at));
                let x_sums =
                    panel.sums.as_ptr().add(group * F::GROUP / SUM_GROUP * panel_rows + part.first_row);
                for (row, acc) in acc.iter_mut().enumerate() {
                    *acc = _mm256_fmadd_ps(min, _mm256_set1_ps(*x_sums.add(row)), *acc);
                }
            }
        }
    }
    // SAFETY: by the contract.
    unsafe { store(&acc, out, part) };
}

/// Weights of half `half` of a group times the half's activations, `R` rows of a panel of `panel_rows`; and the sum of
/// those weights less the zero point, unless `HAS_SUMS`.
///
/// # Safety
/// The pointers are at the group's first lane of 8, and at the half's first row of `R`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn half_dots<F: IntFormat, const R: usize, const HAS_SUMS: bool>(
    weights: *const u8,
    half: usize,
    x: *const i8,
    panel_rows: usize,
) -> ([__m256i; R], __m256) {
    let mut weight_pairs = _mm256_setzero_si256();
    let mut sums = [_mm256_setzero_si256(); R];
    for vector in 0..HALF_VECTORS {
        // SAFETY: by the contract.
        unsafe {
            let weights = load_quants::<F>(weights, half, vector);
            if !HAS_SUMS {
                weight_pairs = add_pairs(weight_pairs, weights);
            }
            let even = _mm256_and_si256(weights, _mm256_set1_epi16(0xff));
            let odd = _mm256_srli_epi16::<8>(weights);
            for (row, sum) in sums.iter_mut().enumerate() {
                let x = broadcast_quad(x.add((vector * panel_rows + row) * QUAD));
                if F::NIBBLES {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, x));
                } else {
                    let x_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
                    let x_odd = _mm256_srai_epi16::<8>(x);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(even, x_even));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(odd, x_odd));
                }
            }
        }
    }
    let dots = if F::NIBBLES { sums.map(|sum| _mm256_madd_epi16(sum, _mm256_set1_epi16(1))) } else { sums };
    (dots, finish_sum::<F>(weight_pairs))
}

/// `sums` plus the sums of neighbouring bytes of `weights`, at most 2 * 255 each.
#[inline]
#[target_feature(enable = "avx2")]
fn add_pairs(sums: __m256i, weights: __m256i) -> __m256i {
    _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, _mm256_set1_epi8(1)))
}

/// Sums of 16 weights a lane, less the zero point, from the sums of pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn finish_sum<F: IntFormat>(pairs: __m256i) -> __m256 {
    let sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let shift = _mm256_set1_epi32(i32::from(F::ZERO_POINT) * QUANT_GROUP as i32);
    _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, shift))
}

/// 8 lanes of vector `vector` of half `half` of a group: 4 unsigned weights a lane.
///
/// # Safety
/// `group` points to the group's first lane of 8.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_quants<F: IntFormat>(group: *const u8, half: usize, vector: usize) -> __m256i {
    let at = if F::NIBBLES { vector } else { half * HALF_VECTORS + vector } * VECTOR;
    if half == 0 || !F::NIBBLES {
        prefetch(group, at);
    }
    // SAFETY: by the contract.
    let bytes = unsafe { _mm256_loadu_si256(group.add(at).cast()) };
    match (F::NIBBLES, half) {
        (false, _) => bytes,
        (true, 0) => _mm256_and_si256(bytes, _mm256_set1_epi8(15)),
        (true, _) => _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)),
    }
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
