//! A table of the products of weights' scales and all possible significands of activations' scales.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{VECTOR, load_scales, scale_vector_bytes};
use crate::PANEL;
use crate::quantized::{NUM_LEVELS, QuantGroup, level_value};
use trunkline_kernels_core::pack::TILE;
use trunkline_kernels_core::pack::int::IntFormat;

/// The table is used from this many rows on. Filling it takes about 30 cycles per group, and each row saves 0.8.
pub(super) const TABLE_ROWS: usize = 6 * PANEL;

/// Groups of activations per table. The table (12 KiB), the weights of these groups and 8 rows fit in the first-level
/// cache (32 KiB).
pub(super) const TABLE_GROUPS: usize = 24;

/// The bound of the binary exponents of weights' scales in a table, which covers binary16 times 8 bits. The exponents
/// of activations' scales are -100 to 93, so that products are normal numbers.
const MAX_SCALE_EXPONENT: i32 = 24;

/// The 16 products of scales for one group of weights and each significand of an activation's scale. An entry is the
/// bits of the product minus the bits of the significand, so that adding the bits of the activation's scale gives the
/// bits of the actual product.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Levels([[i32; TILE]; NUM_LEVELS]);

/// The most groups of weights for [`TABLE_GROUPS`] groups of activations, which is two each.
const MAX_LEVELS: usize = 2 * TABLE_GROUPS;

thread_local! {
    /// The memory of the table. It is static so that steps do not allocate.
    pub(super) static TABLE: RefCell<[Levels; MAX_LEVELS]> =
        const { RefCell::new([Levels([[0; TILE]; NUM_LEVELS]); MAX_LEVELS]) };
}

/// Fills a table from `scales`. Returns false if the table cannot be used, because a lane in use has a scale that is
/// zero, not finite or outside the range of [`MAX_SCALE_EXPONENT`].
///
/// # Safety
/// `scales` must point to one group for each entry of `table`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn fill_table<F: IntFormat>(
    scales: *const u8,
    lanes: __mmask16,
    table: &mut [Levels],
) -> bool {
    let smallest = _mm512_set1_epi32((127 - MAX_SCALE_EXPONENT) << 23);
    let range = _mm512_set1_epi32((2 * MAX_SCALE_EXPONENT) << 23);
    let mut is_ordinary = true;
    for (group, levels) in table.iter_mut().enumerate() {
        // SAFETY: the caller guarantees the conditions.
        let scale = unsafe { load_scales::<F>(scales.add(group * scale_vector_bytes::<F>())) };
        let magnitude = _mm512_and_si512(_mm512_castps_si512(scale), _mm512_set1_epi32(i32::MAX));
        let excess = _mm512_sub_epi32(magnitude, smallest);
        is_ordinary &= _mm512_mask_cmpge_epu32_mask(lanes, excess, range) == 0;
        for (level, entry) in levels.0.iter_mut().enumerate() {
            let value = level_value(level);
            let product = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_set1_ps(value)));
            let difference = _mm512_sub_epi32(product, _mm512_set1_epi32(value.to_bits().cast_signed()));
            // SAFETY: an entry has 16 integers.
            unsafe { _mm512_storeu_si512(entry.as_mut_ptr().cast(), difference) };
        }
    }
    is_ordinary
}

/// Returns the products of a group's scale and 16 scales of weights.
///
/// # Safety
/// `levels` must point to the entry of the weights.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn looked_up(levels: *const Levels, x: &QuantGroup) -> __m512 {
    let offset = usize::from(x.level_offset) & ((NUM_LEVELS - 1) * VECTOR);
    // SAFETY: the caller guarantees the entry, and the mask keeps the offset inside it.
    let entry = unsafe { _mm512_loadu_si512(levels.byte_add(offset).cast()) };
    let bits = _mm512_set1_epi32(x.scale.to_bits().cast_signed());
    _mm512_castsi512_ps(_mm512_add_epi32(entry, bits))
}
