//! Implementations of [`ByteLanes`] for x86-64.

use super::{Avx2Lanes, Avx512Lanes};
use crate::vector::ByteLanes;
use std::arch::x86_64::*;

/// +1 in lanes whose index has the bit `DISTANCE` clear, and -1 in the others.
const fn signs<const DISTANCE: usize, const N: usize>() -> [f32; N] {
    let mut signs = [1.0; N];
    let mut i = 0;
    while i < N {
        if i & DISTANCE != 0 {
            signs[i] = -1.0;
        }
        i += 1;
    }
    signs
}

/// The dot products of one register. Even and odd bytes are multiplied separately, because `maddubs` would saturate on
/// the sum of two products of 255 * 127.
#[inline(always)]
unsafe fn dot_256(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
    unsafe {
        let (even, ones) = (_mm256_set1_epi16(0xff), _mm256_set1_epi16(1));
        let low = _mm256_maddubs_epi16(_mm256_and_si256(unsigned, even), signed);
        let high = _mm256_maddubs_epi16(_mm256_andnot_si256(even, unsigned), signed);
        let sums = _mm256_add_epi32(sums, _mm256_madd_epi16(low, ones));
        _mm256_add_epi32(sums, _mm256_madd_epi16(high, ones))
    }
}

/// Looks up the lower and the upper nibbles of one register.
#[inline(always)]
unsafe fn look_up_256(table: __m256i, nibbles: __m256i) -> (__m256i, __m256i) {
    unsafe {
        let mask = _mm256_set1_epi8(0xf);
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(nibbles), mask);
        let low = _mm256_and_si256(nibbles, mask);
        (_mm256_shuffle_epi8(table, low), _mm256_shuffle_epi8(table, high))
    }
}

/// Returns the two largest of sixteen numbers, given as eight pairs of a larger and a smaller number.
#[inline(always)]
unsafe fn two_largest_256(larger: __m256, smaller: __m256) -> (f32, f32) {
    unsafe {
        let pair = |a1, a2, b1, b2| (_mm_max_ps(a1, b1), _mm_max_ps(_mm_min_ps(a1, b1), _mm_max_ps(a2, b2)));
        let high = |x| _mm256_extractf128_ps::<1>(x);
        let low = |x| _mm256_castps256_ps128(x);
        let (x1, x2) = pair(low(larger), low(smaller), high(larger), high(smaller));
        let (x1, x2) = pair(x1, x2, _mm_movehl_ps(x1, x1), _mm_movehl_ps(x2, x2));
        let (x1, x2) = pair(x1, x2, _mm_movehdup_ps(x1), _mm_movehdup_ps(x2));
        (_mm_cvtss_f32(x1), _mm_cvtss_f32(x2))
    }
}

/// The two largest numbers of each lane.
type Largest = (__m512, __m512);

#[inline(always)]
unsafe fn largest_of(a: Largest, b: Largest) -> Largest {
    unsafe {
        let (lower, second) = (_mm512_min_ps(a.0, b.0), _mm512_max_ps(a.1, b.1));
        (_mm512_max_ps(a.0, b.0), _mm512_max_ps(lower, second))
    }
}

/// Folds the sixteen lanes of each of two rows to eight.
#[inline(always)]
unsafe fn fold_halves(a: __m512, b: __m512) -> Largest {
    unsafe {
        let (low, high) = (_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        (_mm512_max_ps(low, high), _mm512_min_ps(low, high))
    }
}

/// Folds the eight lanes of each of four rows, two rows in `a` and two in `b`, to four.
#[inline(always)]
unsafe fn fold_blocks(a: Largest, b: Largest) -> Largest {
    unsafe {
        let even = (_mm512_shuffle_f32x4::<0x88>(a.0, b.0), _mm512_shuffle_f32x4::<0x88>(a.1, b.1));
        let odd = (_mm512_shuffle_f32x4::<0xdd>(a.0, b.0), _mm512_shuffle_f32x4::<0xdd>(a.1, b.1));
        largest_of(even, odd)
    }
}

/// Folds the four lanes of each of eight rows to one, which appears twice.
#[inline(always)]
unsafe fn fold_lanes(a: Largest, b: Largest) -> Largest {
    unsafe {
        let (a, b) =
            ((_mm512_castps_pd(a.0), _mm512_castps_pd(a.1)), (_mm512_castps_pd(b.0), _mm512_castps_pd(b.1)));
        let low = (_mm512_unpacklo_pd(a.0, b.0), _mm512_unpacklo_pd(a.1, b.1));
        let high = (_mm512_unpackhi_pd(a.0, b.0), _mm512_unpackhi_pd(a.1, b.1));
        let twos = largest_of(
            (_mm512_castpd_ps(low.0), _mm512_castpd_ps(low.1)),
            (_mm512_castpd_ps(high.0), _mm512_castpd_ps(high.1)),
        );
        largest_of(twos, (_mm512_permute_ps::<0xb1>(twos.0), _mm512_permute_ps::<0xb1>(twos.1)))
    }
}

/// Computes [`ByteLanes::butterfly`] within eight lanes.
#[inline(always)]
unsafe fn butterfly_256<const DISTANCE: usize>(x: __m256) -> __m256 {
    unsafe {
        let other = match DISTANCE {
            4 => _mm256_permute2f128_ps::<1>(x, x),
            2 => _mm256_permute_ps::<0x4e>(x),
            _ => _mm256_permute_ps::<0xb1>(x),
        };
        // A product with 1 or -1 is exact, so the result is rounded once, like a sum.
        _mm256_fmadd_ps(x, _mm256_loadu_ps(const { signs::<DISTANCE, 8>() }.as_ptr()), other)
    }
}

impl ByteLanes for Avx2Lanes {
    type Bytes = (__m256i, __m256i);
    type Ints = (__m256i, __m256i);
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        unsafe { (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8) {
        unsafe {
            _mm256_storeu_si256(p.cast(), x.0);
            _mm256_storeu_si256(p.add(32).cast(), x.1);
        }
    }
    #[inline(always)]
    unsafe fn load_table(p: *const u8) -> Self::Bytes {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            (table, table)
        }
    }
    #[inline(always)]
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2] {
        unsafe {
            let (low0, high0) = look_up_256(table.0, nibbles.0);
            let (low1, high1) = look_up_256(table.1, nibbles.1);
            [(low0, low1), (high0, high1)]
        }
    }
    #[inline(always)]
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes {
        unsafe {
            let quad = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            (quad, quad)
        }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        unsafe { (_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints {
        unsafe { (dot_256(sums.0, unsigned.0, signed.0), dot_256(sums.1, unsigned.1, signed.1)) }
    }
    #[inline(always)]
    unsafe fn floats(x: Self::Ints) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(x.0), _mm256_cvtepi32_ps(x.1)) }
    }
    #[inline(always)]
    unsafe fn times_256(x: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_slli_epi32::<8>(x.0), _mm256_slli_epi32::<8>(x.1)) }
    }
    #[inline(always)]
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8) {
        unsafe {
            let shift = _mm_cvtsi32_si128(8 * BYTE as i32);
            let byte = |x: __m256, to: i32| {
                let byte = _mm256_srl_epi32(_mm256_castps_si256(x), shift);
                _mm256_sll_epi32(_mm256_and_si256(byte, _mm256_set1_epi32(0xff)), _mm_cvtsi32_si128(8 * to))
            };
            let [a, b, c, d] = x;
            let join = |a, b, c, d| _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
            let low = join(byte(a.0, 0), byte(b.0, 1), byte(c.0, 2), byte(d.0, 3));
            let high = join(byte(a.1, 0), byte(b.1, 1), byte(c.1, 2), byte(d.1, 3));
            _mm256_storeu_si256(p.cast(), low);
            _mm256_storeu_si256(p.add(32).cast(), high);
        }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        unsafe {
            let low = |x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0xff));
            let words = _mm256_packus_epi32(low(self.0), low(self.1));
            let bytes = _mm256_packus_epi16(words, words);
            let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
            _mm_storeu_si128(p.cast(), _mm256_castsi256_si128(bytes));
        }
    }
    #[inline(always)]
    unsafe fn two_largest(self) -> (f32, f32) {
        unsafe { two_largest_256(_mm256_max_ps(self.0, self.1), _mm256_min_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn times_exp2(self, shifted: Self) -> Self {
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted.1));
            Self(
                _mm256_castsi256_ps(_mm256_add_epi32(low, _mm256_castps_si256(self.0))),
                _mm256_castsi256_ps(_mm256_add_epi32(high, _mm256_castps_si256(self.1))),
            )
        }
    }
    #[inline(always)]
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self {
        unsafe {
            if DISTANCE == 8 {
                return Self(_mm256_add_ps(self.1, self.0), _mm256_sub_ps(self.0, self.1));
            }
            Self(butterfly_256::<DISTANCE>(self.0), butterfly_256::<DISTANCE>(self.1))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

impl ByteLanes for Avx512Lanes {
    type Bytes = __m512i;
    type Ints = __m512i;
    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(x: Self::Bytes, p: *mut u8) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn load_table(p: *const u8) -> Self::Bytes {
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn look_up(table: Self::Bytes, nibbles: Self::Bytes) -> [Self::Bytes; 2] {
        unsafe {
            let mask = _mm512_set1_epi8(0xf);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(nibbles), mask);
            let low = _mm512_and_si512(nibbles, mask);
            [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high)]
        }
    }
    #[inline(always)]
    unsafe fn splat_quad(p: *const u8) -> Self::Bytes {
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn splat_int(x: i32) -> Self::Ints {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::Ints, unsigned: Self::Bytes, signed: Self::Bytes) -> Self::Ints {
        unsafe { _mm512_dpbusd_epi32(sums, unsigned, signed) }
    }
    #[inline(always)]
    unsafe fn floats(x: Self::Ints) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(x)) }
    }
    #[inline(always)]
    unsafe fn times_256(x: Self::Ints) -> Self::Ints {
        unsafe { _mm512_slli_epi32::<8>(x) }
    }
    #[inline(always)]
    unsafe fn store_quads<const BYTE: u32>(x: [Self; 4], p: *mut u8) {
        /// Selects the bits of `a` where the mask is set, and those of `b` elsewhere.
        const CHOOSE: i32 = 0xca;
        unsafe {
            let [a, b, c, d] = x.map(|x| _mm512_castps_si512(x.0));
            let (a, b, c, d) = if BYTE == 0 {
                (a, _mm512_slli_epi32::<8>(b), _mm512_slli_epi32::<16>(c), _mm512_slli_epi32::<24>(d))
            } else {
                (_mm512_srli_epi32::<8>(a), b, _mm512_slli_epi32::<8>(c), _mm512_slli_epi32::<16>(d))
            };
            let low = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0xff), a, b);
            let high = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0xff_0000), c, d);
            let quads = _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi32(0xffff), low, high);
            _mm512_storeu_si512(p.cast(), quads);
        }
    }
    #[inline(always)]
    unsafe fn store_low_bytes(self, p: *mut u8) {
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(self.0))) }
    }
    #[inline(always)]
    unsafe fn store_low_bytes_apart(self, p: *mut u8) {
        unsafe { _mm512_mask_storeu_epi8(p.cast(), 0x1111_1111_1111_1111, _mm512_castps_si512(self.0)) }
    }
    #[inline(always)]
    unsafe fn two_largest(self) -> (f32, f32) {
        unsafe {
            let (low, high) = (_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0));
            two_largest_256(_mm256_max_ps(low, high), _mm256_min_ps(low, high))
        }
    }
    #[inline(always)]
    unsafe fn two_largest_each<const R: usize>(rows: &[Self; R]) -> (Self, Self) {
        /// The lane of each row after the folds.
        const ROWS: [i32; 16] = [0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14];
        unsafe {
            // Each stage halves the lanes of a row, so twice as many rows fit in a register.
            let row = |r: usize| r.min(R - 1);
            let eights = [
                fold_halves(rows[row(0)].0, rows[row(1)].0),
                fold_halves(rows[row(2)].0, rows[row(3)].0),
                fold_halves(rows[row(4)].0, rows[row(5)].0),
                fold_halves(rows[row(6)].0, rows[row(7)].0),
            ];
            let fours = [fold_blocks(eights[0], eights[1]), fold_blocks(eights[2], eights[3])];
            let ones = fold_lanes(fours[0], fours[1]);
            let order = _mm512_loadu_si512(ROWS.as_ptr().cast());
            (Self(_mm512_permutexvar_ps(order, ones.0)), Self(_mm512_permutexvar_ps(order, ones.1)))
        }
    }
    #[inline(always)]
    unsafe fn times_exp2(self, shifted: Self) -> Self {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_castps_si512(self.0))))
        }
    }
    #[inline(always)]
    unsafe fn butterfly<const DISTANCE: usize>(self) -> Self {
        unsafe {
            let x = self.0;
            let other = match DISTANCE {
                8 => _mm512_shuffle_f32x4::<0x4e>(x, x),
                4 => _mm512_shuffle_f32x4::<0xb1>(x, x),
                2 => _mm512_permute_ps::<0x4e>(x),
                _ => _mm512_permute_ps::<0xb1>(x),
            };
            // A product with 1 or -1 is exact, so the result is rounded once, like a sum.
            let signs = _mm512_loadu_ps(const { signs::<DISTANCE, 16>() }.as_ptr());
            Self(_mm512_fmadd_ps(x, signs, other))
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}
