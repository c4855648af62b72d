//! Products with packed weights: `y[row, out] = sum over k of x[row, k] * w[out, k]`, plus bias.
//!
//! # The order of float operations
//! Every instruction set, number of rows, cut into tiles and number of threads gives the same bits, because each
//! output element is computed by one chain of operations:
//!
//! - integer weights, over groups `g` of 32 or 16 weights in order, from `acc` = 0 (NaN for a row that is not finite):
//!   `acc = fma(w_scale[g] * x_scale[h], dot[g] as f32, acc)`, where `h` is the group of 32 activations
//!   ([`crate::quantize`]) that `g` lies in; then, if the format has minima, `acc = fma(w_min[g], x_sum[h], acc)`.
//!   `dot` is the exact integer product of the weights, less the zero point, and quants (below 2^25, so that i32 holds
//!   it; as f32 to nearest, ties to even). The product of scales is exact: at most 19 bits times 4;
//! - float weights: over runs of [`FLOAT_RUN`] elements in order, `part = fma(w, x, part)` from 0 over the run in
//!   order, then `acc = acc + part` (shorter chains, smaller error);
//! - last `acc + bias`, if there is one.
//!
//! # Cost
//! One row reads the weight once, front to back: memory bandwidth decides. Many rows go in panels of [`PANEL`] whose
//! sums stay in registers; a tile of weights stays in L1 or L2 while the panels of a block of rows pass by.

mod product;

pub(crate) use product::{FloatPanel, TileOutput};
pub use product::{FloatRows, LinearInput, LinearOutput, linear};

/// Output features that kernels compute side by side.
pub const TILE: usize = 16;

/// Rows that kernels compute side by side.
pub const PANEL: usize = 8;

/// Elements that one lane of an integer dot product instruction takes.
pub(crate) const QUAD: usize = 4;

/// Elements of a float row that are summed by themselves.
pub(crate) const FLOAT_RUN: usize = 32;
