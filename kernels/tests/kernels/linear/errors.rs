//! Tests of invalid arguments and their messages.

use trunkline_kernels::isa::Isa;
use trunkline_kernels::linear::{FloatRows, LinearInput, LinearOutput, linear};
use trunkline_kernels::pack::{Format, PackError, PackedWeight, dequantize_row};
use trunkline_kernels::shared_mut::SharedMut;

use crate::random::Random;

#[test]
fn bytes_that_do_not_match_the_shape_are_refused() {
    for format in Format::ALL {
        let bytes = Random::new(20).weight(format, 3, 256);
        let expected = bytes.len();
        for actual in [0, 1, expected / 2, expected - 1, expected + 1] {
            let mut bytes = bytes.clone();
            bytes.resize(actual, 0);
            let error = PackedWeight::pack(format, &bytes, 3, 256).expect_err("wrong length");
            assert_eq!(
                error,
                PackError::Length { format, out_features: 3, in_features: 256, expected, actual }
            );
        }
    }
    let error = PackedWeight::pack(Format::Q4_1, &[0; 19], 1, 32).expect_err("truncated");
    assert_eq!(
        error.to_string(),
        "a Q4_1 weight of shape [1, 32] takes 20 bytes, got 19; hint: the file is truncated or the shape is wrong"
    );
}

#[test]
fn rows_with_a_partial_block_are_refused() {
    for format in Format::ALL.into_iter().filter(|format| format.block_elements() > 1) {
        let in_features = format.block_elements() + 16;
        let error = PackedWeight::pack(format, &[], 1, in_features).expect_err("not a multiple");
        let block_elements = format.block_elements();
        assert_eq!(error, PackError::InFeatures { format, in_features, block_elements });
    }
    let error = PackedWeight::pack(Format::Q4_K, &[], 1, 576).expect_err("not a multiple");
    assert!(error.to_string().starts_with("`in_features` is 576, but Q4_K comes in blocks of 256; hint: "));
}

#[test]
fn huge_shapes_are_refused_without_allocating() {
    for format in Format::ALL {
        assert_eq!(PackedWeight::pack(format, &[], 0, 256).unwrap_err(), PackError::Empty { format });
        assert_eq!(PackedWeight::pack(format, &[], 1, 0).unwrap_err(), PackError::Empty { format });
        let huge = PackedWeight::pack(format, &[0; 64], 1 << 60, 1 << 60).unwrap_err();
        assert!(matches!(huge, PackError::TooLarge { .. }), "{format}: {huge}");
        let large = PackedWeight::pack(format, &[0; 64], 1 << 40, 256).unwrap_err();
        assert!(matches!(large, PackError::Length { .. }), "{format}: {large}");
    }
}

#[test]
fn a_truncated_row_is_refused() {
    let mut out = [0.0; 32];
    let error = dequantize_row(Format::Q8_0, &[0; 33], &mut out).expect_err("truncated");
    assert!(matches!(error, PackError::Length { expected: 34, actual: 33, .. }), "{error}");
}

#[test]
fn unknown_formats_are_refused_by_name() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    let error = "Q8_K".parse::<Format>().expect_err("unknown");
    assert!(error.to_string().starts_with("weight format \"Q8_K\" is not supported; hint: use one of F32, "));
}

/// Multiplies rows of floats with a weight of one row. The output has room for one row.
fn multiply(format: Format, weight: &[u8], x: &[f32], num_rows: usize) {
    let in_features = x.len() / num_rows;
    let weight = PackedWeight::pack(format, weight, 1, in_features).unwrap();
    let mut y = [0.0];
    let out = LinearOutput { values: SharedMut::new(&mut y), row_stride: 1 };
    let input = LinearInput::Float(FloatRows { values: x, row_stride: in_features });
    // SAFETY: there is only one thread.
    unsafe { linear(Isa::SCALAR, &weight, input, 0..num_rows, 0..1, out, None) };
}

#[test]
#[should_panic(expected = "Q4_0 weights need a quantised input")]
fn float_input_for_integer_weights_panics() {
    multiply(Format::Q4_0, &[0; 18], &[0.0; 32], 1);
}

#[test]
#[should_panic(expected = "0..2 end at 2 of 1")]
fn an_output_that_is_too_short_panics() {
    multiply(Format::F32, &[0; 4], &[0.0; 2], 2);
}
