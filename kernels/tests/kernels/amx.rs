use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::amx::linear_by_model;
use trunkline_kernels::isa::{Isa, IsaKind};
use trunkline_kernels::linear::{LinearInput, LinearOutput, linear};
use trunkline_kernels::pack::{Format, PackedWeight};
use trunkline_kernels::quantize::{QuantizedRows, QuantizedShape, quantize_rows};
use trunkline_kernels::shared_mut::SharedMut;

use crate::random::{Random, bits};

const IN_FEATURES: usize = 512;

fn scalar_product(weight: &PackedWeight, rows: QuantizedRows<'_>, bias: Option<&[f32]>) -> Vec<f32> {
    let (num_rows, row_stride) = (rows.shape().num_rows(), weight.out_features());
    let mut values = vec![0.0; num_rows * row_stride];
    let out = LinearOutput { values: SharedMut::new(&mut values), row_stride };
    // SAFETY: one thread.
    unsafe { linear(Isa::SCALAR, weight, LinearInput::Quantized(rows), 0..num_rows, 0..1, out, bias) };
    values
}

#[test]
fn products_by_the_model_of_tiles_have_the_bits_of_scalar() {
    if Isa::new(IsaKind::Avx512).is_err() {
        return;
    }
    let mut random = Random::new(77);
    for format in Format::ALL.into_iter().filter(|format| format.needs_quantized_input()) {
        for (num_rows, num_lanes) in [(16, 16), (15, 16), (37, 9), (1, 1), (64, 16)] {
            let mut bytes: Vec<u8> = (0..format.row_bytes(IN_FEATURES).unwrap() * num_lanes)
                .map(|_| random.next() as u8)
                .collect();
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                // The upper bytes of all numbers of half precision there are: finite.
                for at in [1, 3, block.len() - 1] {
                    block[at] &= 0xbf;
                }
            }
            let weight = PackedWeight::pack(format, &bytes, num_lanes, IN_FEATURES).unwrap();
            let x = random.normals(num_rows * IN_FEATURES);
            let shape = QuantizedShape::new(num_rows, IN_FEATURES);
            let mut buffer = AlignedBytes::zeroed(shape.num_bytes());
            let shared = SharedMut::new(buffer.as_mut_slice());
            // SAFETY: one thread.
            unsafe { quantize_rows(Isa::SCALAR, shape, &x, IN_FEATURES, 0..num_rows, shared) };
            let rows = QuantizedRows::new(shape, buffer.as_slice());
            let bias = random.normals(num_lanes);
            for bias in [None, Some(bias.as_slice())] {
                let (expected, actual) =
                    (scalar_product(&weight, rows, bias), linear_by_model(&weight, &rows, bias));
                assert_eq!(bits(&actual), bits(&expected), "{format} {num_rows} rows");
            }
        }
    }
}
