//! Operations of recurrent layers, against plain loops in f64.

use trunkline_kernels::isa::Isa;
use trunkline_kernels::ops::recurrence::{HeadRows, HeadRun, Recurrence, recur};
use trunkline_kernels::ops::rms_norm::head_l2_norm_in_place;
use trunkline_kernels::ops::short_conv::{ConvRun, short_conv};
use trunkline_kernels::ops::silu_mul::{sigmoid_in_place, silu_in_place};
use trunkline_kernels::ops::softplus::{decay_in_place, softplus_in_place};

use super::in_place_on_all;
use crate::on_all;
use crate::random::Random;

const NUM_ROWS: usize = 23;

fn assert_near(found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs() / (1.0 + expected.abs());
        assert!(error < bound, "{found} is not {expected} at {index}");
    }
}

/// Computes `NUM_ROWS` rows in runs that end at `cuts` and at the last row. Returns the results and the last state.
pub fn convolved(isa: Isa, channels: usize, width: usize, cuts: &[usize]) -> Vec<f32> {
    let mut random = Random::new(width as u64);
    let x = random.normals(NUM_ROWS * channels);
    let (weight, bias) = (random.normals(channels * width), random.normals(channels));
    let (mut out, mut state) = (vec![0.0; x.len()], vec![0.0; (width - 1) * channels]);
    let mut first = 0;
    for &end in cuts.iter().chain([&NUM_ROWS]) {
        let run = ConvRun {
            x: x[first * channels..].as_ptr(),
            x_stride: channels,
            out: out[first * channels..].as_mut_ptr(),
            out_stride: channels,
            num_rows: end - first,
            weight: &weight,
            bias: (width > 2).then_some(&bias[..]),
            state: state.as_mut_ptr(),
            num_channels: channels,
        };
        // Two threads would take these shares.
        for share in [0..16.min(channels), 16.min(channels)..channels] {
            // SAFETY: rows and state have the sizes that the run states, and there is one thread.
            unsafe { short_conv(isa, run, share) };
        }
        first = end;
    }
    [out, state].concat()
}

#[test]
fn convolutions_are_exact_and_depend_on_no_cut() {
    for (channels, width) in [(40, 3), (16, 2), (7, 4)] {
        let found = on_all("short_conv", |isa| convolved(isa, channels, width, &[]));
        let mut random = Random::new(width as u64);
        let x = random.normals(NUM_ROWS * channels);
        let (weight, bias) = (random.normals(channels * width), random.normals(channels));
        let mut expected = Vec::new();
        for row in 0..NUM_ROWS {
            for channel in 0..channels {
                let input = |back: usize| match row.checked_sub(back) {
                    Some(row) => f64::from(x[row * channels + channel]),
                    None => 0.0,
                };
                let tap = |back: usize| f64::from(weight[channel * width + width - 1 - back]);
                let bias = if width > 2 { f64::from(bias[channel]) } else { 0.0 };
                expected.push(bias + (0..width).map(|back| tap(back) * input(back)).sum::<f64>());
            }
        }
        expected.extend(x[(NUM_ROWS - width + 1) * channels..].iter().map(|x| f64::from(*x)));
        assert_near(&found, &expected, 1e-5);
        for cuts in [&[1][..], &[2, 3, 20], &[7, 22]] {
            on_all("short_conv", |isa| {
                assert_eq!(convolved(isa, channels, width, cuts), found, "cuts {cuts:?}");
                Vec::new()
            });
        }
    }
}

/// Like [`convolved`], for one head.
pub fn recurred(isa: Isa, rule: Recurrence, [value_size, key_size]: [usize; 2], cuts: &[usize]) -> Vec<f32> {
    let Operands { value, key, query, decay, strength } = operands(value_size, key_size);
    let (mut out, mut state) = (vec![0.0; value.len()], vec![0.0; value_size * key_size]);
    let mut first = 0;
    for &end in cuts.iter().chain([&NUM_ROWS]) {
        let rows = |x: &[f32], stride: usize| HeadRows { first: x[first * stride..].as_ptr(), stride };
        let run = HeadRun {
            rule,
            num_rows: end - first,
            value: rows(&value, value_size),
            key: rows(&key, key_size),
            query: rows(&query, key_size),
            decay: rows(&decay, 1),
            strength: rows(&strength, 1),
            skip: 0.25,
            out: out[first * value_size..].as_mut_ptr(),
            out_stride: value_size,
            state: state.as_mut_ptr(),
            value_size,
            key_size,
        };
        // SAFETY: the operands have the sizes that the run states, and there is one thread.
        unsafe { recur(isa, run) };
        first = end;
    }
    [out, state].concat()
}

struct Operands {
    value: Vec<f32>,
    key: Vec<f32>,
    query: Vec<f32>,
    decay: Vec<f32>,
    strength: Vec<f32>,
}

fn operands(value_size: usize, key_size: usize) -> Operands {
    let mut random = Random::new(key_size as u64);
    let norm = (key_size as f32).sqrt();
    let mut unit = || random.normals(NUM_ROWS * key_size).iter().map(|x| x / norm).collect::<Vec<f32>>();
    let (key, query) = (unit(), unit());
    let mut shares =
        || random.normals(NUM_ROWS).iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect::<Vec<f32>>();
    let (decay, strength) = (shares(), shares());
    Operands { value: random.normals(NUM_ROWS * value_size), key, query, decay, strength }
}

#[test]
fn recurrences_are_exact_and_depend_on_no_cut() {
    for rule in [Recurrence::Scan, Recurrence::Delta] {
        for sizes in [[16, 32], [5, 24], [3, 7]] {
            let found = on_all("recur", |isa| recurred(isa, rule, sizes, &[]));
            let [value_size, key_size] = sizes;
            let Operands { value, key, query, decay, strength } = operands(value_size, key_size);
            let (mut state, mut expected) = (vec![0.0; value_size * key_size], Vec::new());
            for row in 0..NUM_ROWS {
                let vector = |x: &[f32], size: usize| -> Vec<f64> {
                    x[row * size..][..size].iter().map(|x| f64::from(*x)).collect()
                };
                let (key, query) = (vector(&key, key_size), vector(&query, key_size));
                for (p, value) in vector(&value, value_size).into_iter().enumerate() {
                    let state: &mut [f64] = &mut state[p * key_size..][..key_size];
                    state.iter_mut().for_each(|s| *s *= f64::from(decay[row]));
                    let dot = |state: &[f64], x: &[f64]| state.iter().zip(x).map(|(s, x)| s * x).sum::<f64>();
                    let known = if rule == Recurrence::Delta { dot(state, &key) } else { 0.0 };
                    let taken = f64::from(strength[row]) * (value - known);
                    state.iter_mut().zip(&key).for_each(|(s, k)| *s += taken * k);
                    expected.push(dot(state, &query) + 0.25 * value);
                }
            }
            expected.extend(&state);
            assert_near(&found, &expected, 1e-5);
            for cuts in [&[1][..], &[2, 3, 20], &[7, 22]] {
                on_all("recur", |isa| {
                    assert_eq!(recurred(isa, rule, sizes, cuts), found, "cuts {cuts:?}");
                    Vec::new()
                });
            }
        }
    }
}

#[test]
fn steps_decays_and_gates_are_exact() {
    let x: Vec<f32> = (-400..400).map(|i| i as f32 / 4.0).chain([0.0, -0.0, 1e-20, -1e-20]).collect();
    let bias = vec![0.125; x.len()];
    let exact = |f: &dyn Fn(f64) -> f64| x.iter().map(|x| f(f64::from(*x))).collect::<Vec<f64>>();
    let found = in_place_on_all("softplus", &x, |isa, x| softplus_in_place(isa, x, &bias));
    assert_near(&found, &exact(&|x| (x + 0.125).max(0.0) + (-(x + 0.125).abs()).exp().ln_1p()), 3e-7);
    let found = in_place_on_all("silu", &x, silu_in_place);
    assert_near(&found, &exact(&|x| x / (1.0 + (-x).exp())), 3e-6);
    let found = in_place_on_all("sigmoid", &x, sigmoid_in_place);
    assert_near(&found, &exact(&|x| 1.0 / (1.0 + (-x).exp())), 3e-7);
    let steps: Vec<f32> = (0..500).map(|i| i as f32 / 100.0).collect();
    let rates: Vec<f32> = (0..500).map(|i| (i % 7) as f32 - 3.0).collect();
    let found = in_place_on_all("decay", &steps, |isa, x| decay_in_place(isa, x, &rates));
    let expected: Vec<f64> =
        steps.iter().zip(&rates).map(|(x, rate)| (-f64::from(*x) * f64::from(*rate).exp()).exp()).collect();
    // The argument of the outer exponential is rounded to f32.
    assert_near(&found, &expected, 1e-5);
    for isa in Isa::available() {
        let mut x = [f32::NAN];
        softplus_in_place(isa, &mut x, &[0.0]);
        assert!(x[0].is_nan(), "{isa}");
    }
}

#[test]
fn heads_get_length_1() {
    let x = Random::new(5).normals(3 * 24);
    let found = in_place_on_all("head_l2_norm", &x, |isa, x| head_l2_norm_in_place(isa, x, 24, 1e-6));
    let expected: Vec<f64> = x
        .chunks(24)
        .flat_map(|head| {
            let square: f64 = head.iter().map(|x| f64::from(*x).powi(2)).sum();
            head.iter().map(move |x| f64::from(*x) / (square + 1e-6).sqrt())
        })
        .collect();
    assert_near(&found, &expected, 1e-6);
}
