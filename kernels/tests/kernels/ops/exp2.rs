use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::probe::exp2_in_place;

use super::{LANES, in_place_on_all};

#[test]
fn errors_are_within_the_bound_and_bits_agree_on_all_instruction_sets() {
    let inputs: Vec<f32> = (0..1 << 20).map(|i| -64.0 + i as f32 * (74.0 / (1 << 20) as f32)).collect();
    let results = in_place_on_all("exp2", &inputs, exp2_in_place);
    for (x, y) in inputs.iter().zip(&results) {
        let exact = f64::from(*x).exp2();
        assert!((f64::from(*y) - exact).abs() <= 3e-6 * exact, "2^{x} became {y}");
    }
}

#[test]
fn edge_values() {
    for isa in Isa::available() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[0.0, -0.0, -1.0, f32::NEG_INFINITY, -1e30, f32::NAN]);
        exp2_in_place(isa, &mut x);
        assert_eq!(&x[..5], &[1.0, 1.0, 0.5, 2f32.powi(-64), 2f32.powi(-64)], "{isa}");
        assert!(x[5].is_nan(), "{isa}");
    }
}
