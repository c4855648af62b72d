//! Pins of prompts, from the request to the end of their time.

use trunkline_scheduler::{
    Event, LaneId, Millis, Pinned, Retention, Scheduler, SchedulerConfig, SequenceId, SequenceRequest,
    ShardLimits, StoreContents, Update,
};

use crate::sim::driver::{LIMITS, answer};
use crate::sim::scenario;

const SMALL: ShardLimits = ShardLimits { num_blocks: 16, max_step_tokens: 8, vocab_size: 100, ..LIMITS };

fn request(id: u64, retention: Retention) -> SequenceRequest {
    SequenceRequest { retention, ..scenario::request(id, (0..13).collect(), 1) }
}

fn run(scheduler: &mut Scheduler, request: SequenceRequest) -> Vec<Update> {
    let mut updates = Vec::new();
    scheduler.handle(Millis(0), Event::Submit(Box::new(request)), &mut updates);
    while let Some(plan) = scheduler.plan(LaneId::FIRST, Millis(0), &mut updates) {
        scheduler.handle(Millis(0), Event::StepResult(LaneId::FIRST, answer(&plan, 7)), &mut updates);
    }
    updates
}

#[test]
fn the_outcome_of_a_pin_is_reported_before_the_first_token() {
    let mut scheduler =
        Scheduler::new(SchedulerConfig { max_pinned_percent: 25, ..SchedulerConfig::default() });
    scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, SMALL), &mut Vec::new());
    let pinned_ms = Some(10);
    let updates = run(&mut scheduler, request(1, Retention { pinned_ms, ..Retention::default() }));
    let pinned = Pinned { num_tokens: 12, num_stored_tokens: None };
    let is_told = |update: &&Update| **update == Update::Pinned { id: SequenceId(1), pinned };
    let told = updates.iter().position(|update| is_told(&update)).unwrap();
    let token = updates.iter().position(|update| matches!(update, Update::Token { .. })).unwrap();
    assert!(told < token, "{updates:?}");
    assert_eq!(updates.iter().filter(is_told).count(), 1);
    assert_eq!((scheduler.stats().pins_granted, scheduler.stats().blocks_pinned), (1, 3));
    // Four blocks may be pinned, and three are.
    let mut other = request(2, Retention { pinned_ms, num_tokens: Some(9), ..Retention::default() });
    other.token_ids = (20..33).collect();
    let updates = run(&mut scheduler, other);
    assert!(
        updates.contains(&Update::Pinned { id: SequenceId(2), pinned: Pinned::default() }),
        "{updates:?}"
    );
    assert_eq!(scheduler.stats().pins_refused, 1);
}

#[test]
fn the_time_of_a_pin_begins_at_the_end() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, SMALL), &mut Vec::new());
    let mut updates = Vec::new();
    let retention = Retention { pinned_ms: Some(10), ..Retention::default() };
    let long = SequenceRequest { max_new_tokens: 3, ..request(1, retention) };
    scheduler.handle(Millis(0), Event::Submit(Box::new(long)), &mut updates);
    let mut now = 0;
    while !matches!(updates.last(), Some(Update::Ended { .. })) {
        let plan =
            scheduler.plan(LaneId::FIRST, Millis(now), &mut updates).expect("there is something to do");
        now += 20;
        scheduler.handle(Millis(now), Event::StepResult(LaneId::FIRST, answer(&plan, 7)), &mut updates);
    }
    assert_eq!((now, scheduler.stats().blocks_pinned, scheduler.stats().blocks_held), (80, 3, 3));
    scheduler.plan(LaneId::FIRST, Millis(now + 9), &mut updates);
    assert_eq!(scheduler.stats().blocks_pinned, 3);
    scheduler.plan(LaneId::FIRST, Millis(now + 10), &mut updates);
    assert_eq!(scheduler.stats().blocks_pinned, 0);
}

#[test]
fn the_stores_pins_outlive_the_shard() {
    let mut scheduler =
        Scheduler::new(SchedulerConfig { max_pinned_percent: 50, ..SchedulerConfig::default() });
    let start = |scheduler: &mut Scheduler| {
        scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, SMALL), &mut Vec::new());
        let contents = StoreContents { num_slots: 8, ..StoreContents::default() };
        scheduler.handle(Millis(0), Event::StoreReady(LaneId::FIRST, contents), &mut Vec::new());
    };
    start(&mut scheduler);
    let retention = Retention { pinned_ms: Some(10), ..Retention::default() };
    let updates = run(&mut scheduler, request(1, retention));
    let pinned = Pinned { num_tokens: 12, num_stored_tokens: Some(12) };
    assert!(updates.contains(&Update::Pinned { id: SequenceId(1), pinned }), "{updates:?}");
    for _ in 0..2 {
        scheduler.handle(
            Millis(0),
            Event::ShardLost { lane: LaneId::FIRST, may_return: true },
            &mut Vec::new(),
        );
    }
    start(&mut scheduler);
    assert_eq!((scheduler.stats().blocks_pinned, scheduler.stats().store_blocks_pinned), (0, 3));
    scheduler.handle(Millis(10), Event::ShardLost { lane: LaneId::FIRST, may_return: true }, &mut Vec::new());
    start(&mut scheduler);
    scheduler.plan(LaneId::FIRST, Millis(11), &mut Vec::new());
    assert_eq!(scheduler.stats().store_blocks_pinned, 0);
}
