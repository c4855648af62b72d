//! The tile instructions by the manual (Intel SDM, volume 2: `TDPBSUD`, and chapter 2.17 of volume 1 on tiles), so that
//! tests run the kernel on processors that lack them. Nothing else calls it.

use std::cell::Cell;

use super::{Sums, Unit, VECTOR, linear_int_on};
use crate::isa::{Isa, IsaKind};
use crate::linear::{QUAD, TileOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{PackedWeight, dispatch_format};
use crate::quantize::QuantizedRows;

thread_local! {
    /// Elements of a row of activations, as configured; 0 when released.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

enum Model {}

impl Unit for Model {
    #[inline(never)]
    unsafe fn configure(depth: usize) {
        assert_eq!(DEPTH.replace(depth), 0, "configured twice");
        assert!(depth.is_multiple_of(QUAD) && depth <= VECTOR, "rows of {depth} bytes");
    }

    #[inline(never)]
    unsafe fn product(x: *const i8, x_stride: usize, weights: *const u8, sums: &mut Sums) {
        assert_ne!(DEPTH.get(), 0, "not configured");
        for (m, sums) in sums.0.iter_mut().enumerate() {
            sums.fill(0);
            for k in 0..DEPTH.get() / QUAD {
                for (n, sum) in sums.iter_mut().enumerate() {
                    for i in 0..QUAD {
                        // SAFETY: by the contract.
                        let (x, weight) = unsafe {
                            (*x.add(m * x_stride + k * QUAD + i), *weights.add(k * VECTOR + n * QUAD + i))
                        };
                        *sum = sum.wrapping_add(i32::from(x) * i32::from(weight));
                    }
                }
            }
        }
    }

    #[inline(never)]
    unsafe fn release() {
        assert_ne!(DEPTH.replace(0), 0, "not configured");
    }
}

/// The product of all rows with a weight of one tile, by this file's kernel and the model of its unit. Panics without
/// AVX-512, which the rest of the kernel needs, or if the weight is of floats.
pub fn linear_by_model(weight: &PackedWeight, rows: &QuantizedRows<'_>, bias: Option<&[f32]>) -> Vec<f32> {
    assert!(Isa::new(IsaKind::Avx512).is_ok() && weight.num_tiles() == 1);
    let num_lanes = weight.out_features();
    let mut values = vec![0.0; rows.shape().num_rows() * num_lanes];
    let out = TileOutput { values: values.as_mut_ptr(), row_stride: num_lanes, num_lanes, bias };
    dispatch_format!(weight.format(), int int, float float, (weight, rows, &out));
    values
}

fn int<F: IntFormat>(weight: &PackedWeight, rows: &QuantizedRows<'_>, out: &TileOutput<'_>) {
    let shape = rows.shape();
    let (tile, block) = (weight.tile(0), rows.block(0..shape.num_rows()));
    // SAFETY: the caller has seen AVX-512, and its output has room for all rows and lanes.
    unsafe { linear_int_on::<F, Model>(shape.in_features(), &tile, &block, out) };
}

fn float<F: FloatFormat>(_: &PackedWeight, _: &QuantizedRows<'_>, _: &TileOutput<'_>) {
    unreachable!("tiles multiply bytes");
}
