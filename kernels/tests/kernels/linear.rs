//! Tests of packed weights, quantised activations and products against the specification and against each other.

mod errors;
mod exact;
mod formats;
mod quantize;
pub mod reference;

use std::ops::Range;

use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::linear::{FloatRows, LinearInput, LinearOutput, linear};
use trunkline_kernels::linear::{QuantizedRows, QuantizedShape, quantize_rows, round_row};
use trunkline_kernels::pack::{Format, PackedWeight};
use trunkline_kernels::shared_mut::SharedMut;

/// The initial value of outputs, which shows what was not written.
const UNTOUCHED: f32 = 12345.0;

fn quantize(isa: Isa, x: &[f32], in_features: usize) -> (QuantizedShape, AlignedBytes) {
    let shape = QuantizedShape::new(x.len() / in_features, in_features);
    let mut bytes = AlignedBytes::zeroed(shape.num_bytes());
    let out = SharedMut::new(bytes.as_mut_slice());
    // SAFETY: there is only one thread.
    unsafe { quantize_rows(isa, shape, x, in_features, 0..shape.num_rows(), out) };
    (shape, bytes)
}

/// Rounds rows for weights that need it.
fn rounded(isa: Isa, weight: &PackedWeight, x: &[f32]) -> Option<Vec<f32>> {
    weight.needs_rounded_input().then(|| {
        let mut out = vec![f32::NAN; x.len()];
        let rows = x.chunks_exact(weight.in_features());
        rows.zip(out.chunks_exact_mut(weight.in_features())).for_each(|(x, out)| round_row(isa, x, out));
        out
    })
}

/// Computes `tiles` of the product with all rows of `x`. The rest stays `UNTOUCHED`.
pub fn product(
    isa: Isa,
    weight: &PackedWeight,
    x: &[f32],
    tiles: Range<usize>,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let num_rows = x.len() / weight.in_features();
    let mut y = vec![UNTOUCHED; num_rows * weight.out_features()];
    let out = LinearOutput { values: SharedMut::new(&mut y), row_stride: weight.out_features() };
    let quantized = weight.needs_quantized_input().then(|| quantize(isa, x, weight.in_features()));
    let (rounded, row_stride) = (rounded(isa, weight, x), weight.in_features());
    let input = match (&quantized, &rounded) {
        (Some((shape, bytes)), _) => LinearInput::Quantized(QuantizedRows::new(*shape, bytes.as_slice())),
        (None, Some(values)) => LinearInput::Rounded(FloatRows { values, row_stride }),
        (None, None) => LinearInput::Float(FloatRows { values: x, row_stride }),
    };
    // SAFETY: there is only one thread.
    unsafe { linear(isa, weight, input, 0..num_rows, tiles, out, bias) };
    y
}

fn whole_product(isa: Isa, weight: &PackedWeight, x: &[f32]) -> Vec<f32> {
    product(isa, weight, x, 0..weight.num_tiles(), None)
}

/// The example of the crate's documentation, which is not compiled there.
#[test]
fn the_example_of_the_documentation_works() -> Result<(), Box<dyn std::error::Error>> {
    // y = x * w^T with w [3, 2].
    let w: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let w = PackedWeight::pack(Format::F32, &w, 3, 2)?;
    let x = [1.0, 10.0];
    let mut y = [0.0; 3];
    let input = LinearInput::Float(FloatRows { values: &x, row_stride: 2 });
    let out = LinearOutput { values: SharedMut::new(&mut y), row_stride: 3 };
    // SAFETY: no other thread uses `y`.
    unsafe { linear(Isa::detect()?, &w, input, 0..1, 0..w.num_tiles(), out, None) };
    assert_eq!(y, [21.0, 43.0, 65.0]);
    Ok(())
}
