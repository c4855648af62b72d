use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::probe::{quantize_head, quantize_vectors};

use crate::random::Random;

#[test]
fn bytes_times_scale_are_within_half_a_step() {
    let mut random = Random::new(3);
    for n in [1, 16, 64, 80] {
        let x = random.normals(n);
        let mut out = vec![0; n];
        let scale = quantize_head(&x, &mut out);
        assert!(matches!(out.iter().map(|q| q.unsigned_abs()).max(), Some(126 | 127)));
        assert_eq!(half::bf16::from_f32(scale).to_f32(), scale, "16 bits hold the scale");
        for (x, q) in x.iter().zip(&out) {
            assert!((x - f32::from(*q) * scale).abs() <= scale * 0.5001, "{x} became {q} * {scale}");
        }
    }
}

#[test]
fn rounding_the_scale_never_overflows_the_largest_byte() {
    // All mantissas within a bf16 step, in three ranges.
    for bits in (0x3f80_0000..0x4000_0000).step_by(97) {
        for exponent in [-60, 0, 60] {
            let largest = f32::from_bits(bits) * 2f32.powi(exponent);
            let mut out = [0; 2];
            quantize_head(&[largest, -largest], &mut out);
            assert!(matches!(out, [126, -126] | [127, -127]), "{largest}: {out:?}");
        }
    }
    let mut out = [0; 2];
    let scale = quantize_head(&[f32::MAX, f32::MIN], &mut out);
    assert!(scale.is_finite() && out[0] >= 126 && out[1] == -out[0]);
}

/// Also in `server/tests/reference/test_rounding.py`, by hand: 1.9 / 127 is nearest to the bf16 number 245 / 2^14.
#[test]
fn a_head_is_quantised_like_in_the_python_reference() {
    let mut out = [0; 6];
    let scale = quantize_head(&[1.9, -1.9, 0.5, -0.26, 0.0075, 0.007], &mut out);
    assert_eq!((scale, out), (245.0 / 16384.0, [127, -127, 33, -17, 1, 0]));
}

#[test]
fn zeros_give_scale_zero_and_values_that_are_not_finite_give_nan() {
    let mut out = [1; 3];
    assert_eq!(quantize_head(&[0.0, -0.0, 1e-40], &mut out), 0.0);
    assert_eq!(out, [0; 3]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(quantize_head(&[0.0, bad, 1.0], &mut out).is_nan());
    }
}

#[test]
fn vectors_give_the_same_bits_on_every_instruction_set() {
    let mut random = Random::new(4);
    let special = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        -0.0,
        1e-45,
        1e-30,
        0.5e-30,
    ];
    for round in 0..400 {
        let mut x = random.normals(16 * (1 + round % 6));
        if round % 4 == 0 {
            x.iter_mut().for_each(|x| *x *= 1e-31);
        }
        if round % 3 == 0 {
            let at = random.below(x.len());
            x[at] = special[random.below(special.len())];
        }
        let mut expected = vec![0; x.len()];
        let scale = quantize_head(&x, &mut expected);
        for isa in Isa::available() {
            let mut got = vec![1; x.len()];
            let got_scale = quantize_vectors(isa, &mut x.clone(), &mut got);
            assert_eq!((got_scale.to_bits(), &got), (scale.to_bits(), &expected), "{isa}: {x:?}");
        }
    }
}
