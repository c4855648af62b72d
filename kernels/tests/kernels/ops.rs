//! The operations of a step: against what they are to compute, and every instruction set against the scalar one.

pub mod attention;
mod exp;
mod exp2;
mod hadamard;
mod quantize_head;
mod quantize_nibbles;
mod rows;
mod window;

/// Elements of a vector.
const LANES: usize = 16;

/// What the sixteen values of a nibble of K and V stand for, in units of the scale.
pub const NIBBLE_LEVELS: [i8; 16] = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];
