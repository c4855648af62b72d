//! Tests of predictions from measurements.

use trunkline_scheduler::estimate::{LEAST_PATIENCE_MS, Load, TRY_EVERY, Throughput};
use trunkline_scheduler::step_cost::StepWork;

const IDLE: Load = Load { num_prefill_tokens: 0, num_waiting: 0, num_running: 0, max_running: 4 };

#[test]
fn nothing_is_predicted_from_nothing() {
    let throughput = Throughput::default();
    assert_eq!(throughput.predict_wait_ms(IDLE), Some(0));
    assert_eq!(throughput.predict_wait_ms(Load { num_prefill_tokens: 1, ..IDLE }), None);
    assert_eq!(throughput.predict_wait_ms(Load { num_running: 4, ..IDLE }), None);
}

#[test]
fn a_wait_is_the_prefill_and_the_places_ahead() {
    let mut throughput = Throughput::default();
    for _ in 0..50 {
        throughput.add_step(StepWork { rows: 100, context: 5_050, ..StepWork::default() }, 100, 50_000);
        throughput.add_run(4_000);
    }
    let wait = |load| throughput.predict_wait_ms(load).unwrap();
    assert_eq!(wait(Load { num_prefill_tokens: 1_000, ..IDLE }), 500);
    assert_eq!(wait(Load { num_running: 4, ..IDLE }), 1_000);
    assert_eq!(wait(Load { num_running: 4, num_waiting: 3, ..IDLE }), 4_000);
    assert_eq!(wait(Load { num_running: 3, num_prefill_tokens: 10, ..IDLE }), 5);
}

#[test]
fn a_slow_store_is_left_alone_but_tried_again() {
    let mut throughput = Throughput::default();
    assert!(throughput.is_restore_quicker(1, 64), "nothing is known");
    throughput.add_step(StepWork { rows: 100, context: 5_050, ..StepWork::default() }, 100, 100_000);
    throughput.add_restore(10, 500_000);
    assert!(throughput.is_restore_quicker(10, 640), "50 ms a block against 64");
    throughput.add_restore(10, 5_000_000);
    let num_tries = (0..10 * TRY_EVERY).filter(|_| throughput.is_restore_quicker(10, 640)).count();
    assert_eq!(num_tries, 10);
}

#[test]
fn a_restore_is_waited_for_as_long_as_that_is_reasonable() {
    let mut throughput = Throughput::default();
    assert_eq!(throughput.restore_patience_ms(10, 640), LEAST_PATIENCE_MS);
    assert_eq!(throughput.restore_patience_ms(100, 640), 8_000, "nothing is known");
    throughput.add_restore(100, 100_000);
    assert_eq!(throughput.restore_patience_ms(1_000, 64_000), 4_000);
    throughput.add_step(StepWork { rows: 100, context: 5_050, ..StepWork::default() }, 100, 100_000);
    assert_eq!(throughput.restore_patience_ms(1_000, 64_000), 32_000, "computing is slow");
}

#[test]
fn old_measurements_fade() {
    let mut throughput = Throughput::default();
    throughput.add_step(StepWork { rows: 1, decode_context: 1, ..StepWork::default() }, 1, 1_000_000);
    for _ in 0..100 {
        throughput.add_step(StepWork { rows: 1, decode_context: 1, ..StepWork::default() }, 1, 1_000);
    }
    assert_eq!(throughput.predict_wait_ms(Load { num_prefill_tokens: 100, ..IDLE }), Some(103));
}
