//! The square of the rectified linear unit (arXiv:2109.08668).

use crate::vector::{Lanes, elementwise};

elementwise! {
    /// Computes `x = max(x, 0)^2` for each element.
    pub fn relu_squared_in_place<L: Lanes>(x) {{
        // The order of operands lets NaN through.
        let positive = L::splat(0.0).max(x);
        positive.mul(positive)
    }}
}
