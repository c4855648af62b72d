use trunkline_kernels::kv_pool::{KeyMean, KeyScaling, KeySums, KeyTurns, KvDtype, KvGeometry};
use trunkline_kernels::ops::rope::RopeFrequencies;

use crate::GEOMETRY;

const G: KvGeometry = KvGeometry { num_layers: 2, head_size: 4, dtype: KvDtype::Int4, ..GEOMETRY };

#[test]
fn factors_are_fourth_roots_of_query_over_key_and_bounded_for_unused_channels() {
    let mut sums = KeySums::new(&G, 1);
    for sign in [-1.0, 1.0].repeat(G.block_size / 2) {
        sums.add_keys(1, 0, &[3.0 + sign, 5.0 + 4.0 * sign, 7.0, sign]);
        sums.add_queries(&G, 1, &[1.0, 4.0, 1.0, 0.0, 1.0, 4.0, 1.0, 0.0]);
    }
    let scaling = sums.scaling(&G, &KeyTurns::fixed(2));
    let head = scaling.head(1, 0);
    assert_eq!(head.mean, [3.0, 5.0, 7.0, 0.0]);
    // The ratios of the squares of queries and keys are 1 to 1 and 16 to 16.
    assert!((head.factor[0] / head.factor[1] - 1.0).abs() < 1e-6, "{head:?}");
    assert!(head.factor.iter().chain(head.inverse).all(|x| (1e-3..=1e3).contains(x)), "{head:?}");
    for (factor, inverse) in head.factor.iter().zip(head.inverse) {
        assert!((factor * inverse - 1.0).abs() < 1e-6);
    }
    // Layer 0 has no tokens.
    assert_eq!(scaling.head(0, 0).factor, [1.0; 4]);
    assert_eq!(scaling.head(0, 0).mean, [0.0; 4]);
}

/// Rotates a head of which all elements are rotated.
fn turn(head: &mut [f64; 4], cos_sin: &[f32]) {
    for pair in 0..2 {
        let (cos, sin) = (f64::from(cos_sin[pair]), f64::from(cos_sin[2 + pair]));
        let (a, b) = (head[pair], head[2 + pair]);
        (head[pair], head[2 + pair]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

#[test]
fn a_rotating_mean_is_found_and_excluded_from_the_variance() {
    let frequencies = [RopeFrequencies::new(vec![0.9, 0.01], 1.0)];
    let layers = [KeyMean::Turns(0), KeyMean::Zero];
    let turns = KeyTurns::new(&layers, &frequencies, G.block_size, 4);
    let mut sums = KeySums::new(&G, 4);
    for layer in 0..2 {
        for position in 0..4 * G.block_size {
            let block = position / G.block_size;
            let mut key = [3.0, 0.0, 0.0, 5.0];
            turn(&mut key, turns.row(0, block));
            let sign = if position % 2 == 0 { 1.0 } else { -1.0 };
            sums.add_keys(layer, block, &key.map(|x| (x + sign) as f32));
        }
        sums.add_queries(&G, layer, &[1.0; 4]);
    }
    let scaling = sums.scaling(&G, &turns);
    let head = scaling.head(0, 0);
    for (mean, expected) in head.mean.iter().zip([3.0, 0.0, 0.0, 5.0]) {
        assert!((mean - expected).abs() < 1e-6, "{head:?}");
    }
    assert!(head.factor.iter().all(|factor| (factor - 1.0).abs() < 1e-5), "{head:?}");
    // With a soft cap, a constant in all scores matters.
    assert_eq!(scaling.head(1, 0).mean, [0.0; 4]);
    assert_eq!(turns.row(1, 3), &[] as &[f32]);
}

#[test]
fn values_of_the_wrong_length_or_not_finite_are_refused() {
    let values = KeyScaling::none(&G).values().to_vec();
    assert_eq!(KeyScaling::from_values(&G, values.clone()), Some(KeyScaling::none(&G)));
    assert_eq!(KeyScaling::from_values(&G, values[1..].to_vec()), None);
    let mut bad = values;
    bad[5] = f32::NAN;
    assert_eq!(KeyScaling::from_values(&G, bad), None);
}
