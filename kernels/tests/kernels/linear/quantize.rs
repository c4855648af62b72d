//! Tests of quantised rows, read from their bytes according to the layout in `linear/src/quantized.rs`.

use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::linear::{QUANT_GROUP, QuantizedShape, quantize_rows};
use trunkline_kernels::shared_mut::SharedMut;

use crate::random::Random;

const QUAD: usize = 4;
const GROUP_QUADS: usize = QUANT_GROUP / QUAD;
const SMALLEST_SCALE: f32 = f32::from_bits((127 - 100) << 23);
/// Bits of 2^100. Larger magnitudes count as not finite.
const TOO_LARGE_BITS: u32 = (127 + 100) << 23;

/// A group of 32 quants, 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct QuantGroup {
    low: [i8; QUANT_GROUP],
    /// The high bytes of the top quad.
    high: [i8; QUAD],
    scale: f32,
    sum: f32,
    negated_sum: i32,
    negated_half_sum: i32,
    top_offset: u16,
    level_offset: u16,
    nibble_mask: u32,
    nibble_shift: u32,
}

impl QuantGroup {
    fn read(bytes: &[u8; 64]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            low: std::array::from_fn(|at| bytes[at] as i8),
            high: std::array::from_fn(|at| bytes[32 + at] as i8),
            scale: f32::from_bits(word(36)),
            sum: f32::from_bits(word(40)),
            negated_sum: word(44).cast_signed(),
            negated_half_sum: word(48).cast_signed(),
            top_offset: half(52),
            level_offset: half(54),
            nibble_mask: word(56),
            nibble_shift: word(60),
        }
    }

    /// Returns the index of the top quad, from the offset of its 64-byte vector.
    fn top_quad(&self) -> usize {
        usize::from(self.top_offset) / 64
    }
}

/// Returns the start value of a row's sums, and its groups. The start values of all rows are padded to 64 bytes, and
/// the distance between rows is an odd number of groups.
fn read_row(shape: QuantizedShape, bytes: &[u8], row: usize) -> (f32, Vec<QuantGroup>) {
    let start = f32::from_ne_bytes(*bytes[4 * row..].first_chunk().unwrap());
    let num_groups = shape.in_features() / QUANT_GROUP;
    let first = (4 * shape.num_rows()).next_multiple_of(64) + row * (num_groups | 1) * 64;
    let (groups, _) = bytes[first..][..64 * num_groups].as_chunks();
    (start, groups.iter().map(QuantGroup::read).collect())
}

/// Quantises rows with every instruction set, checks that all bytes are the same, and returns them.
fn quantized(x: &[f32], num_rows: usize, row_stride: usize) -> AlignedBytes {
    let shape = QuantizedShape::new(num_rows, x.len() - (num_rows - 1) * row_stride);
    let quantize = |isa| {
        let mut bytes = AlignedBytes::zeroed(shape.num_bytes());
        let out = SharedMut::new(bytes.as_mut_slice());
        // SAFETY: there is only one thread.
        unsafe { quantize_rows(isa, shape, x, row_stride, 0..num_rows, out) };
        bytes
    };
    let expected = quantize(Isa::SCALAR);
    for isa in Isa::available() {
        let got = quantize(isa);
        let differs = got.as_slice().iter().zip(expected.as_slice()).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{isa}, {num_rows} rows of {}", shape.in_features());
    }
    expected
}

/// Quantises one row. Returns the start value of its sums, the values of its quants, and the groups.
fn values_and_groups(x: &[f32]) -> (f32, Vec<f64>, Vec<QuantGroup>) {
    let shape = QuantizedShape::new(1, x.len());
    let (start, groups) = read_row(shape, quantized(x, 1, 0).as_slice(), 0);
    let value = |at: usize| {
        let group = &groups[at / QUANT_GROUP];
        let element = at % QUANT_GROUP;
        let is_top = element / QUAD == group.top_quad();
        let high = if is_top { f64::from(group.high[element % QUAD]) } else { 0.0 };
        f64::from(group.scale) * (f64::from(group.low[element]) + 256.0 * high)
    };
    (start, (0..x.len()).map(value).collect(), groups)
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |largest, x| largest.max(x.abs()))
}

#[test]
fn quants_are_as_fine_as_the_other_quads_allow() {
    let mut random = Random::new(31);
    for outlier in [1.0, 40.0, 1e5, 1e20] {
        for size in [1.0, 1e-9, 1e9] {
            let mut x: Vec<f32> = (0..128).map(|_| size * random.float()).collect();
            for group in x.chunks_mut(QUANT_GROUP) {
                group[random.below(QUANT_GROUP)] *= outlier;
            }
            let (start, values, groups) = values_and_groups(&x);
            assert_eq!(start.to_bits(), 0);
            for (group, (x, values)) in
                groups.iter().zip(x.chunks(QUANT_GROUP).zip(values.chunks(QUANT_GROUP)))
            {
                let top = group.top_quad();
                let others = [&x[..top * QUAD], &x[(top + 1) * QUAD..]].concat();
                assert_eq!(largest(&x[top * QUAD..][..QUAD]), largest(x));
                // Rounding the significand up to 4 bits adds at most an eighth.
                let needed = f64::from((largest(&others) / 127.0).max(largest(x) / 32639.0));
                let scale = f64::from(group.scale);
                assert!((0.9999 * needed..=1.1251 * needed).contains(&scale), "{scale} for {needed}");
                for (x, value) in x.iter().zip(values) {
                    let bound = 0.5 * scale + 3e-7 * f64::from(x.abs());
                    assert!((f64::from(*x) - value).abs() <= bound, "{x} as {value}, {group:?}");
                }
                let sum: f64 = values.iter().sum();
                assert!((f64::from(group.sum) - sum).abs() <= 1e-7 * sum.abs());
                assert_eq!(f64::from(group.negated_sum), (-sum / scale).round());
                let half_sum: f64 = values[..16].iter().sum();
                assert_eq!(f64::from(group.negated_half_sum), (-half_sum / scale).round());
            }
        }
    }
}

#[test]
fn a_scale_is_its_level_times_a_power_of_two() {
    let mut random = Random::new(32);
    let x: Vec<f32> = (0..32 * 200).map(|at| 1.07f32.powi(at / 32 - 100) * random.float()).collect();
    let (_, _, groups) = values_and_groups(&x);
    for group in groups {
        // Levels are 4-bit significands.
        let level = 1.0 + f32::from(group.level_offset / 64) / 8.0;
        let power = (group.scale / level).to_bits();
        assert_eq!(power << 9, 0, "{group:?}");
    }
}

#[test]
fn the_first_of_equal_quads_is_the_top_quad() {
    for first in 0..GROUP_QUADS {
        let mut x = [0.5; QUANT_GROUP];
        for quad in first..GROUP_QUADS {
            x[quad * QUAD + quad % QUAD] = if quad % 2 == 0 { -2.0 } else { 2.0 };
        }
        let (_, _, groups) = values_and_groups(&x);
        assert_eq!(groups[0].top_quad(), first);
        assert_eq!(groups[0].nibble_mask << groups[0].nibble_shift >> 8, 0x0f_0f0f);
    }
}

#[test]
fn zeros_and_tiny_values_become_zeros() {
    for value in [0.0, -0.0, f32::from_bits(1), 1e-42, -f32::MIN_POSITIVE, 1e-32] {
        let (start, values, groups) = values_and_groups(&[value; 32]);
        assert_eq!((start, groups[0].scale), (0.0, SMALLEST_SCALE));
        assert!(values.iter().all(|&actual| actual == 0.0), "{value}: {values:?}");
    }
}

#[test]
fn a_row_that_is_not_finite_starts_from_nan() {
    let limit = f32::from_bits(TOO_LARGE_BITS);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN, limit] {
        let mut x = [1.0; 96];
        x[33] = bad;
        let (start, values, groups) = values_and_groups(&x);
        assert!(start.is_nan(), "{bad}");
        assert!(values[32..64].iter().all(|&value| value == 0.0), "{bad}: {values:?}");
        assert!(groups.iter().all(|group| group.scale.is_finite() && group.sum.is_finite()), "{bad}");
    }
    let largest = f32::from_bits(TOO_LARGE_BITS - 1);
    let (start, values, _) = values_and_groups(&[largest; 32]);
    assert_eq!(start, 0.0);
    assert!(values.iter().all(|value| (value / f64::from(largest) - 1.0).abs() < 0.01), "{values:?}");
}

/// Puts difficult values into a group: overflow, underflow, ties, or values at which scales change.
fn harden(group: &mut [f32], random: &mut Random) {
    let at = random.below(QUANT_GROUP);
    match random.below(12) {
        0 => group.fill(0.0),
        1 => group.fill(-0.0),
        2 => group[at] = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(4)],
        3 => group[at] = f32::from_bits(TOO_LARGE_BITS - random.below(3) as u32 + 1),
        4 => group.iter_mut().for_each(|x| *x *= 1e-38),
        5 => group.iter_mut().for_each(|x| *x = f32::from_bits(random.below(1 << 23) as u32)),
        6 => group.iter_mut().for_each(|x| *x *= f32::from_bits((127 - 99) << 23)),
        // Equal magnitudes in all quads, or in two.
        7 => group.iter_mut().for_each(|x| *x = 3.0f32.copysign(*x)),
        8 => (group[at], group[random.below(QUANT_GROUP)]) = (-7.5, 7.5),
        // Halves between quants for scale 1 and the adjacent scales.
        9 => {
            group.iter_mut().for_each(|x| *x = (*x * 126.0).round() + 0.5);
            group[at] = 127.0 + (random.below(3) as f32 - 1.0) * 1e-5;
        }
        10 => group[at] *= 1e6,
        _ => group[at] = 32639.0 * 0.7 * (1.0 + random.below(3) as f32 * f32::EPSILON),
    }
}

#[test]
fn every_instruction_set_writes_the_same_bytes_for_hard_rows() {
    let mut random = Random::new(33);
    for round in 0..400 {
        let (num_rows, num_groups) = (1 + round % 5, 1 + random.below(40));
        let width = num_groups * QUANT_GROUP;
        let row_stride = width + random.below(3) * 5;
        let mut x: Vec<f32> = (0..(num_rows - 1) * row_stride + width).map(|_| random.float()).collect();
        // Most rows are finite, with a few exceptions.
        for group in x.chunks_exact_mut(QUANT_GROUP) {
            if random.below(4) == 0 {
                harden(group, &mut random);
            }
        }
        quantized(&x, num_rows, row_stride);
    }
}

#[test]
fn one_row_of_every_length_is_the_same_as_among_others() {
    let mut random = Random::new(34);
    for num_groups in 1..=36 {
        let width = num_groups * QUANT_GROUP;
        let x: Vec<f32> = (0..3 * width).map(|_| random.normal()).collect();
        let shape = QuantizedShape::new(3, width);
        let together = quantized(&x, 3, width);
        for row in 0..3 {
            let (_, _, alone) = values_and_groups(&x[row * width..][..width]);
            assert_eq!(read_row(shape, together.as_slice(), row).1, alone);
        }
    }
}
