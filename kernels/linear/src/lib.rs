//! Matrix products with packed weights: `y[row, out] = sum over k of x[row, k] * w[out, k]`, plus bias.
//!
//! A crate of its own, so that it is compiled beside the other kernels. It uses only `trunkline-kernels-core`, and
//! `trunkline-kernels` re-exports it as `linear`. Begin with [`linear`] in `product.rs`; `kernels/` has a file for each
//! instruction set.
//!
//! # The order of float operations
//! The bits of the result depend on neither the instruction set, the number of rows, the division into tiles nor the
//! number of threads, because each output element is computed by one chain of operations:
//!
//! - Integer weights: `acc` starts at 0, or at NaN for a row that is not finite. For each group `g` of 32 or 16
//!   weights, in order, `acc = fma(w_scale[g] * x_scale[h], dot[g] as f32, acc)`, where `h` is the group of 32
//!   activations ([`quantized`]) that contains `g`. If the format has minima, then
//!   `acc = fma(w_min[g], x_sum[h], acc)`. `dot` is the exact integer dot product of the weights, minus the zero point,
//!   and the quants. It is below 2^25, so i32 holds it; the conversion to f32 rounds to nearest, ties to even. The
//!   product of scales is exact: at most 19 bits times 4 bits.
//! - Float weights: for each run of 32 elements, in order, `part = fma(w, x, part)` from 0 over its first half, then
//!   from 0 over its second half, then `acc = acc + (first + second)`, as AMX computes it. With bfloat16 weights, `x`
//!   is rounded to bfloat16 ([`round_row`]).
//! - Finally `acc + bias`, if there is a bias.
//!
//! # Forms
//! Kernels multiply bytes or nibbles with scales of binary16 or binary32. Weights that hold fewer bits are expanded to
//! one of these forms (`expand.rs`) a span of columns at a time, in the first-level cache. The sums of a span continue
//! those of the span before, in the same order.
//!
//! # Cost
//! A product with one row reads the weight once, front to back, and is limited by memory bandwidth. Many rows are
//! processed in panels of [`PANEL`] rows whose sums stay in registers. A tile of weights stays in L1 or L2 while all
//! panels of a block of rows are multiplied with it.

mod bf16;
mod expand;
mod float;
mod kernels;
mod low_rank;
mod product;
mod quantize;
mod quantized;

pub use bf16::round_row;
pub use low_rank::{Gain, add_low_rank};
pub use product::{FloatRows, LinearInput, LinearOutput, linear};
pub use quantize::quantize_rows;
pub use quantized::{QUANT_GROUP, QuantizedRows, QuantizedShape};

/// Number of rows that a kernel computes at once.
pub const PANEL: usize = 8;
