use std::time::{Duration, Instant};

use trunkline_base::metrics::usage::{Ledger, MAX_USAGE_HOURS, MAX_USAGE_ROWS, SECONDS_PER_HOUR, Used};
use trunkline_scheduler::Consumption;

const NAMES: [Option<&str>; 2] = [Some("alice"), None];

fn is_near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-6 * right.abs()
}

fn output(output_tokens: u64) -> Used {
    let work = Consumption { output_tokens, ..Consumption::default() };
    Used { work, kv_byte_seconds: 0.0 }
}

/// Returns the rows of all kept hours.
fn rows(ledger: &Ledger, only: Option<&str>) -> Vec<(Option<Box<str>>, Used)> {
    ledger.hours(0..u64::MAX).into_iter().flat_map(|hour| ledger.rows(hour, only)).collect()
}

#[test]
fn hours_add_up_to_the_totals_whenever_the_ledger_is_settled() {
    for seconds in [1_u64, 59, 1800, 3599, 3600, 3601, 10_000, 100_000] {
        let begin = Instant::now();
        let mut ledger = Ledger::new(begin);
        let (mut expected, mut held) = ([0.0, 0.0], [0.0, 0.0]);
        for turn in 0..20 {
            let passed = turn * seconds;
            let unix_s = 1_800_000_000 + passed;
            ledger.settle(unix_s as f64, begin + Duration::from_secs(passed));
            for (sum, bytes) in expected.iter_mut().zip(held) {
                *sum += if turn == 0 { 0.0 } else { bytes * seconds as f64 };
            }
            held = [(turn % 5) as f64, 7.0];
            NAMES.iter().for_each(|&name| ledger.add(unix_s / SECONDS_PER_HOUR, name, output(turn)));
            ledger.hold(NAMES.into_iter().zip(held));
        }
        let rows = rows(&ledger, None);
        for (name, expected) in NAMES.into_iter().zip(expected) {
            let total = ledger.totals().into_iter().find(|(tenant, _)| tenant.as_deref() == name).unwrap().1;
            let mine = || rows.iter().filter(|row| row.0.as_deref() == name).map(|row| row.1);
            assert!(is_near(total.kv_byte_seconds, expected), "{total:?}, {expected} after {seconds}");
            assert!(is_near(mine().map(|used| used.kv_byte_seconds).sum(), expected));
            assert_eq!(
                (total.work.output_tokens, mine().map(|used| used.work.output_tokens).sum()),
                (190, 190_u64)
            );
            let hour = SECONDS_PER_HOUR as f64 * 7.0;
            assert!(mine().all(|used| used.kv_byte_seconds <= hour * 1.000_001), "an hour is an hour");
        }
    }
}

#[test]
fn old_hours_are_dropped_and_the_totals_stay() {
    let mut ledger = Ledger::new(Instant::now());
    let num_hours = 3 * MAX_USAGE_HOURS as u64;
    (0..num_hours).for_each(|hour| ledger.add(hour, None, output(1)));
    assert_eq!(
        ledger.hours(0..u64::MAX),
        (num_hours - MAX_USAGE_HOURS as u64..num_hours).collect::<Vec<_>>()
    );
    assert_eq!(ledger.totals()[0].1, output(num_hours));

    let mut ledger = Ledger::new(Instant::now());
    for hour in 0..4 {
        (0..MAX_USAGE_ROWS / 2).for_each(|tenant| ledger.add(hour, Some(&tenant.to_string()), output(1)));
    }
    assert_eq!(rows(&ledger, None).len(), MAX_USAGE_ROWS);
}

#[test]
fn a_tenants_rows_are_found_without_those_of_others() {
    let mut ledger = Ledger::new(Instant::now());
    for hour in 0..3 {
        ["a", "b"].iter().for_each(|name| ledger.add(hour, Some(name), output(hour)));
        ledger.add(hour, None, output(7));
    }
    assert_eq!(rows(&ledger, Some("a")), [0, 1, 2].map(|hour| (Some("a".into()), output(hour))));
    assert_eq!(rows(&ledger, Some("c")), []);
    assert_eq!(rows(&ledger, Some("")), [], "the rows without a tenant are nobody's");
}
