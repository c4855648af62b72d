//! Products with packed weights: `y[row, out] = sum over k of x[row, k] * w[out, k]`, plus bias.
//!
//! # The order of float operations
//! Every instruction set, number of rows, cut into tiles and number of threads gives the same bits, because each
//! output element is computed by one chain of operations:
//!
//! - integer weights, over groups `g` of weights in order, from `acc = 0`: over the activations' groups `h` of 16 in
//!   `g`, one or two, in order, `inner = fma(x_scale[h], dot[h] as f32, fma(x_offset[h], w_sum[h] as f32, inner))`,
//!   for the first `h` a product in place of the inner `fma`; then `acc = fma(w_scale[g], inner, acc)`; then, if the
//!   format has minima, `acc = fma(w_min[g], x_sum[g], acc)`. `dot` is the exact integer product of the 16 weights,
//!   less the zero point, and quants, `w_sum` the exact sum of those weights (both below 2^24, so that their
//!   conversions are exact), `x_sum` the sum of what the quants of `g` stand for ([`crate::quantize`]);
//! - float weights: over runs of [`FLOAT_RUN`] elements in order, `part = fma(w, x, part)` from 0 over the run in
//!   order, then `acc = acc + part` (shorter chains, smaller error);
//! - last `acc + bias`, if there is one.
//!
//! # Cost
//! One row reads the weight once, front to back: memory bandwidth decides. Many rows go in panels of [`PANEL`] whose
//! sums stay in registers; a tile of weights stays in L1 or L2 while the panels of a block of rows pass by.
//!
//! `w_sum` is not stored with the weights, which would cost bandwidth. Kernels sum the weights on their way where a
//! tile
//! is read for few rows; for more they are given the sums, made once a tile in a buffer that each thread keeps
//! (4 bytes an input feature).

mod product;

pub(crate) use product::{FloatPanel, LaneSums, PanelOutput};
pub use product::{FloatRows, LinearInput, LinearOutput, linear, share};

/// Output features that kernels compute side by side.
pub const TILE: usize = 16;

/// Rows that kernels compute side by side.
pub const PANEL: usize = 8;

/// Elements that one lane of an integer dot product instruction takes.
pub(crate) const QUAD: usize = 4;

/// Elements of a float row that are summed by themselves.
pub(crate) const FLOAT_RUN: usize = 32;
