use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::probe::quantize_nibbles as quantize;

use super::{LANES, NIBBLE_LEVELS};
use crate::random::{Random, bits};

/// Returns level indices and scale computed with [`Isa::SCALAR`], without the padding.
fn quantized(x: &[f32]) -> (Vec<f32>, f32) {
    let mut numbers = x.to_vec();
    numbers.resize(x.len().next_multiple_of(LANES), 0.0);
    let scale = quantize(Isa::SCALAR, &mut numbers, x.len());
    numbers.truncate(x.len());
    (numbers, scale.to_f32())
}

#[test]
fn levels_are_the_nearest_and_the_error_is_small() {
    let mut random = Random::new(3);
    for head_size in [4, 16, 20, 64, 80, 128] {
        let (mut error, mut power) = (0.0, 0.0);
        for _ in 0..200 {
            let x = random.normals(head_size);
            let (numbers, scale) = quantized(&x);
            for (x, number) in x.iter().zip(numbers) {
                let distance = |level: i8| (x - f32::from(level) * scale).abs();
                let got = distance(NIBBLE_LEVELS[number as usize]);
                let least = NIBBLE_LEVELS.map(distance).into_iter().fold(f32::INFINITY, f32::min);
                assert!(got <= least + 1e-5, "{x} became level {number} of {scale}");
                error += got * got;
                power += x * x;
            }
        }
        // The error of rounding a normal distribution to its best 16 levels. A separate scale per head makes it
        // smaller.
        assert!(error < 0.0095 * power, "{head_size}: {}", error / power);
    }
}

#[test]
fn zeros_give_scale_zero_and_values_that_are_not_finite_give_nan() {
    assert_eq!(quantized(&[0.0, -0.0, 1e-40]).1, 0.0);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
        assert!(quantized(&[0.0, bad, 1.0]).1.is_nan());
    }
}

#[test]
fn bits_are_the_same_on_every_instruction_set() {
    let mut random = Random::new(4);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0, 1e-45, 1e-30, 1e-6, 9e6];
    for round in 0..400 {
        let head_size = [4, 16, 20, 64, 80, 128][round % 6];
        let mut x = random.normals(head_size);
        if round % 3 == 0 {
            let at = random.below(head_size);
            x[at] = special[random.below(special.len())];
        }
        x.resize(head_size.next_multiple_of(LANES), 0.0);
        let mut expected = x.clone();
        let scale = quantize(Isa::SCALAR, &mut expected, head_size);
        for isa in Isa::available() {
            let mut got = x.clone();
            let got_scale = quantize(isa, &mut got, head_size);
            assert_eq!((got_scale.to_bits(), bits(&got)), (scale.to_bits(), bits(&expected)), "{isa}: {x:?}");
        }
    }
}
