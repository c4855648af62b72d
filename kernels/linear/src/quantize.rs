//! The entry point of quantising activations.

use std::ops::Range;

use super::kernels::call_isa;
use super::quantized::{QuantizeJob, QuantizedShape};
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::shared_mut::SharedMut;

/// Quantises `rows` and writes them to the same rows of `out`. `x` begins with row `rows.start`, and its rows are
/// `row_stride` elements apart.
///
/// `shape` is the shape of all rows. Several threads may quantise disjoint `rows`.
///
/// # Panics
/// Panics if a slice is too short or the address of `out` is not a multiple of 64.
///
/// # Safety
/// During the call no other thread may access the same rows of `out`.
pub unsafe fn quantize_rows(
    isa: Isa,
    shape: QuantizedShape,
    x: &[f32],
    row_stride: usize,
    rows: Range<usize>,
    out: SharedMut<'_, u8>,
) {
    let is_empty = rows.is_empty() || shape.in_features() == 0;
    // SAFETY: the conditions are the same, and the `Isa` proves that the CPU has its features.
    unsafe {
        let job = QuantizeJob::new(shape, x, row_stride, rows, out);
        if !is_empty {
            call_isa!(isa, quantize_rows(&job));
        }
    }
}
