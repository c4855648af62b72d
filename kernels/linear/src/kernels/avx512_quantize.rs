//! Quantises rows with AVX-512, 16 groups at once.
//!
//! Element-wise operations process half a group per register, in pairs of groups. Operations that are needed once per
//! group (the scale and the other fields) process one group per lane. Most of the work is in the transposes between the
//! two forms, so they are combined with the reductions. In the intermediate quad layout, quarter i of a register holds
//! the numbers of quads i and 4 + i of one group, then those of another group.

use std::arch::x86_64::*;
use std::mem::offset_of;

use crate::quantized::{
    DROPPED_BITS, GROUP_QUADS, NUM_LEVELS, QUANT_GROUP, QuantGroup, QuantizeJob, REST_SCALE, SMALLEST_SCALE,
    TOO_LARGE_BITS, TOP_SCALE, VECTOR_BYTES,
};
use trunkline_kernels_core::pack::QUAD;

/// Number of groups per batch, which is the number of lanes of a register.
const BATCH: usize = 16;
/// Number of pairs of groups per batch. Lane 4 p + i of a register is a group of pair p if i < 2, and of pair 4 + p
/// otherwise.
const PAIRS: usize = BATCH / 2;

/// Bytes of a group's low bytes. The other fields follow them.
const LOW_BYTES: usize = QUANT_GROUP;

const _: () = assert!(
    offset_of!(QuantGroup, low) == 0
        && offset_of!(QuantGroup, high) == LOW_BYTES
        && offset_of!(QuantGroup, scale) == LOW_BYTES + 4
        && offset_of!(QuantGroup, sum) == LOW_BYTES + 8
        && offset_of!(QuantGroup, negated_sum) == LOW_BYTES + 12
        && offset_of!(QuantGroup, negated_half_sum) == LOW_BYTES + 16
        && offset_of!(QuantGroup, top_offset) == LOW_BYTES + 20
        && offset_of!(QuantGroup, level_offset) == LOW_BYTES + 22
        && offset_of!(QuantGroup, nibble_mask) == LOW_BYTES + 24
        && offset_of!(QuantGroup, nibble_shift) == LOW_BYTES + 28
);

/// Quantises rows; see [`crate::quantized`].
///
/// # Safety
/// The CPU must have the features, and the job's rows must be writable.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn quantize_rows(job: &QuantizeJob<'_>) {
    let num_groups = job.num_rows() * job.groups_per_row();
    let num_batches = num_groups.div_ceil(BATCH);
    let mut walk = Walk::new(job);
    let mut batches = [Batch::default(); 2];
    // Batches are written one iteration late, so that the scales of a batch are computed while the quants of the
    // previous one are.
    for turn in 0..=num_batches {
        if turn < num_batches {
            let batch = &mut batches[turn % 2];
            walk.put_next(&mut batch.places);
            // SAFETY: the batch holds groups of the job.
            unsafe { code(batch) };
        }
        if turn > 0 {
            let batch = &batches[(turn - 1) % 2];
            // SAFETY: the batch holds groups of the job.
            unsafe { put(batch) };
            let mut not_finite = batch.not_finite;
            while not_finite != 0 {
                let lane = not_finite.trailing_zeros() as usize;
                let group = ((turn - 1) * BATCH + lane).min(num_groups - 1);
                job.put_not_finite(group / job.groups_per_row(), group % job.groups_per_row());
                not_finite &= not_finite - 1;
            }
        }
    }
}

/// Pointers to the elements of a group and to the quantised group.
type Place = (*const f32, *mut QuantGroup);

struct Walk<'a> {
    job: &'a QuantizeJob<'a>,
    row: usize,
    left_in_row: usize,
    place: Place,
}

impl<'a> Walk<'a> {
    fn new(job: &'a QuantizeJob<'a>) -> Self {
        let place = (job.x(0).as_ptr(), job.groups(0));
        Self { job, row: 0, left_in_row: job.groups_per_row(), place }
    }

    /// Puts the next 16 groups into `places`. After the last group it repeats that group, which is then written several
    /// times with the same bits.
    #[inline]
    fn put_next(&mut self, places: &mut [Place; BATCH]) {
        for place in places {
            *place = self.place;
            if self.left_in_row > 1 {
                self.left_in_row -= 1;
                self.place = (self.place.0.wrapping_add(QUANT_GROUP), self.place.1.wrapping_add(1));
            } else if self.row + 1 < self.job.num_rows() {
                self.row += 1;
                self.left_in_row = self.job.groups_per_row();
                self.place = (self.job.x(self.row).as_ptr(), self.job.groups(self.row));
            }
        }
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Batch {
    scales: [f32; BATCH],
    factors: [f32; BATCH],
    /// 64 times the index of the top quad.
    top_offsets: [i32; BATCH],
    places: [Place; BATCH],
    /// A bit for each group that is not finite. The results of such a group are overwritten.
    not_finite: u16,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            scales: [0.0; BATCH],
            factors: [0.0; BATCH],
            top_offsets: [0; BATCH],
            places: [(std::ptr::null(), std::ptr::null_mut()); BATCH],
            not_finite: 0,
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn code(batch: &mut Batch) {
    let mut quads = [_mm512_setzero_si512(); PAIRS];
    for (pair, quads) in quads.iter_mut().enumerate() {
        let (a, b) = pair_lanes(pair);
        // SAFETY: each group has 32 elements.
        *quads = unsafe { quad_magnitudes(batch.places[a].0, batch.places[b].0) };
    }
    let (top, rest, top_offset) = extremes(lanes_by_quad(quads));
    let scale = scales(_mm512_castsi512_ps(top), _mm512_castsi512_ps(rest));
    batch.not_finite = _mm512_cmpge_epi32_mask(top, _mm512_set1_epi32(TOO_LARGE_BITS));
    // SAFETY: each array has 16 elements.
    unsafe {
        _mm512_store_ps(batch.scales.as_mut_ptr(), scale);
        _mm512_store_ps(batch.factors.as_mut_ptr(), _mm512_div_ps(_mm512_set1_ps(1.0), scale));
        _mm512_store_si512(batch.top_offsets.as_mut_ptr().cast(), top_offset);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn put(batch: &Batch) {
    let mut sums = [_mm512_setzero_si512(); PAIRS];
    let Batch { places, factors, .. } = batch;
    for (pair, sums) in sums.iter_mut().enumerate() {
        let (a, b) = pair_lanes(pair);
        // SAFETY: each group has 32 elements, and the quantised groups are writable.
        let low = unsafe {
            let low = low_bytes(words(places[a].0, factors[a]), words(places[b].0, factors[b]));
            put_low(low, places[a].1, places[b].1);
            low
        };
        *sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), low);
    }
    // SAFETY: each group has 32 elements.
    let high = unsafe { high_bytes(batch) };
    let (first, second) = sum_quads(sums);
    // SAFETY: the quantised groups are writable.
    unsafe { put_numbers(batch, high, first, second) };
}

#[inline(always)]
fn pair_lanes(pair: usize) -> (usize, usize) {
    let first = pair % (PAIRS / 2) * 4 + pair / (PAIRS / 2) * 2;
    (first, first + 1)
}

/// Returns the largest magnitude of each quad of two groups as bits, in quad layout.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn quad_magnitudes(a: *const f32, b: *const f32) -> __m512i {
    // SAFETY: the caller guarantees 32 elements.
    let load = |p: *const f32| unsafe {
        _mm512_and_si512(_mm512_loadu_si512(p.cast()), _mm512_set1_epi32(i32::MAX))
    };
    // SAFETY: as above.
    let (a, b) = unsafe { ([load(a), load(a.add(16))], [load(b), load(b.add(16))]) };
    let fold = |[x, y]: [__m512i; 2]| _mm512_max_epi32(evens(x, y), odds(x, y));
    fold([fold(a), fold(b)])
}

/// Returns in each quarter the even lanes of `x`, then those of `y`.
#[inline]
#[target_feature(enable = "avx512f")]
fn evens(x: __m512i, y: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)))
}

/// Returns in each quarter the odd lanes of `x`, then those of `y`.
#[inline]
#[target_feature(enable = "avx512f")]
fn odds(x: __m512i, y: __m512i) -> __m512i {
    _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y)))
}

/// Transposes from quad layout to one register per quad with one lane per group.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes_by_quad(pairs: [__m512i; PAIRS]) -> [__m512i; GROUP_QUADS] {
    let parts = |x: &[__m512i]| {
        let (a, b) = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(x[0], x[1]),
            _mm512_shuffle_i32x4::<0b10_00_10_00>(x[2], x[3]),
        );
        let (c, d) = (
            _mm512_shuffle_i32x4::<0b11_01_11_01>(x[0], x[1]),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(x[2], x[3]),
        );
        [
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
        ]
    };
    let (x, y) = (parts(&pairs[..PAIRS / 2]), parts(&pairs[PAIRS / 2..]));
    [
        evens(x[0], y[0]),
        evens(x[1], y[1]),
        evens(x[2], y[2]),
        evens(x[3], y[3]),
        odds(x[0], y[0]),
        odds(x[1], y[1]),
        odds(x[2], y[2]),
        odds(x[3], y[3]),
    ]
}

/// Reduces registers in quad layout to the sums of the first 4 and of the last 4 quads, with one lane per group.
#[inline]
#[target_feature(enable = "avx512f")]
fn sum_quads(pairs: [__m512i; PAIRS]) -> (__m512i, __m512i) {
    let fold = |x: __m512i, y: __m512i| {
        let (even, odd) =
            (_mm512_shuffle_i32x4::<0b10_00_10_00>(x, y), _mm512_shuffle_i32x4::<0b11_01_11_01>(x, y));
        _mm512_add_epi32(even, odd)
    };
    let parts = |x: &[__m512i]| fold(fold(x[0], x[1]), fold(x[2], x[3]));
    let (x, y) = (parts(&pairs[..PAIRS / 2]), parts(&pairs[PAIRS / 2..]));
    (evens(x, y), odds(x, y))
}

/// Returns for each lane the largest of 8 integers, the largest of the others, and 64 times the first index of the
/// largest.
#[inline]
#[target_feature(enable = "avx512f")]
fn extremes(quads: [__m512i; GROUP_QUADS]) -> (__m512i, __m512i, __m512i) {
    let (mut top, mut rest, mut offset) = (quads[0], _mm512_setzero_si512(), _mm512_setzero_si512());
    for (at, quad) in quads.into_iter().enumerate().skip(1) {
        let is_larger = _mm512_cmpgt_epi32_mask(quad, top);
        offset = _mm512_mask_mov_epi32(offset, is_larger, _mm512_set1_epi32((at * VECTOR_BYTES) as i32));
        rest = _mm512_max_epi32(rest, _mm512_min_epi32(top, quad));
        top = _mm512_max_epi32(top, quad);
    }
    (top, rest, offset)
}

/// Computes the scales like [`crate::quantized::GroupCode::new`].
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn scales(top: __m512, rest: __m512) -> __m512 {
    let rest = _mm512_mul_ps(rest, _mm512_set1_ps(REST_SCALE));
    let top = _mm512_mul_ps(top, _mm512_set1_ps(TOP_SCALE));
    let least = _mm512_max_ps(_mm512_max_ps(rest, top), _mm512_set1_ps(SMALLEST_SCALE));
    let kept = _mm512_set1_epi32((1 << DROPPED_BITS) - 1);
    let scale = _mm512_andnot_si512(kept, _mm512_add_epi32(_mm512_castps_si512(least), kept));
    _mm512_castsi512_ps(scale)
}

/// Returns the quants of a group in 16 bits each. Quarter i holds quad i, then quad 4 + i.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words(x: *const f32, factor: f32) -> __m512i {
    let factor = _mm512_set1_ps(factor);
    // SAFETY: the caller guarantees 32 elements.
    let (first, second) = unsafe { (_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))) };
    let quants = |x: __m512| _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
    _mm512_packs_epi32(quants(first), quants(second))
}

/// Returns the low bytes of two groups' quants, in quad layout.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn low_bytes(a: __m512i, b: __m512i) -> __m512i {
    let low = |words: __m512i| _mm512_and_si512(words, _mm512_set1_epi16(0xff));
    _mm512_packus_epi16(low(a), low(b))
}

/// Returns the high bytes of the top quads, with one lane per group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn high_bytes(batch: &Batch) -> __m512i {
    // SAFETY: a group has 8 quads of 4 elements.
    let top = |group: usize| unsafe {
        let quad = batch.top_offsets[group] as usize / VECTOR_BYTES % GROUP_QUADS;
        _mm_loadu_ps(batch.places[group].0.add(quad * QUAD))
    };
    // Quarter p of register i is group 4 p + i.
    let tops = |i: usize| {
        let tops = _mm512_castps128_ps512(top(i));
        let tops = _mm512_insertf32x4::<1>(tops, top(4 + i));
        let tops = _mm512_insertf32x4::<2>(tops, top(8 + i));
        _mm512_insertf32x4::<3>(tops, top(12 + i))
    };
    let high = |x: __m512, factor: __m512| {
        let quants = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
        _mm512_srai_epi32::<8>(_mm512_add_epi32(quants, _mm512_set1_epi32(128)))
    };
    // SAFETY: the array has 16 elements.
    let factor = unsafe { _mm512_load_ps(batch.factors.as_ptr()) };
    let first = _mm512_packs_epi32(
        high(tops(0), _mm512_permute_ps::<0b00_00_00_00>(factor)),
        high(tops(1), _mm512_permute_ps::<0b01_01_01_01>(factor)),
    );
    let second = _mm512_packs_epi32(
        high(tops(2), _mm512_permute_ps::<0b10_10_10_10>(factor)),
        high(tops(3), _mm512_permute_ps::<0b11_11_11_11>(factor)),
    );
    _mm512_packs_epi16(first, second)
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn put_low(low: __m512i, a: *mut QuantGroup, b: *mut QuantGroup) {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let low = _mm512_permutexvar_epi32(order, low);
    // SAFETY: each group begins with 32 low bytes.
    unsafe {
        _mm256_storeu_si256(a.cast(), _mm512_castsi512_si256(low));
        _mm256_storeu_si256(b.cast(), _mm512_extracti64x4_epi64::<1>(low));
    }
}

/// Writes the high bytes and the fields that [`QuantGroup::put_numbers`] writes. `first_sum` and `second_sum` are the
/// sums of the low bytes of the first and the last 4 quads.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vnni")]
unsafe fn put_numbers(batch: &Batch, high: __m512i, first_sum: __m512i, second_sum: __m512i) {
    let places = &batch.places;
    // SAFETY: each array has 16 elements.
    let (scale, top_offset) = unsafe {
        (_mm512_load_ps(batch.scales.as_ptr()), _mm512_load_si512(batch.top_offsets.as_ptr().cast()))
    };
    let zero = _mm512_setzero_si512();
    let scale_bits = _mm512_castps_si512(scale);
    let level_bits = _mm512_set1_epi32((NUM_LEVELS as i32 - 1) << DROPPED_BITS);
    // Move the level from bit 20, times 64, to the upper 16 bits.
    let level_offset =
        _mm512_slli_epi32::<{ 16 + 6 - DROPPED_BITS }>(_mm512_and_si512(scale_bits, level_bits));
    let half_offset = _mm512_set1_epi32((GROUP_QUADS / 2 * VECTOR_BYTES) as i32);
    let is_low = _mm512_cmplt_epi32_mask(top_offset, half_offset);
    // Two products with 128 as an unsigned byte give 256 times each high byte.
    let half = _mm512_set1_epi8(i8::MIN);
    let high_sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, half, high), half, high);
    let half_sum = _mm512_mask_add_epi32(first_sum, is_low, first_sum, high_sum);
    let sum = _mm512_add_epi32(_mm512_add_epi32(first_sum, second_sum), high_sum);
    let either = |low: u32, other: u32| {
        let (low, other) = (_mm512_set1_epi32(low.cast_signed()), _mm512_set1_epi32(other.cast_signed()));
        _mm512_mask_mov_epi32(other, is_low, low)
    };
    let first = [
        high,
        scale_bits,
        _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(sum))),
        _mm512_sub_epi32(zero, sum),
    ];
    let second = [
        _mm512_sub_epi32(zero, half_sum),
        _mm512_or_si512(top_offset, level_offset),
        either(0x0f0f_0f0f, 0xf0f0_f0f0),
        either(8, 4),
    ];
    // Quarter p of register i holds four fields of group 4 p + i.
    let (first, second) = (transpose(first), transpose(second));
    let parts_01 = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let parts_23 = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (i, (first, second)) in first.into_iter().zip(second).enumerate() {
        for (p, parts) in [(0, parts_01), (2, parts_23)] {
            let numbers = _mm512_permutex2var_epi64(first, parts, second);
            let place =
                |p: usize| places[QUAD * p + i].1.cast::<u8>().wrapping_add(LOW_BYTES).cast::<__m256i>();
            // SAFETY: a group has 32 bytes after the low bytes.
            unsafe {
                _mm256_storeu_si256(place(p), _mm512_castsi512_si256(numbers));
                _mm256_storeu_si256(place(p + 1), _mm512_extracti64x4_epi64::<1>(numbers));
            }
        }
    }
}

/// Transposes 4 by 4 lanes in each of the four quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(x: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3]));
    let (c, d) = (_mm512_unpackhi_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[2], x[3]));
    [
        _mm512_unpacklo_epi64(a, b),
        _mm512_unpackhi_epi64(a, b),
        _mm512_unpacklo_epi64(c, d),
        _mm512_unpackhi_epi64(c, d),
    ]
}
