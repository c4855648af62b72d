//! Multiplication by a number, which some models apply to embeddings.

use crate::vector::{Lanes, elementwise};

elementwise! {
    /// Computes `x *= factor` for each element.
    pub fn scale_in_place<L: Lanes>(x; factor: f32) { x.mul(L::splat(factor)) }
}
