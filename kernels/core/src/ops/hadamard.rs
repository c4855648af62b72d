//! The Walsh-Hadamard transform of a head, which spreads K, V and queries before they are rounded.
//!
//! H_n is the n x n matrix of +1 and -1 with H_1 = 1 and `H_2n = [H_n H_n; H_n -H_n]`. It is symmetric, and
//! H_n * H_n = n. It is applied unnormalised to each run of n elements, where n is the largest power of two that
//! divides the head size. Sums are computed in pairs at distances 1, 2, 4, ..., n / 2, the same on every instruction
//! set.

use crate::vector::{ByteLanes, LANES};

/// The size n of the transform: the largest power of two that divides `head_size`.
#[inline]
pub fn mixed_elements(head_size: usize) -> usize {
    1 << head_size.trailing_zeros()
}

/// Transforms a head in place.
///
/// # Safety
/// The CPU must have the instruction set of `L`. `x` must point to `head_size` elements, padded with zeros to whole
/// vectors.
#[inline(always)]
pub unsafe fn transform<L: ByteLanes>(x: *mut f32, head_size: usize) {
    let mixed = mixed_elements(head_size);
    // SAFETY: the caller guarantees whole vectors.
    unsafe {
        for start in (0..head_size).step_by(LANES) {
            let p = x.add(start);
            let mut lanes = L::load(p);
            if mixed > 1 {
                lanes = lanes.butterfly::<1>();
            }
            if mixed > 2 {
                lanes = lanes.butterfly::<2>();
            }
            if mixed > 4 {
                lanes = lanes.butterfly::<4>();
            }
            if mixed > 8 {
                lanes = lanes.butterfly::<8>();
            }
            lanes.store(p);
        }
        let mut distance = LANES;
        while distance < mixed {
            for start in (0..head_size).step_by(2 * distance) {
                for i in (start..start + distance).step_by(LANES) {
                    let (low, high) = (x.add(i), x.add(i + distance));
                    let (a, b) = (L::load(low), L::load(high));
                    a.add(b).store(low);
                    a.sub(b).store(high);
                }
            }
            distance *= 2;
        }
    }
}
