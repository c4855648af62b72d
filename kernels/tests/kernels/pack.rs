use half::f16;
use trunkline_kernels::pack::{Format, InterleavedHeads, PackError, SourceRows, dequantize_row, encode};

use crate::random::Random;

#[test]
fn interleaved_heads_are_put_in_order() {
    // Two heads of six rows of one number each, stored as 0 3 1 4 2 5.
    let stored = [0u32, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15].map(u32::to_le_bytes).concat();
    let rows = SourceRows::new(Format::F32, &stored, 12, 1).unwrap();
    let read = |head_size, rotary_size| {
        let ordered = rows.interleaved(InterleavedHeads { head_size, rotary_size }).unwrap();
        (0..12).map(|row| ordered.row(row)[0]).collect::<Vec<u8>>()
    };
    assert_eq!(read(6, 6), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
    // Only the first four rows of a head.
    assert_eq!(read(6, 4), [0, 1, 3, 4, 2, 5, 10, 11, 13, 14, 12, 15]);
    for (head_size, rotary_size) in [(0, 0), (6, 0), (6, 5), (6, 8), (8, 8)] {
        let error = rows.interleaved(InterleavedHeads { head_size, rotary_size }).unwrap_err();
        assert_eq!(error, PackError::Heads { num_rows: 12, head_size, rotary_size });
    }
}

/// Quantises and reads back.
fn through(values: &[f32], format: Format) -> Option<Vec<f32>> {
    let mut bytes = vec![0; values.len() / 32 * format.block_bytes()];
    if !encode(values, format, &mut bytes) {
        return None;
    }
    let mut found = vec![0.0; values.len()];
    dequantize_row(format, &bytes, &mut found).unwrap();
    Some(found)
}

/// Returns the sum of squared errors, each weighted by the size of the value.
fn weighted_error(found: &[f32], values: &[f32]) -> f64 {
    found.iter().zip(values).map(|(a, b)| f64::from(a - b).powi(2) * f64::from(b.abs())).sum()
}

#[test]
fn encoded_values_are_near() {
    let mut random = Random::new(7);
    for round in 0..400 {
        let size = (0.5f32).powi(round % 6);
        let values: Vec<f32> = (0..32).map(|_| size * random.float().powi(3)).collect();
        let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let found = through(&values, Format::Q8_0).unwrap();
        for (found, value) in found.iter().zip(&values) {
            // Half a step, and what rounding the scale to 11 bits takes from the largest.
            assert!((found - value).abs() <= largest * (0.5 / 127.0 + 0.5f32.powi(11)), "{found} {value}");
        }
        // The search is at least as good as the whole range.
        let (low, high) =
            values.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let scale = f16::from_f32((high - low) / 15.0).to_f32();
        let min = f16::from_f32(0.5 * (low + high) - 7.5 * scale).to_f32();
        let plain: Vec<f32> = values
            .iter()
            .map(|x| ((x - min) / scale).round_ties_even().clamp(0.0, 15.0) * scale + min)
            .collect();
        let found = through(&values, Format::Q4_1).unwrap();
        let (error, plain) = (weighted_error(&found, &values), weighted_error(&plain, &values));
        assert!(error <= plain * 1.0001, "{error} {plain}");
    }
}

#[test]
fn values_of_the_format_stay_as_they_are() {
    let eighths: Vec<f32> = (0..32).map(|i| ((i * 37 % 255) as f32 - 127.0) / 8.0).collect();
    assert_eq!(through(&eighths, Format::Q8_0).unwrap(), eighths);
    let fours: Vec<f32> = (0..32).map(|i| (i * 7 % 16) as f32 * 0.25 - 1.5).collect();
    assert_eq!(through(&fours, Format::Q4_1).unwrap(), fours);
    for format in [Format::Q8_0, Format::Q4_1] {
        assert_eq!(through(&[0.0; 64], format).unwrap(), [0.0; 64]);
    }
    assert_eq!(through(&[-2.5; 32], Format::Q4_1).unwrap(), [-2.5; 32]);
}

#[test]
fn values_that_no_block_can_hold_are_refused() {
    for format in [Format::Q8_0, Format::Q4_1] {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30] {
            for at in [0, 31, 40, 63] {
                let mut values = [0.5; 64];
                values[at] = value;
                assert_eq!(through(&values, format), None, "{format} {value} at {at}");
            }
        }
    }
}
