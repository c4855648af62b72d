//! Figures, by hand and against their definitions.

use proptest::prelude::*;
use trunkline_bench::client::failure::{Failure, Kind};
use trunkline_bench::metrics::{Bounds, Figures, Summary, percentile};
use trunkline_bench::record::{Measured, Record};

fn record(sent_s: f64, ttft_s: f64, itl_s: &[f32], output_tokens: u64) -> Record {
    let e2el_s = ttft_s + itl_s.iter().map(|s| f64::from(*s)).sum::<f64>();
    let measured = Measured {
        ttft_s,
        e2el_s,
        itl_s: itl_s.to_vec(),
        prompt_tokens: 100,
        output_tokens,
        cached_tokens: Some(25),
        text: None,
    };
    Record { session: 0, turn: 0, sent_s, outcome: Ok(measured) }
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found} is not {expected}");
}

#[test]
fn figures_of_three_requests_by_hand() {
    let records = [
        record(0.0, 0.5, &[0.125, 0.25], 3),
        // Three events, of which one had two tokens.
        record(0.25, 0.25, &[0.5, 0.5], 4),
        record(2.0, 1.0, &[], 1),
        Record { session: 3, turn: 0, sent_s: 0.1, outcome: Err(Failure::new(Kind::Refused, "429 full")) },
    ];
    let bounds = Bounds { ttft: Some(500.0), tpot: Some(200.0), e2el: None };
    let figures = Figures::new(&records, 4.0, 2, &bounds);
    assert_eq!((figures.completed, figures.failed, figures.unfinished), (3, 1, 2));
    assert_eq!((figures.prompt_tokens, figures.output_tokens, figures.cached_tokens), (300, 8, Some(75)));
    near(figures.requests_per_s, 0.75);
    near(figures.output_tokens_per_s, 2.0);
    near(figures.total_tokens_per_s, 77.0);
    near(figures.cached_share().unwrap(), 0.25);
    // The second one takes 333 ms a token, the third one waits too long for its first.
    near(figures.good_requests_per_s.unwrap(), 0.25);
    let ttft = figures.ttft_ms.unwrap();
    near(ttft.mean, 583.333);
    near(ttft.median, 500.0);
    near(ttft.p90, 900.0);
    near(ttft.std, 311.805);
    // A request with one token has no time per token.
    let tpot = figures.tpot_ms.unwrap();
    near(tpot.mean, (187.5 + 1000.0 / 3.0) / 2.0);
    let itl = figures.itl_ms.unwrap();
    near(itl.mean, 343.75);
    near(itl.max, 500.0);
    near(figures.e2el_ms.unwrap().median, 1000.0);
    assert_eq!(figures.peak_concurrency, 2);
    assert_eq!(figures.output_tokens_by_second, [4, 2, 0, 1]);
    assert_eq!(figures.peak_output_tokens_per_s, 4);
    assert_eq!(figures.open_by_second, [2, 1, 1, 0]);
    assert_eq!((figures.failures[0].kind.as_str(), figures.failures[0].count), ("refused", 1));
    assert_eq!(figures.failures[0].example, "429 full");
}

#[test]
fn no_answer_has_no_times() {
    let figures = Figures::new(&[], 0.0, 0, &Bounds::default());
    assert_eq!((figures.ttft_ms, figures.good_requests_per_s, figures.requests_per_s), (None, None, 0.0));
    assert!(figures.itl_quantiles_ms.is_empty());
}

proptest! {
    /// numpy's `percentile`: of n sorted numbers, the one at (n - 1) p / 100, and between two in proportion.
    #[test]
    fn percentiles_are_those_of_numpy(mut values in prop::collection::vec(-1e6f64..1e6, 1..60), percent in 0u32..=100) {
        values.sort_by(f64::total_cmp);
        let found = percentile(&values, f64::from(percent));
        let at = (values.len() - 1) * percent as usize;
        let (below, part) = (at / 100, (at % 100) as f64 / 100.0);
        let above = values[(below + 1).min(values.len() - 1)];
        let expected = values[below] * (1.0 - part) + above * part;
        prop_assert!((found - expected).abs() <= 1e-6, "{} {}", found, expected);
    }

    #[test]
    fn a_summary_is_in_order(values in prop::collection::vec(0f64..100.0, 1..60)) {
        let s = Summary::of(values).unwrap();
        prop_assert!(s.median <= s.p90 && s.p90 <= s.p99 && s.p99 <= s.max);
        prop_assert!(s.mean <= s.max + 1e-6 && s.std <= s.max);
    }
}
