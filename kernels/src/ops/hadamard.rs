//! The Walsh-Hadamard transform of one head, by which K, V and queries are spread before they are rounded to bytes.
//!
//! H_n is the n x n matrix of +1 and -1 with H_1 = 1 and `H_2n = [H_n H_n; H_n -H_n]`; it is symmetric, H_n * H_n = n.
//! It is applied without a factor, to each run of n elements, n the largest power of two that divides the head size.
//! Sums run in pairs at distance 1, 2, 4, ..., n / 2, the same on every instruction set.

use super::vector::{ByteLanes, LANES};

/// Elements that are mixed with each other: the largest power of two that divides `head_size`.
pub fn mixed_elements(head_size: usize) -> usize {
    1 << head_size.trailing_zeros()
}

/// Transforms a head in place.
///
/// # Safety
/// The CPU has the instruction set of `L`; `x` points to `head_size` elements rounded up to whole vectors, those beyond
/// the head 0.
#[inline(always)]
pub unsafe fn transform<L: ByteLanes>(x: *mut f32, head_size: usize) {
    let mixed = mixed_elements(head_size);
    // SAFETY: the caller's elements are whole vectors.
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
