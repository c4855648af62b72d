//! A table of products of scales: of weights, by what an activation's scale can be.

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::{VECTOR, load_scales, scale_vector_bytes};
use crate::linear::{PANEL, TILE};
use crate::pack::int::IntFormat;
use crate::quantize::{NUM_LEVELS, QuantGroup, level_value};

/// From this many rows on a table of products of scales pays: filling it takes about 30 cycles a group, and each row
/// saves 0.8.
pub(super) const TABLE_ROWS: usize = 6 * PANEL;

/// Groups of activations that a table is for. With it, their weights and 8 rows stay in the first-level cache (32 KiB,
/// of which the table takes 12).
pub(super) const TABLE_GROUPS: usize = 24;

/// Binary exponents of weights' scales that a table takes: those of binary16 times 8 bits. Scales of activations have
/// -100 to 93, so that products stay normal numbers.
const MAX_SCALE_EXPONENT: i32 = 24;

/// For one group of weights and each level of an activation's scale, 16 products of scales: as bits, less those of the
/// level, so that adding the bits of the activation's scale gives the product's.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Levels([[i32; TILE]; NUM_LEVELS]);

/// Most groups of weights that meet [`TABLE_GROUPS`] of activations: two each.
const MAX_LEVELS: usize = 2 * TABLE_GROUPS;

thread_local! {
    /// Memory of a table; fixed, so that steps allocate nothing.
    pub(super) static TABLE: RefCell<[Levels; MAX_LEVELS]> =
        const { RefCell::new([Levels([[0; TILE]; NUM_LEVELS]); MAX_LEVELS]) };
}

/// Fills a table from scales on; false if a lane in use has a scale that is zero, not finite or out of the range of
/// products of binary16, with which it would not work.
///
/// # Safety
/// `scales` has a group for each of `table`.
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
        // SAFETY: by the contract.
        let scale = unsafe { load_scales::<F>(scales.add(group * scale_vector_bytes::<F>())) };
        let magnitude = _mm512_and_si512(_mm512_castps_si512(scale), _mm512_set1_epi32(i32::MAX));
        let excess = _mm512_sub_epi32(magnitude, smallest);
        is_ordinary &= _mm512_mask_cmpge_epu32_mask(lanes, excess, range) == 0;
        for (level, entry) in levels.0.iter_mut().enumerate() {
            let value = level_value(level);
            let product = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_set1_ps(value)));
            let difference = _mm512_sub_epi32(product, _mm512_set1_epi32(value.to_bits().cast_signed()));
            // SAFETY: 16 integers.
            unsafe { _mm512_storeu_si512(entry.as_mut_ptr().cast(), difference) };
        }
    }
    is_ordinary
}

/// A group's scale times 16 scales of weights.
///
/// # Safety
/// `levels` points to those of the weights.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn looked_up(levels: *const Levels, x: &QuantGroup) -> __m512 {
    let offset = usize::from(x.level_offset) & ((NUM_LEVELS - 1) * VECTOR);
    // SAFETY: by the contract; the offset is that of a level whatever it was.
    let entry = unsafe { _mm512_loadu_si512(levels.byte_add(offset).cast()) };
    let bits = _mm512_set1_epi32(x.scale.to_bits().cast_signed());
    _mm512_castsi512_ps(_mm512_add_epi32(entry, bits))
}
