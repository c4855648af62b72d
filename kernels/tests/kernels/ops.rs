//! Tests of the operations of a step against exact results, and of every instruction set against the scalar one.

mod exp;
mod exp2;
mod hadamard;
mod quantize_head;
mod quantize_nibbles;
mod rows;

const LANES: usize = 16;

/// The levels of the sixteen nibbles of K and V, in units of the scale.
pub const NIBBLE_LEVELS: [i8; 16] = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];
