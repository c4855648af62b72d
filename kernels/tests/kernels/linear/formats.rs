//! Tests of the values of every format, and of the accuracy of products.

use trunkline_kernels::isa::Isa;
use trunkline_kernels::pack::{Format, PackedWeight, dequantize_row, packed_bytes};

use super::reference;
use super::whole_product;
use crate::random::{Random, bits};

#[test]
fn rows_dequantise_to_the_bits_of_the_specification() {
    for format in Format::ALL {
        let mut random = Random::new(1);
        let (out_features, in_features) = (37, 512);
        let bytes = random.weight(format, out_features, in_features);
        let weight = PackedWeight::pack(format, &bytes, out_features, in_features).unwrap();
        for (index, row) in bytes.chunks_exact(format.row_bytes(in_features).unwrap()).enumerate() {
            let expected: Vec<f32> = (0..in_features).map(|k| reference::element(format, row, k)).collect();
            let mut actual = vec![0.0; in_features];
            dequantize_row(format, row, &mut actual).unwrap();
            assert_eq!(bits(&actual), bits(&expected), "{format} row {index} as in the file");
            actual.fill(0.0);
            weight.dequantize_row(index, &mut actual);
            assert_eq!(bits(&actual), bits(&expected), "{format} row {index} packed");
        }
    }
}

#[test]
fn every_half_float_value_survives_packing() {
    for (format, is_nan) in [
        (Format::F16, (|half: u16| half & 0x7fff > 0x7c00) as fn(u16) -> bool),
        (Format::BF16, |half: u16| half & 0x7fff > 0x7f80),
    ] {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let weight = PackedWeight::pack(format, &bytes, 256, 256).unwrap();
        for (row, halves) in halves.chunks(256).enumerate() {
            let mut actual = [0.0; 256];
            weight.dequantize_row(row, &mut actual);
            for (actual, half) in actual.iter().zip(halves) {
                let expected = reference::element(format, &half.to_le_bytes(), 0);
                let is_small = format == Format::BF16 && expected.abs() < 2f32.powi(-50);
                let expected = if is_small { 0.0 } else { expected };
                assert_eq!(actual.is_nan(), is_nan(*half), "{format} {half:#06x}");
                assert!(actual.is_nan() || actual.to_bits() == expected.to_bits(), "{format} {half:#06x}");
            }
        }
    }
}

/// The allowed rounding error of a sum of up to 2048 terms, relative to the sum of magnitudes. It is far below the
/// worst case of (terms per chain) * 2^-24 and far above observed errors.
const ROUNDING: f64 = 4e-6;

#[test]
fn products_are_within_rounding_of_the_exact_product() {
    for format in Format::ALL {
        for (out_features, in_features, num_rows) in [(33, 512, 3), (16, 2048, 9)] {
            let mut random = Random::new(2);
            let bytes = random.weight(format, out_features, in_features);
            let weight = PackedWeight::pack(format, &bytes, out_features, in_features).unwrap();
            let x = random.activations(num_rows * in_features);
            let y = whole_product(Isa::SCALAR, &weight, &x);
            for (row, x) in x.chunks_exact(in_features).enumerate() {
                let exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                // Products that quantise or round their input are compared with that, and within half a step with the
                // true input.
                let (used, half_steps) = if weight.needs_quantized_input() {
                    reference::quantized(x)
                } else if weight.needs_rounded_input() {
                    reference::rounded(x)
                } else {
                    (exact.clone(), vec![0.0; in_features])
                };
                for out in 0..out_features {
                    let row_bytes = format.row_bytes(in_features).unwrap();
                    let w = (0..in_features).map(|k| {
                        f64::from(reference::element(format, &bytes[out * row_bytes..][..row_bytes], k))
                    });
                    let (mut of_used, mut of_exact, mut magnitude, mut quantisation) = (0.0, 0.0, 0.0, 0.0);
                    for (k, w) in w.enumerate() {
                        of_used += w * used[k];
                        of_exact += w * exact[k];
                        // The quant and the minimum are multiplied separately, so both magnitudes count.
                        magnitude += (w.abs() + 4.0) * used[k].abs();
                        quantisation += w.abs() * half_steps[k];
                    }
                    let actual = f64::from(y[row * out_features + out]);
                    let rounding = ROUNDING * magnitude;
                    let context = format!("{format} [{out_features}, {in_features}] row {row} output {out}");
                    assert!((actual - of_used).abs() <= rounding, "{context}: {actual} for {of_used}");
                    let bound = quantisation * (1.0 + 1e-5) + rounding;
                    assert!((actual - of_exact).abs() <= bound, "{context}: {actual} for {of_exact}");
                }
            }
        }
    }
}

#[test]
fn packed_weights_take_little_more_than_their_files() {
    for format in Format::ALL {
        let (out_features, in_features) = (4096, 4096);
        let file = format.row_bytes(in_features).unwrap() * out_features;
        let packed = packed_bytes(format, out_features, in_features).unwrap();
        assert!(packed * 100 <= file * 104, "{format}: {packed} bytes for {file}");
    }
}
