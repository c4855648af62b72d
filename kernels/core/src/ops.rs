//! The float operations of a step, one file each, generic over [`crate::vector::Lanes`].
//!
//! Shapes are given in these letters: `T` tokens of a step, `S` sampled rows, `H` query heads, `G` KV heads, `D` head
//! size, `B` block size, `V` vocabulary size.

pub mod add;
pub mod exp;
pub mod exp2;
pub mod gelu;
pub mod hadamard;
pub mod join_heads;
pub mod layer_norm;
pub mod probe;
pub mod quantize_head;
pub mod quantize_nibbles;
pub mod recurrence;
pub mod relu_squared;
pub mod rms_norm;
pub mod rope;
pub mod route;
pub mod scale;
pub mod scaled_sum;
pub mod short_conv;
pub mod silu_mul;
pub mod softplus;
pub mod tanh;
