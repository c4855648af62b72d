//! Layers of experts: rows are sorted by expert, and outputs are those of each row's own experts.

use super::*;
use trunkline_kernels::executor::routing::Routing;
use trunkline_kernels::ops::route::{Rule, route};
use trunkline_kernels::ops::scaled_sum::{add_scaled, sigmoid_scale_in_place};

use crate::on_all;

/// The weights and experts of a row.
fn routes(isa: Isa, logits: &[f32], num_used: usize, renormalise: bool) -> Vec<(f32, usize)> {
    let mut out = vec![f32::NAN; 2 * num_used];
    route(isa, logits, Rule::softmax(renormalise), None, &mut out);
    (0..num_used).map(|n| (out[n], out[num_used + n].to_bits() as usize)).collect()
}

#[test]
fn the_largest_logits_are_chosen_and_weighted_by_their_softmax() {
    let mut random = Random::new(21);
    for num_experts in [1, 2, 5, 16, 17, 64, 128, 512] {
        for num_used in [1, 2, 8].into_iter().filter(|used| *used <= num_experts) {
            // Few different values, so that ties occur.
            let logits: Vec<f32> = (0..num_experts).map(|_| random.below(40) as f32 / 4.0).collect();
            let mut order: Vec<usize> = (0..num_experts).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            order.truncate(num_used);
            let mass = |expert: &usize| f64::from(logits[*expert]).exp();
            for renormalise in [false, true] {
                let got = on_all("routes", |isa| {
                    let found = routes(isa, &logits, num_used, renormalise);
                    assert_eq!(found.iter().map(|(_, expert)| *expert).collect::<Vec<_>>(), order);
                    found.into_iter().map(|(weight, _)| weight).collect::<Vec<f32>>()
                });
                let all: Vec<usize> = (0..num_experts).collect();
                let sum: f64 = if renormalise { &order } else { &all }.iter().map(mass).sum();
                for (weight, expert) in got.iter().zip(&order) {
                    assert!((f64::from(*weight) - mass(expert) / sum).abs() < 1e-6);
                }
            }
        }
    }
}

/// The experts that DeepSeek's definition chooses, the best first, and their weights, in f64.
fn by_groups(logits: &[f32], rule: Rule, bias: Option<&[f32]>, num_used: usize) -> (Vec<usize>, Vec<f64>) {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    let masses: Vec<f64> =
        logits.iter().map(|x| if rule.is_sigmoid { sigmoid(*x) } else { f64::from(*x).exp() }).collect();
    let score = |expert: usize| masses[expert] + bias.map_or(0.0, |bias| f64::from(bias[expert]));
    let descending = |order: &mut Vec<usize>, score: &dyn Fn(usize) -> f64| {
        order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    };
    let size = logits.len() / rule.num_groups;
    let group_score = |group: usize| {
        let mut members: Vec<usize> = (group * size..(group + 1) * size).collect();
        descending(&mut members, &score);
        members.iter().take(if rule.is_sigmoid { 2 } else { 1 }).map(|expert| score(*expert)).sum()
    };
    let mut groups: Vec<usize> = (0..rule.num_groups).collect();
    descending(&mut groups, &group_score);
    let mut experts: Vec<usize> = (0..logits.len())
        .filter(|expert| groups[..rule.num_used_groups].contains(&(expert / size)))
        .collect();
    descending(&mut experts, &score);
    experts.truncate(num_used);
    let sum: f64 = match (rule.renormalise, rule.is_sigmoid) {
        (true, _) => experts.iter().map(|expert| masses[*expert]).sum(),
        (false, true) => 1.0,
        (false, false) => masses.iter().sum(),
    };
    let weights = experts.iter().map(|expert| masses[*expert] / sum).collect();
    (experts, weights)
}

#[test]
fn groups_sigmoids_and_biases_choose_as_defined() {
    let mut random = Random::new(24);
    for (num_experts, num_groups, num_used_groups, num_used) in
        [(12, 4, 2, 3), (64, 1, 1, 6), (256, 8, 4, 8), (20, 5, 1, 4), (6, 3, 3, 6)]
    {
        let logits = random.normals(num_experts);
        let bias = random.normals(num_experts);
        for (renormalise, is_sigmoid, is_biased) in [
            (true, true, true),
            (false, true, true),
            (true, true, false),
            (true, false, false),
            (false, false, false),
        ] {
            let rule = Rule { renormalise, is_sigmoid, num_groups, num_used_groups };
            let bias = is_biased.then_some(&bias[..]);
            let (experts, weights) = by_groups(&logits, rule, bias, num_used);
            let got = on_all("routes", |isa| {
                let mut out = vec![f32::NAN; 2 * num_used];
                route(isa, &logits, rule, bias, &mut out);
                let chosen: Vec<usize> = out[num_used..].iter().map(|x| x.to_bits() as usize).collect();
                assert_eq!(chosen, experts, "{rule:?}");
                out[..num_used].to_vec()
            });
            for (got, expected) in got.iter().zip(&weights) {
                assert!((f64::from(*got) - expected).abs() < 1e-6, "{rule:?}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn logits_that_are_not_finite_choose_valid_experts_and_give_nan() {
    for logits in [[f32::NAN; 4], [1.0, f32::NAN, 2.0, f32::NAN], [f32::INFINITY; 4], [f32::NEG_INFINITY; 4]]
    {
        for isa in Isa::available() {
            let mut found = routes(isa, &logits, 3, true);
            found.sort_by_key(|(_, expert)| *expert);
            assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].1) && found[2].1 < 4, "{found:?}");
            assert!(found.iter().any(|(weight, _)| weight.is_nan()), "{logits:?} gives {found:?}");
            let mut out = [f32::NAN; 4];
            let rule = Rule { renormalise: true, is_sigmoid: true, num_groups: 2, num_used_groups: 1 };
            route(isa, &logits, rule, None, &mut out);
            let chosen = [out[2], out[3]].map(|bits| bits.to_bits() / 2);
            assert!(chosen[0] < 2 && chosen[0] == chosen[1], "both are of one group: {chosen:?}");
        }
    }
}

#[test]
fn rows_are_sorted_by_expert_and_found_again() {
    let mut random = Random::new(22);
    let mut routing = Routing::default();
    for _ in 0..200 {
        let (num_rows, num_experts) = (random.below(20), 1 + random.below(9));
        let num_used = 1 + random.below(num_experts);
        let used: Vec<Vec<usize>> = (0..num_rows)
            .map(|_| {
                let first = random.below(num_experts);
                (0..num_used).map(|n| (first + n) % num_experts).collect()
            })
            .collect();
        routing.sort(num_rows, num_experts, |row| used[row].iter().copied());
        let mut num_places = 0;
        for n in 0..routing.num_used() {
            let (expert, places) = routing.used(n);
            assert!(n == 0 || expert > routing.used(n - 1).0);
            assert_eq!(places.start, num_places);
            num_places = places.end;
            let rows: Vec<usize> = places.map(|place| routing.row(place)).collect();
            let expected: Vec<usize> = (0..num_rows).filter(|row| used[*row].contains(&expert)).collect();
            assert_eq!(rows, expected);
        }
        assert_eq!(num_places, num_rows * num_used);
        for (row, experts) in used.iter().enumerate() {
            for (n, expert) in experts.iter().enumerate() {
                let place = routing.place(row, num_used, n);
                let found = (0..routing.num_used()).find(|n| routing.used(*n).1.contains(&place)).unwrap();
                assert_eq!((routing.row(place), routing.used(found).0), (row, *expert));
            }
        }
    }
}

#[test]
fn scaled_sums_have_the_same_bits_everywhere() {
    let mut random = Random::new(23);
    for width in [1, 15, 16, 33, 576] {
        let (x, y) = (random.normals(width), random.normals(width));
        let got = on_all("sum", |isa| {
            let mut sum = vec![f32::NAN; width];
            add_scaled(isa, &mut sum, &x, 0.3, true);
            add_scaled(isa, &mut sum, &y, -1.7, false);
            sum
        });
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| y.mul_add(-1.7, x * 0.3)).collect();
        assert_eq!(bits(&got), bits(&expected));
        let got = on_all("gate", |isa| {
            let mut scaled = x.clone();
            sigmoid_scale_in_place(isa, &mut scaled, -0.8);
            scaled
        });
        for (got, x) in got.iter().zip(&x) {
            assert!((f64::from(*got) - f64::from(*x) / (1.0 + 0.8f64.exp())).abs() < 1e-6);
        }
    }
}
