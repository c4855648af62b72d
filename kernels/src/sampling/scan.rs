//! Vectorised passes over a row of logits, with a fixed order of sums.

use crate::ops::exp::exp;
use trunkline_kernels_core::vector::{LANES, Lanes, each_vector, simd_entry};

/// Weights below this are rounded to multiples of 2^-33. Larger weights are such multiples anyway, because they have 24
/// bits. Sums of weights in f64 are therefore exact up to 2^20, in any order.
const EXACT_FROM: f32 = 1.0 / 1024.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Largest {
    /// The largest logit is finite, and no logit is NaN.
    Finite(f32),
    /// No logit is finite, or one is NaN or positive infinity.
    NotFinite,
}

#[inline(always)]
unsafe fn largest_generic<L: Lanes>(x: &[f32]) -> Largest {
    let lowest = f32::NEG_INFINITY;
    // SAFETY: loads are within the slice.
    let (largest, num_bad) = unsafe {
        let (mut largest, mut bad) = (L::splat(lowest), L::splat(0.0));
        let mut i = 0;
        while i < x.len() {
            let lanes = (x.len() - i).min(LANES);
            let v = L::select_first(lanes, L::load_first(x.as_ptr().add(i), lanes), L::splat(lowest));
            bad = bad.max(v.select_below(L::splat(f32::INFINITY), L::splat(0.0), L::splat(1.0)));
            largest = largest.max(v);
            i += LANES;
        }
        (largest.max_lane(), bad.max_lane())
    };
    if num_bad > 0.0 || largest == lowest { Largest::NotFinite } else { Largest::Finite(largest) }
}

#[inline(always)]
unsafe fn keep_generic<L: Lanes>(x: &mut [f32], mask: &[u8]) {
    each_vector!(x.len(), |i, lanes| {
        let byte = |index: usize| u16::from(mask.get(index).copied().unwrap_or(0));
        let bits = byte(i / 8) | byte(i / 8 + 1) << 8;
        // SAFETY: loads and stores are within the slice.
        unsafe {
            let p = x.as_mut_ptr().add(i);
            let kept = L::select_bits(bits, L::load_first(p, lanes), L::splat(f32::NEG_INFINITY));
            kept.store_first(p, lanes);
        }
    });
}

/// Computes exp(x), rounded as described for [`EXACT_FROM`].
#[inline(always)]
unsafe fn weight<L: Lanes>(x: L) -> L {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (exact, limit) = (exp(x), L::splat(EXACT_FROM));
        exact.select_below(limit, exact.add(limit).sub(limit), exact)
    }
}

#[inline(always)]
unsafe fn mass_generic<L: Lanes>(x: &[f32], largest: f32, inverse_temperature: f32) -> f64 {
    let mut sums = [0.0f64; LANES];
    let mut i = 0;
    while i < x.len() {
        let lanes = (x.len() - i).min(LANES);
        let mut weights = [0.0f32; LANES];
        // SAFETY: loads and stores are within the slice and the array.
        unsafe {
            let v = L::load_first(x.as_ptr().add(i), lanes).sub(L::splat(largest));
            let v = L::select_first(lanes, v, L::splat(f32::NEG_INFINITY));
            weight(v.mul(L::splat(inverse_temperature))).store(weights.as_mut_ptr());
        }
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum += f64::from(weight);
        }
        i += LANES;
    }
    sums.iter().sum()
}

#[inline(always)]
unsafe fn weigh_generic<L: Lanes>(x: &mut [f32], largest: f32, inverse_temperature: f32) {
    let mut i = 0;
    while i < x.len() {
        let lanes = (x.len() - i).min(LANES);
        // SAFETY: loads and stores are within the slice.
        unsafe {
            let v = L::load_first(x.as_ptr().add(i), lanes).sub(L::splat(largest));
            weight(v.mul(L::splat(inverse_temperature))).store_first(x.as_mut_ptr().add(i), lanes);
        }
        i += LANES;
    }
}

#[inline(always)]
unsafe fn count_generic<L: Lanes>(x: &[f32], lowest: f32) -> usize {
    let (mut i, mut count) = (0, 0);
    while i < x.len() {
        let lanes = (x.len() - i).min(LANES);
        // SAFETY: loads are within the slice.
        let found = unsafe { L::load_first(x.as_ptr().add(i), lanes).at_least(L::splat(lowest)) };
        count += (found & ((1u32 << lanes) - 1) as u16).count_ones() as usize;
        i += LANES;
    }
    count
}

#[inline(always)]
unsafe fn gather_generic<L: Lanes>(x: &[f32], lowest: f32, out: &mut Vec<u64>) {
    let mut i = 0;
    while i < x.len() {
        let lanes = (x.len() - i).min(LANES);
        // SAFETY: loads are within the slice.
        let mut found = unsafe { L::load_first(x.as_ptr().add(i), lanes).at_least(L::splat(lowest)) };
        found &= ((1u32 << lanes) - 1) as u16;
        while found != 0 {
            let index = i + found.trailing_zeros() as usize;
            out.push(sort_key(x[index], index as u32));
            found &= found - 1;
        }
        i += LANES;
    }
}

/// Returns a key that orders tokens by descending logit, then ascending id. -0 counts as 0.
pub fn sort_key(logit: f32, token_id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(token_id)
}

/// Returns the token id of a [`sort_key`].
pub fn key_token(key: u64) -> u32 {
    key as u32
}

/// The constants that turn the logits of a row into logprobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution {
    pub(super) top: f32,
    /// Natural logarithm of the sum of exp(logit - top).
    pub(super) log_mass: f64,
}

impl Distribution {
    /// Returns the natural logarithm of the probability of a token with this logit.
    pub(super) fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.top) - self.log_mass) as f32
    }
}

simd_entry! {
    /// Returns the largest element if the row can be sampled from.
    pub(super) fn largest = largest_generic(x: &[f32]) -> Largest;
}

simd_entry! {
    /// Replaces the elements whose bit in `mask` is not set by negative infinity. Bit `i % 8` of byte `i / 8` is
    /// element `i`. Elements beyond the mask are replaced as well.
    pub fn keep = keep_generic(x: &mut [f32], mask: &[u8]) -> ();
}

simd_entry! {
    /// Returns the sum of the weights exp((x - largest) * inverse_temperature), which is exact up to 2^20.
    pub fn mass = mass_generic(x: &[f32], largest: f32, inverse_temperature: f32) -> f64;
}

simd_entry! {
    /// Replaces logits by the weights that [`mass`] sums.
    pub fn weigh = weigh_generic(x: &mut [f32], largest: f32, inverse_temperature: f32) -> ();
}

simd_entry! {
    /// Returns the number of elements that are at least `lowest`.
    pub fn count = count_generic(x: &[f32], lowest: f32) -> usize;
}

simd_entry! {
    /// Appends the [`sort_key`] of every element that is at least `lowest`.
    pub(super) fn gather = gather_generic(x: &[f32], lowest: f32, out: &mut Vec<u64>);
}
