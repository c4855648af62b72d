//! Products with packed weights: `y[row, out] = sum over k of x[row, k] * w[out, k]`, plus bias.
//!
//! # The order of float operations
//! Every instruction set, number of rows, cut into tiles and number of threads gives the same bits, because each
//! output element is computed by one chain of operations:
//!
//! - integer weights, over groups `g` in order, from `acc = 0`:
//!   `acc = fma(w_scale[g] * x_scale[g], dot[g] as f32, acc)`, where `dot` is the exact integer product of the group
//!   less the zero point (below 2^24, so its conversion is exact); then, if the format has minima,
//!   `acc = fma(w_min[g], x_scaled_sum[g], acc)`;
//! - float weights: over runs of [`FLOAT_RUN`] elements in order, `part = fma(w, x, part)` from 0 over the run in
//!   order, then `acc = acc + part` (shorter chains, smaller error);
//! - last `acc + bias`, if there is one.
//!
//! # Cost
//! One row reads the weight once, front to back: memory bandwidth decides. Many rows go in panels of [`PANEL`] whose
//! sums stay in registers; a tile of weights stays in L1 or L2 while the panels of a block of rows pass by.

mod product;

pub(crate) use product::{FloatPanel, PanelOutput};
pub use product::{FloatRows, LinearInput, LinearOutput, linear, share};

/// Output features that kernels compute side by side.
pub const TILE: usize = 16;

/// Rows that kernels compute side by side.
pub const PANEL: usize = 8;

/// Elements that one lane of an integer dot product instruction takes.
pub(crate) const QUAD: usize = 4;

/// Elements of a float row that are summed by themselves.
pub(crate) const FLOAT_RUN: usize = 32;
