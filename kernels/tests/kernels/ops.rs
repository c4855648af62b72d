//! Tests of the operations of a step against exact results, and of every instruction set against the scalar one.

mod exp;
mod exp2;
mod hadamard;
mod quantize_head;
mod quantize_nibbles;
pub mod recurrent;
mod rows;

use trunkline_kernels::isa::Isa;

use crate::on_all;

const LANES: usize = 16;

/// Like [`on_all`], for an operation that changes `x` in place.
fn in_place_on_all(what: &str, x: &[f32], operation: impl Fn(Isa, &mut [f32])) -> Vec<f32> {
    on_all(what, |isa| {
        let mut x = x.to_vec();
        operation(isa, &mut x);
        x
    })
}

/// The levels of the sixteen nibbles of K and V, in units of the scale.
pub const NIBBLE_LEVELS: [i8; 16] = [-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127];
