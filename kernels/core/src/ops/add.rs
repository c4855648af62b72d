//! Elementwise sums, for the residual stream, and products, for gates.

use crate::vector::{Lanes, elementwise};

elementwise! {
    /// Computes `x += y`. Panics if the lengths differ.
    pub fn add_in_place<L: Lanes>(x, y) { x.add(y) }
}

elementwise! {
    /// Computes `x *= y` for each element. Panics if the lengths differ.
    pub fn mul_in_place<L: Lanes>(x, y) { x.mul(y) }
}
