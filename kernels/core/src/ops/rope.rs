//! Rotary position embedding (arXiv:2104.09864), in the half-split ("NeoX") layout.

use crate::vector::{Lanes, each_vector, simd_entry};

/// The angular frequencies of a rotary embedding. cos and sin are computed once per step for all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    inv_freq: Vec<f64>,
    attention_factor: f64,
}

impl RopeFrequencies {
    /// Creates the frequencies. `inv_freq` has the radians per position of each rotated pair, with any scaling applied.
    /// `attention_factor` multiplies cos and sin.
    pub fn new(inv_freq: Vec<f64>, attention_factor: f64) -> Self {
        Self { inv_freq, attention_factor }
    }

    /// Number of rotated pairs, which is half the number of rotated elements of a head.
    pub fn num_pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// Writes the cos, then the sin, of one position: `2 * num_pairs` values, computed in f64 and rounded to f32.
    pub fn fill(&self, position: u32, out: &mut [f32]) {
        self.fill_scaled(position, self.attention_factor, out);
    }

    /// Like [`RopeFrequencies::fill`], without `attention_factor`, to rotate vectors to which it is already applied.
    pub fn fill_turn(&self, position: u32, out: &mut [f32]) {
        self.fill_scaled(position, 1.0, out);
    }

    fn fill_scaled(&self, position: u32, factor: f64, out: &mut [f32]) {
        let (cos, sin) = out.split_at_mut(self.inv_freq.len());
        for ((frequency, cos), sin) in self.inv_freq.iter().zip(cos).zip(sin) {
            let (s, c) = (f64::from(position) * frequency).sin_cos();
            *cos = (c * factor) as f32;
            *sin = (s * factor) as f32;
        }
    }
}

/// Rotates a head in f64 like [`rope_in_place`] if `direction` is 1, and back if it is -1.
pub fn turn(head: &mut [f64], cos_sin: &[f32], direction: f64) {
    let half = cos_sin.len() / 2;
    let (cos, sin) = cos_sin.split_at(half);
    let (first, rest) = head.split_at_mut(half);
    for (((a, b), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        let (cos, sin) = (f64::from(*cos), direction * f64::from(*sin));
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// The generic version of [`rope_in_place`], for inlining into other kernels.
///
/// # Safety
/// The CPU must have the instruction set of `L`.
#[inline(always)]
pub(crate) unsafe fn rope_generic<L: Lanes>(x: &mut [f32], cos_sin: &[f32], head_size: usize) {
    let half = cos_sin.len() / 2;
    assert!(head_size >= 2 * half && x.len().is_multiple_of(head_size));
    let (cos, sin) = cos_sin.split_at(half);
    for head in x.chunks_exact_mut(head_size) {
        let p = head.as_mut_ptr();
        each_vector!(half, |i, lanes| {
            // SAFETY: i + lanes is at most `half`, and the head holds at least 2 * half elements.
            unsafe {
                let (c, s) =
                    (L::load_first(cos.as_ptr().add(i), lanes), L::load_first(sin.as_ptr().add(i), lanes));
                let (a, b) = (L::load_first(p.add(i), lanes), L::load_first(p.add(half + i), lanes));
                b.fnma(s, a.mul(c)).store_first(p.add(i), lanes);
                a.fma(s, b.mul(c)).store_first(p.add(half + i), lanes);
            }
        });
    }
}

simd_entry! {
    /// Rotates each head of one row in place. `cos_sin` is the output of [`RopeFrequencies::fill`].
    ///
    /// The elements of a head after the rotated ones are unchanged. Panics if the length of `x` is not a multiple of
    /// `head_size`, or if `cos_sin` is longer than a head.
    pub fn rope_in_place = rope_generic(x: &mut [f32], cos_sin: &[f32], head_size: usize);
}
