//! Tests of the fitted costs of steps.

use proptest::prelude::*;
use trunkline_scheduler::step_cost::{StepCost, StepWork};

/// Returns the work of `decodes` sequences at `position`, and of a chunk of `prefill` rows from `first` on.
fn work(decodes: u32, position: u32, first: u32, prefill: u32) -> StepWork {
    let mut work = StepWork::default();
    (0..decodes).for_each(|_| work.add(position, 1));
    work.add(first, prefill);
    work
}

/// Returns the rows that a step pays for.
fn paid(work: StepWork) -> u64 {
    work.rows.saturating_sub(16)
}

#[test]
fn short_steps_do_not_make_rows_look_cheap() {
    // The first rows cost little, as where the weights' way from memory takes longest.
    let time = |work: StepWork| (3_500 + 200 * work.rows).max(1_100 * work.rows);
    let mut cost = StepCost::default();
    for index in 0..100 {
        let work = work(1, 100, index * 30, 30);
        cost.add(work, time(work));
    }
    for index in 0..2_000 {
        let work = if index % 100 == 0 { work(1, 50, 0, 5) } else { work(1, index, 0, 0) };
        cost.add(work, time(work));
    }
    let rows = cost.rows_within(45_000.0, work(1, 2_000, 0, 0), 0).unwrap();
    assert!((30..50).contains(&rows), "{rows} rows");
}

#[test]
fn a_row_reads_itself_and_everything_before_it() {
    let mut chunk = StepWork::default();
    chunk.add(100, 3);
    assert_eq!(chunk, StepWork { rows: 3, context: 101 + 102 + 103, ..StepWork::default() });
}

#[test]
fn nothing_is_predicted_before_a_step_was_measured() {
    let mut cost = StepCost::default();
    cost.add(work(1, 5, 0, 0), 0);
    assert_eq!(cost.predict_us(work(1, 5, 0, 0)), None);
    assert_eq!(cost.rows_within(1e9, StepWork::default(), 0), None);
    assert_eq!(cost.efficient_rows(), None);
}

#[test]
fn a_step_that_the_machine_held_up_changes_little() {
    let mut cost = StepCost::default();
    let typical = work(8, 500, 1_000, 32);
    let time = |work: StepWork| 3_000 + 1_000 * paid(work);
    for prefill in (0..200).map(|index| index % 40) {
        let work = work(8, 500, 1_000, prefill);
        cost.add(work, time(work));
    }
    cost.add(typical, 20 * time(typical));
    let predicted = cost.predict_us(typical).unwrap();
    assert!((predicted / time(typical) as f64 - 1.0).abs() < 0.05, "{predicted}");
}

#[test]
fn decodes_that_read_much_context_do_not_make_rows_of_prompts_look_cheap() {
    let mut cost = StepCost::default();
    // As on a CPU: a position costs a single row ten times as much as a row of a chunk.
    let time = |work: StepWork| {
        let (paid, context, decode) = (paid(work) as f64, work.context as f64, work.decode_context as f64);
        (5_000.0 + 500.0 * paid + 0.12 * context + 1.4 * decode) as u64
    };
    for index in 0..1_500 {
        let prefill = if index % 25 == 0 { 30 + index % 170 } else { 0 };
        let work = work(8, 20 + index / 2, index * 2, prefill);
        cost.add(work, time(work));
    }
    let full = work(8, 100, 3_000, 248);
    let (predicted, wanted) = (cost.predict_us(full).unwrap(), time(full) as f64);
    assert!((predicted / wanted - 1.0).abs() < 0.1, "{predicted} {wanted}");
    assert!(cost.efficient_rows().unwrap() < 20);
}

proptest! {
    /// Costs are found whatever they are, from steps like those of a server, and stay known while only decodes run.
    #[test]
    fn costs_are_found_and_kept(
        base in 100.0..20_000.0, row in 1.0..2_000.0, context in 0.0..0.5,
        steps in prop::collection::vec((1u32..32, 1u32..4_000, 0u32..8_000, 0u32..256), 300),
    ) {
        let time = |work: StepWork| -> f64 { base + row * paid(work) as f64 + context * work.context as f64 };
        let mut cost = StepCost::default();
        for &(decodes, position, first, prefill) in &steps {
            let work = work(decodes, position, first, prefill);
            cost.add(work, time(work) as u64);
        }
        (0..500).for_each(|index| {
            let decodes = work(4, 100 + index, 0, 0);
            cost.add(decodes, time(decodes) as u64);
        });
        for &(decodes, position, first, prefill) in &steps[..20] {
            let work = work(decodes, position, first, prefill);
            let predicted = cost.predict_us(work).unwrap();
            prop_assert!(f64::abs(predicted / time(work) - 1.0) < 0.1, "{} {}", predicted, time(work));
        }
    }

    /// The rows within a time are as many as it holds by the step's own prediction.
    #[test]
    fn rows_fill_the_time(
        base in 100.0..20_000.0, row in 1.0..2_000.0, context in 0.0..0.5,
        time_us in 1_000.0..200_000.0, decodes in 1u32..32, first in 0u32..8_000,
    ) {
        let mut cost = StepCost::default();
        for index in 0..200 {
            let work = work(1 + index % 30, index * 20, index * 37, index % 100);
            cost.add(work, (base + row * paid(work) as f64 + context * work.context as f64) as u64);
        }
        let beside = work(decodes, 500, 0, 0);
        let rows = cost.rows_within(time_us, beside, first).unwrap();
        let with = |rows: u32| {
            let (mut work, rows) = (beside, u64::from(rows));
            work.rows += rows;
            work.context += rows * u64::from(first) + rows * (rows + 1) / 2;
            cost.predict_us(work).unwrap()
        };
        prop_assert!(rows == 0 || with(rows) <= time_us + 1e-6);
        prop_assert!(with(rows + 1) > time_us);
    }
}
