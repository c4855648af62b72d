//! Arrivals: their number, their rate, and how they are spread.

use std::time::Duration;

use proptest::prelude::*;
use trunkline_bench::arrivals::{Limit, sweep_rates, times};

fn gaps(times: &[Duration]) -> Vec<f64> {
    let before = [Duration::ZERO].into_iter().chain(times.iter().copied());
    times.iter().zip(before).map(|(time, before)| (*time - before).as_secs_f64()).collect()
}

proptest! {
    #[test]
    fn a_number_of_requests_takes_exactly_its_time(
        seed: u64, count in 1u64..300, rate in 0.1f64..1000.0, shape in 0.1f64..20.0,
    ) {
        let times = times(rate, shape, Limit::Sessions(count), seed);
        prop_assert_eq!(times.len() as u64, count);
        prop_assert!(times.is_sorted());
        let end = times.last().unwrap().as_secs_f64();
        prop_assert!((end - count as f64 / rate).abs() < 1e-6, "{}", end);
    }

    #[test]
    fn a_duration_ends_the_arrivals(seed: u64, rate in 1f64..100.0, shape in 0.1f64..20.0) {
        let times = times(rate, shape, Limit::Time(Duration::from_secs(10)), seed);
        prop_assert!(times.is_sorted() && times.iter().all(|time| *time < Duration::from_secs(10)));
    }

    #[test]
    fn a_fixed_rate_is_even(count in 1u64..100, rate in 0.1f64..100.0) {
        let times = times(rate, f64::INFINITY, Limit::Sessions(count), 0);
        prop_assert!(gaps(&times).iter().all(|gap| (gap * rate - 1.0).abs() < 1e-6));
    }
}

#[test]
fn pauses_vary_as_their_shape_says() {
    // A gamma distribution has a variance of its mean squared by its shape.
    for shape in [0.3, 1.0, 4.0] {
        let gaps = gaps(&times(5.0, shape, Limit::Sessions(40_000), 11));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 0.2).abs() < 1e-6, "{mean}");
        let found = mean * mean / variance;
        assert!((found / shape - 1.0).abs() < 0.05, "shape {shape}: {found}");
    }
}

#[test]
fn a_sweep_goes_from_one_client_to_all() {
    assert_eq!(sweep_rates(2.0, 10.0, 4), [4.0, 6.0, 8.0, 10.0]);
    // Nothing was answered.
    assert!(sweep_rates(0.0, 0.0, 4).is_empty());
}
