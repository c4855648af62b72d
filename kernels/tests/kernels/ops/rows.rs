//! Tests of the row operations against f64, and of every instruction set against the scalar one.

use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::add::{add_in_place, mul_in_place};
use trunkline_kernels::ops::gelu::{gelu_erf_in_place, gelu_in_place, gelu_mul_in_place};
use trunkline_kernels::ops::layer_norm::layer_norm;
use trunkline_kernels::ops::relu_squared::relu_squared_in_place;
use trunkline_kernels::ops::rms_norm::{head_rms_norm_in_place, rms_norm};
use trunkline_kernels::ops::rope::{RopeFrequencies, rope_in_place};
use trunkline_kernels::ops::scale::scale_in_place;
use trunkline_kernels::ops::silu_mul::{SwigluClamp, clamped_swiglu_in_place, silu_mul_in_place};
use trunkline_kernels::ops::tanh::soft_cap_in_place;

use super::in_place_on_all;
use crate::on_all;
use crate::random::{Random, bits};

const WIDTHS: [usize; 12] = [1, 2, 7, 15, 16, 17, 31, 48, 63, 576, 1000, 1536];

fn assert_near(got: &[f32], exact: impl Iterator<Item = f64>, what: &str) {
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        let bound = 2e-6 * (1.0 + exact.abs());
        assert!((f64::from(*got) - exact).abs() <= bound, "{what}, element {i}: {got} for {exact}");
    }
}

#[test]
fn rms_norm_is_near_f64_and_the_same_everywhere() {
    let mut random = Random::new(1);
    for width in WIDTHS {
        let (x, weight) = (random.normals(width), random.normals(width));
        let what = format!("width {width}");
        let got = on_all(&what, |isa| {
            let mut out = vec![f32::NAN; width];
            rms_norm(isa, &x, &weight, 1e-5, &mut out);
            out
        });
        let exact = |x: &[f32]| {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + 1e-5).sqrt();
            x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect::<Vec<f64>>()
        };
        assert_near(&got, exact(&x).into_iter(), &what);
        let heads = random.normals(3 * width);
        let got = in_place_on_all(&what, &heads, |isa, x| head_rms_norm_in_place(isa, x, &weight, 1e-5));
        assert_near(&got, heads.chunks(width).flat_map(exact), &what);
    }
}

#[test]
fn layer_norm_is_near_f64_and_the_same_everywhere() {
    let mut random = Random::new(3);
    for width in WIDTHS {
        // The mean is large beside the deviation.
        let x: Vec<f32> = random.normals(width).iter().map(|x| x + 7.0).collect();
        let (weight, bias) = (random.normals(width), random.normals(width));
        for bias in [None, Some(&bias[..])] {
            let what = format!("width {width}, bias {}", bias.is_some());
            let got = on_all(&what, |isa| {
                let mut out = vec![f32::NAN; width];
                layer_norm(isa, &x, &weight, bias, 1e-2, &mut out);
                out
            });
            let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / width as f64;
            let exact = (0..width).map(|i| {
                let normed = (f64::from(x[i]) - mean) / (variance + 1e-2).sqrt();
                normed * f64::from(weight[i]) + bias.map_or(0.0, |bias| f64::from(bias[i]))
            });
            assert_near(&got, exact, &what);
        }
    }
}

#[test]
fn silu_mul_and_add_are_near_f64_and_the_same_everywhere() {
    let mut random = Random::new(2);
    for width in WIDTHS {
        let x: Vec<f32> = random.normals(width).iter().map(|x| x * 20.0).collect();
        let y = random.normals(width);
        let what = format!("width {width}");
        let got = in_place_on_all(&what, &x, |isa, x| silu_mul_in_place(isa, x, &y));
        let silu = |x: f64| x / (1.0 + (-x).exp());
        assert_near(&got, x.iter().zip(&y).map(|(x, y)| silu(f64::from(*x)) * f64::from(*y)), &what);
        let got = in_place_on_all(&what, &x, |isa, x| add_in_place(isa, x, &y));
        assert_eq!(bits(&got), bits(&x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>()));
        let got = in_place_on_all(&what, &x, |isa, x| mul_in_place(isa, x, &y));
        assert_eq!(bits(&got), bits(&x.iter().zip(&y).map(|(x, y)| x * y).collect::<Vec<f32>>()));
    }
}

#[test]
fn clamped_swiglu_is_near_f64_and_the_same_everywhere() {
    let mut random = Random::new(5);
    let clamp = SwigluClamp { alpha: 1.702, limit: 7.0 };
    for width in WIDTHS {
        let x: Vec<f32> = random.normals(width).iter().map(|x| x * 6.0).collect();
        let y: Vec<f32> = random.normals(width).iter().map(|x| x * 6.0).collect();
        let what = format!("width {width}");
        let got = in_place_on_all(&what, &x, |isa, x| clamped_swiglu_in_place(isa, x, &y, clamp));
        let exact = |(x, y): (&f32, &f32)| {
            let (x, y) = (f64::from(*x).min(7.0), f64::from(*y).clamp(-7.0, 7.0));
            (y + 1.0) * x / (1.0 + (-f64::from(1.702f32) * x).exp())
        };
        assert_near(&got, x.iter().zip(&y).map(exact), &what);
    }
    for isa in Isa::available() {
        let mut gate = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, -1e4];
        clamped_swiglu_in_place(isa, &mut gate, &[1.0, f32::NAN, f32::NEG_INFINITY, 1.0, 1.0], clamp);
        assert!(gate[0].is_nan() && gate[1].is_nan(), "{isa}: {gate:?}");
        assert!((gate[2] + 42.0).abs() < 1e-3 && gate[4].abs() < 1e-30, "{isa}: {gate:?}");
    }
}

#[test]
fn gelu_relu_squared_scale_and_soft_cap_are_near_f64_and_the_same_everywhere() {
    let mut random = Random::new(4);
    for width in WIDTHS {
        let x: Vec<f32> = random.normals(width).iter().map(|x| x * 5.0).collect();
        let y = random.normals(width);
        let what = format!("width {width}");
        let got = in_place_on_all(&what, &x, |isa, x| gelu_mul_in_place(isa, x, &y));
        let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        let gelu = |x: f64| 0.5 * x * (1.0 + inner(x).tanh());
        assert_near(&got, x.iter().zip(&y).map(|(x, y)| gelu(f64::from(*x)) * f64::from(*y)), &what);
        let got = in_place_on_all(&what, &x, gelu_in_place);
        assert_near(&got, x.iter().map(|x| gelu(f64::from(*x))), &what);
        let got = in_place_on_all(&what, &x, relu_squared_in_place);
        assert_eq!(bits(&got), bits(&x.iter().map(|x| x.max(0.0) * x.max(0.0)).collect::<Vec<f32>>()));
        let got = in_place_on_all(&what, &x, |isa, x| scale_in_place(isa, x, 13.5));
        assert_eq!(bits(&got), bits(&x.iter().map(|x| x * 13.5).collect::<Vec<f32>>()));
        for cap in [0.5, 30.0] {
            let got = in_place_on_all(&what, &x, |isa, x| soft_cap_in_place(isa, x, cap));
            let cap = f64::from(cap);
            assert_near(&got, x.iter().map(|x| cap * (f64::from(*x) / cap).tanh()), &what);
        }
    }
}

#[test]
fn exact_gelu_is_within_its_bound() {
    // erf by its Taylor series in f64, which converges for |x| < 6.
    let erf = |x: f64| {
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while f64::abs(term) > 1e-17 {
            n += 1.0;
            term *= -x * x / n;
            sum += term / (2.0 * n + 1.0);
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    };
    let x: Vec<f32> = (-4000..4000).map(|i| i as f32 * 1e-3).collect();
    let got = in_place_on_all("exact gelu", &x, gelu_erf_in_place);
    for (x, got) in x.iter().zip(&got) {
        let exact = f64::from(*x) / 2.0 * (1.0 + erf(f64::from(*x) / 2f64.sqrt()));
        assert!((f64::from(*got) - exact).abs() <= 4e-7, "gelu({x}) became {got}, expected {exact}");
    }
}

#[test]
fn tanh_is_within_its_bound_and_exact_at_the_extremes() {
    // Every 997th float of each sign up to 20: about 2 million.
    let end = 20f32.to_bits();
    for sign in [0u32, 1 << 31] {
        let x: Vec<f32> = (0..end).step_by(997).map(|b| f32::from_bits(b | sign)).collect();
        let got = in_place_on_all("tanh", &x, |isa, x| soft_cap_in_place(isa, x, 1.0));
        for (x, got) in x.iter().zip(&got) {
            let exact = f64::from(*x).tanh();
            assert!((f64::from(*got) - exact).abs() <= 3e-7 * exact.abs(), "tanh({x}) became {got}");
        }
    }
    for isa in Isa::available() {
        let mut x = [1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        soft_cap_in_place(isa, &mut x, 50.0);
        assert_eq!(&x[..4], &[50.0, -50.0, 50.0, -50.0], "{isa}");
        assert!(x[4].is_nan(), "{isa}");
        let mut gate = [-1e30, -50.0, 0.0, 50.0, 1e10, f32::NAN];
        gelu_mul_in_place(isa, &mut gate, &[1.0; 6]);
        assert!(gate[0].abs() < 1e-8 && gate[1].abs() < 1e-30, "{isa}: {gate:?}");
        assert_eq!(&gate[2..5], &[0.0, 50.0, 1e10], "{isa}");
        assert!(gate[5].is_nan(), "{isa}");
        let mut x = [-1e30, -0.0, 3.0, f32::NAN];
        relu_squared_in_place(isa, &mut x);
        assert_eq!(&x[..3], &[0.0, 0.0, 9.0], "{isa}");
        assert!(x[3].is_nan(), "{isa}");
    }
}

#[test]
fn silu_of_extremes_is_finite() {
    for isa in Isa::available() {
        let mut gate = [-1e4, -90.0, 1e4, 0.0];
        silu_mul_in_place(isa, &mut gate, &[1.0; 4]);
        assert!(gate[0].abs() < 1e-30 && gate[1].abs() < 1e-30, "{isa}: {gate:?}");
        assert_eq!(&gate[2..], [1e4, 0.0], "{isa}");
    }
}

#[test]
fn silu_is_within_its_bound_and_monotone_where_it_should_be() {
    let inputs: Vec<f32> = (0..1 << 20).map(|i| -100.0 + i as f32 * (200.0 / (1 << 20) as f32)).collect();
    let ones = vec![1.0; inputs.len()];
    let got = in_place_on_all("silu", &inputs, |isa, x| silu_mul_in_place(isa, x, &ones));
    for (x, got) in inputs.iter().map(|x| f64::from(*x)).zip(&got) {
        let exact = x / (1.0 + (-x).exp());
        // Below -87 the exponential is constant, and the result is nearly 0.
        let bound = if x < -87.0 { 1e-34 } else { (2e-7 + 2e-8 * x.abs()) * exact.abs() };
        assert!((f64::from(*got) - exact).abs() <= bound, "silu({x}) became {got}, not {exact}");
    }
    // From the minimum at -1.278 on, the function rises by more than its error.
    let rising: Vec<f32> = inputs.iter().zip(&got).filter(|(x, _)| **x > -1.2).map(|(_, y)| *y).collect();
    assert!(rising.windows(2).all(|pair| pair[0] <= pair[1]));
}

#[test]
fn silu_of_values_that_are_not_finite() {
    let gates = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, -0.0, 1e-45];
    let ups = [1.0, 0.0, -2.0, f32::INFINITY, f32::NAN];
    for up in ups {
        let got = on_all("silu", |isa| {
            let mut results = gates;
            silu_mul_in_place(isa, &mut results, &[up; 8]);
            // Any NaN is accepted.
            results.map(|x| if x.is_nan() { f32::NAN } else { x }).to_vec()
        });
        assert!(got[0].is_nan() && got[1].is_nan(), "{up}: {got:?}");
        if up == 1.0 {
            assert_eq!(got[2], f32::INFINITY);
            assert_eq!(got[4], f32::MAX);
            assert_eq!(got[6].to_bits(), (-0.0f32).to_bits());
        }
    }
}

#[test]
fn rope_rotates_pairs_of_the_half_split_layout_and_leaves_the_rest() {
    let mut random = Random::new(3);
    for (head_size, num_pairs) in [(2, 1), (16, 8), (20, 10), (64, 32), (80, 20), (128, 64)] {
        let inv_freq: Vec<f64> = (0..num_pairs).map(|i| 10f64.powf(-(i as f64) / 9.0)).collect();
        let frequencies = RopeFrequencies::new(inv_freq.clone(), 1.25);
        let x = random.normals(3 * head_size);
        for position in [0u32, 1, 999, 1_000_000] {
            let mut table = vec![0.0; 2 * num_pairs];
            frequencies.fill(position, &mut table);
            let what = format!("head size {head_size}, position {position}");
            let got = in_place_on_all(&what, &x, |isa, x| rope_in_place(isa, x, &table, head_size));
            let exact = x.chunks(head_size).flat_map(|head| {
                (0..head_size).map(|i| {
                    let pair = i % num_pairs;
                    let (sin, cos) = (f64::from(position) * inv_freq[pair]).sin_cos();
                    match i {
                        _ if i >= 2 * num_pairs => f64::from(head[i]),
                        _ if i < num_pairs => {
                            1.25 * (f64::from(head[i]) * cos - f64::from(head[i + num_pairs]) * sin)
                        }
                        _ => 1.25 * (f64::from(head[i]) * cos + f64::from(head[pair]) * sin),
                    }
                })
            });
            assert_near(&got, exact, &what);
        }
    }
}
