use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::probe::exp_in_place;

use super::in_place_on_all;

/// Smaller inputs give 0.
const LOWEST: f32 = -87.336_54;
/// Larger inputs give the same result as this one.
const HIGHEST: f32 = 88.376_26;
/// The bound of the relative error, for inputs whose result is a normal number.
const MAX_RELATIVE_ERROR: f64 = 1.2e-7;

#[test]
fn errors_are_within_the_bound_and_bits_agree_on_all_instruction_sets() {
    // Every 997th float of each sign in range: about 2 million inputs.
    let mut inputs: Vec<f32> = Vec::new();
    for sign in [0u32, 1 << 31] {
        let end = if sign == 0 { HIGHEST } else { -LOWEST };
        inputs.extend((0..end.to_bits()).step_by(997).map(|b| f32::from_bits(b | sign)));
    }
    let results = in_place_on_all("exp", &inputs, exp_in_place);
    let mut worst = 0.0f64;
    for (x, y) in inputs.iter().zip(&results) {
        let exact = f64::from(*x).exp();
        worst = worst.max((f64::from(*y) - exact).abs() / exact);
    }
    assert!(worst <= MAX_RELATIVE_ERROR, "worst relative error {worst:e}");
}

#[test]
fn edge_values() {
    for isa in Isa::available() {
        let mut x = [0.0, -0.0, f32::NEG_INFINITY, -1e30, -87.4, f32::NAN, 1e30, f32::INFINITY];
        exp_in_place(isa, &mut x);
        assert_eq!(&x[..5], &[1.0, 1.0, 0.0, 0.0, 0.0], "{isa:?}");
        assert!(x[5].is_nan(), "{isa:?}");
        assert!(x[6].is_finite() && x[6] > 2e38 && x[7] == x[6], "{isa:?}: {x:?}");
    }
}
