//! Adapters: which slot a load goes into, who waits for it, and for how long.

use std::sync::Arc;

use crate::sim::driver::{Driver, LIMITS};
use crate::sim::scenario::{Arrival, Client, MAX_ADAPTER_BYTES, adapter, request};
use crate::sim::{Options, run};
use crate::simulation::crowded;
use trunkline_scheduler::*;

fn limits(num_adapter_slots: u32) -> ShardLimits {
    ShardLimits { num_adapter_slots, adapter_bytes: 4 * MAX_ADAPTER_BYTES, ..LIMITS }
}

fn driver(num_slots: u32) -> Driver {
    Driver::new(SchedulerConfig::default(), limits(num_slots))
}

/// Returns a request whose prompt no other one has, with an adapter unless it is 0.
fn asked(id: u64, of: u8, num_new: u32) -> SequenceRequest {
    let prompt = (0..5).map(|position| (id as u32 * 7 + position * 3) % 50).collect();
    let mut request = request(id, prompt, num_new);
    request.adapter = (of > 0).then(|| adapter(of, 1.0));
    request.salt.adapter = request.adapter.as_ref().map(|adapter| adapter.in_salt());
    request
}

/// Runs a request to its end, and returns the slots into which its adapter was loaded.
fn complete(driver: &mut Driver, id: u64, of: u8) -> Vec<u32> {
    driver.submit(asked(id, of, 2));
    driver.step();
    let slots = driver.end_loads("");
    driver.run();
    assert_eq!(driver.ended(id), Some(&EndReason::Length));
    slots
}

/// Returns the number of chunks in the next step.
fn num_chunks(driver: &mut Driver) -> usize {
    driver.step().map_or(0, |plan| plan.chunks.len())
}

#[test]
fn empty_slots_are_taken_first_then_the_least_recently_used() {
    let mut driver = driver(3);
    assert_eq!(complete(&mut driver, 1, 1), [1]);
    assert_eq!(complete(&mut driver, 2, 2), [2]);
    assert_eq!(complete(&mut driver, 3, 1), [] as [u32; 0], "it is loaded");
    assert_eq!(complete(&mut driver, 4, 3), [3], "a slot is empty");
    assert_eq!(complete(&mut driver, 5, 4), [2]);
    assert_eq!(complete(&mut driver, 6, 5), [1]);
    assert_eq!(complete(&mut driver, 7, 3), [] as [u32; 0]);
    let stats = driver.scheduler.stats();
    assert_eq!((stats.adapter_loads, stats.adapter_evictions, stats.adapter_load_failures), (5, 2, 0));
    assert_eq!((stats.adapter_slots, stats.adapter_slots_loaded, stats.adapter_waits), (3, 3, 0));
}

#[test]
fn a_run_waits_for_its_own_adapter_and_nobody_else_does() {
    let mut driver = driver(2);
    complete(&mut driver, 1, 1);
    driver.submit(asked(2, 0, 20));
    driver.submit(asked(3, 1, 20));
    driver.submit(asked(4, 2, 20));
    driver.submit(asked(5, 2, 20));
    for _ in 0..5 {
        assert_eq!(num_chunks(&mut driver), 2, "the others go on");
    }
    assert_eq!(driver.loads.len(), 1, "both wait for one load");
    let uses: Vec<(bool, u32)> = driver.scheduler.adapter_uses().lanes[0]
        .iter()
        .map(|slot| (slot.is_loading, slot.num_runs))
        .collect();
    assert_eq!(uses, [(false, 1), (true, 2)]);
    driver.end_loads("");
    assert_eq!(num_chunks(&mut driver), 4);
    driver.run();
    assert!((2..6).all(|id| driver.ended(id) == Some(&EndReason::Length)));
}

#[test]
fn a_failed_load_ends_the_sequences_that_wait_for_it() {
    let mut driver = driver(2);
    driver.submit(asked(1, 0, 20));
    driver.submit(asked(2, 1, 20));
    driver.submit(asked(3, 1, 20));
    driver.step();
    assert_eq!(driver.end_loads("the files have changed"), [1]);
    for id in [2, 3] {
        let Some(EndReason::Failed(error)) = driver.ended(id) else { panic!("sequence {id} goes on") };
        assert_eq!(error.code, SequenceErrorCode::AdapterFailed);
        assert_eq!(error.message, "the files have changed");
    }
    assert_eq!(complete(&mut driver, 4, 2), [1], "the slot is empty again");
    assert_eq!(complete(&mut driver, 5, 1), [2], "and the adapter is tried again");
    assert_eq!(driver.ended(1), Some(&EndReason::Length));
    assert_eq!(driver.scheduler.stats().adapter_load_failures, 1);
}

#[test]
fn a_load_keeps_its_slot_although_its_run_has_gone() {
    let mut driver = driver(1);
    driver.submit(asked(1, 1, 2));
    driver.step();
    driver.handle(Event::Abort(SequenceId(1)));
    driver.submit(asked(2, 2, 2));
    assert_eq!(num_chunks(&mut driver), 0, "the load cannot be taken back");
    assert_eq!(driver.scheduler.adapter_uses().waiting, [adapter(2, 1.0).name.clone()]);
    driver.end_loads("");
    driver.step();
    assert_eq!(driver.end_loads(""), [1]);
    driver.run();
    assert_eq!(driver.ended(2), Some(&EndReason::Length));
    let stats = driver.scheduler.stats();
    assert_eq!((stats.adapter_waits, stats.adapter_evictions), (1, 1));
}

#[test]
fn a_sequence_that_lacks_a_slot_is_not_overtaken_for_ever() {
    let mut driver = driver(1);
    driver.submit(asked(1, 1, 20));
    driver.step();
    driver.end_loads("");
    driver.submit(asked(2, 2, 2));
    driver.submit(asked(3, 1, 20));
    assert_eq!(num_chunks(&mut driver), 2, "the third one passes the second");
    driver.now = driver.now.plus(SLOT_PATIENCE_MS);
    driver.submit(asked(4, 1, 2));
    driver.submit(asked(5, 0, 20));
    assert_eq!(num_chunks(&mut driver), 3, "the fourth one does not, but one without an adapter does");
    driver.handle(Event::Finish(SequenceId(1)));
    assert_eq!(num_chunks(&mut driver), 2, "the slot is still held");
    driver.handle(Event::Finish(SequenceId(3)));
    driver.step();
    assert_eq!(driver.end_loads(""), [1], "the second one has it now");
    while driver.ended(2).is_none() {
        driver.step();
    }
    assert_eq!(driver.started(4), None);
    driver.step();
    driver.end_loads("");
    driver.run();
    assert_eq!(driver.ended(4), Some(&EndReason::Length));
    let stats = driver.scheduler.stats();
    assert_eq!((stats.adapter_loads, stats.adapter_waits), (3, 2));
}

/// Runs a flood for small adapters, beside one request for another that has no room while they are used. Returns the
/// number of loads.
fn run_flood(limits: ShardLimits, small: &[u8], other: u8) -> u64 {
    let mut scenario = crowded();
    (scenario.limits, scenario.max_delay_ms, scenario.load_ms) = (limits, 0, Some(30));
    let arrival = |index: u64, at: u64| {
        let of = if index == 300 { other } else { small[index as usize % small.len()] };
        let mut request = asked(index, of, 20);
        request.token_ids.push(index as u32 % 50);
        Arrival { at: Millis(at), request, salt: 1_000 * u64::from(of), client: Client::Waits }
    };
    scenario.arrivals = (0..1_200).map(|index| arrival(index, index * 4)).collect();
    let report = run(&scenario, Options::default());
    for (id, at) in &report.started_at {
        let waited = at.since(Millis(id.0 * 4));
        let most = if id.0 == 300 { SLOT_PATIENCE_MS + 100 } else { 400 };
        assert!(waited < most && (id.0 != 300 || waited > SLOT_PATIENCE_MS), "{}: {waited} ms", id.0);
    }
    assert!(report.ends.values().all(|reason| *reason == EndReason::Length));
    report.stats.adapter_loads
}

#[test]
fn a_flood_for_one_adapter_delays_another_by_the_patience_and_a_run() {
    assert_eq!(run_flood(limits(1), &[1], 2), 3);
}

#[test]
fn a_flood_for_small_adapters_delays_a_large_one_by_the_patience_and_a_run() {
    let limits = ShardLimits { adapter_bytes: MAX_ADAPTER_BYTES, ..limits(4) };
    assert_eq!(run_flood(limits, &[1, 2, 3], 4), 7);
}

#[test]
fn a_large_adapter_takes_the_place_of_several_that_were_used_least_recently() {
    let limits = ShardLimits { adapter_bytes: MAX_ADAPTER_BYTES + 150, ..limits(4) };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    for (id, of) in [(1, 1), (2, 2), (3, 3), (4, 1)] {
        complete(&mut driver, id, of);
    }
    driver.submit(asked(5, 4, 2));
    let plan = driver.step().expect("a load");
    let loads: Vec<(u32, &str)> = plan.adapter_loads.iter().map(|load| (load.slot, &*load.path)).collect();
    assert_eq!(loads, [(3, ""), (2, "/adapter-4")], "the first one has room beside it");
    driver.end_loads("");
    driver.run();
    assert_eq!(complete(&mut driver, 6, 1), [] as [u32; 0]);
    assert_eq!(complete(&mut driver, 7, 3), [2], "it has no room beside two others");
    assert_eq!(complete(&mut driver, 8, 1), [] as [u32; 0]);
    let stats = driver.scheduler.stats();
    assert_eq!((stats.adapter_loads, stats.adapter_evictions, stats.adapter_slots_loaded), (5, 3, 2));
}

#[test]
fn a_large_adapter_waits_until_the_small_ones_are_not_used_any_more() {
    let limits = ShardLimits { adapter_bytes: MAX_ADAPTER_BYTES, ..limits(4) };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    driver.submit(asked(1, 1, 20));
    driver.submit(asked(2, 2, 20));
    driver.step();
    driver.end_loads("");
    driver.submit(asked(3, 4, 2));
    driver.submit(asked(4, 3, 20));
    driver.step();
    assert_eq!(driver.end_loads(""), [3], "a small one passes it");
    driver.now = driver.now.plus(SLOT_PATIENCE_MS);
    driver.submit(asked(5, 1, 20));
    assert_eq!(num_chunks(&mut driver), 3, "and then none does, though its adapter is loaded");
    driver.handle(Event::Finish(SequenceId(1)));
    driver.handle(Event::Finish(SequenceId(2)));
    driver.step();
    assert_eq!(driver.loads, [], "the third adapter is still used");
    driver.handle(Event::Finish(SequenceId(4)));
    driver.step();
    assert_eq!(driver.end_loads("").len(), 1);
    driver.run();
    assert_eq!(driver.ended(3), Some(&EndReason::Length));
    driver.step();
    driver.end_loads("");
    driver.run();
    assert_eq!(driver.ended(5), Some(&EndReason::Length));
}

#[test]
fn an_adapter_that_is_larger_than_the_room_of_all_is_refused() {
    let limits = ShardLimits { adapter_bytes: MAX_ADAPTER_BYTES - 1, ..limits(4) };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    driver.submit(asked(1, 4, 2));
    let message = "its adapter takes 800 bytes, but adapters have only 799 bytes".to_owned();
    assert_eq!(driver.rejection(1), Some((&RejectReason::Invalid { message }, None)));
}

#[test]
fn a_lost_shard_loses_its_adapters() {
    let mut driver = driver(2);
    complete(&mut driver, 1, 1);
    driver.submit(asked(2, 1, 20));
    driver.submit(asked(3, 2, 20));
    driver.step();
    assert_eq!(driver.loads.len(), 1);
    driver.restart_shard();
    assert_eq!(driver.scheduler.adapter_uses().lanes, [vec![]]);
    while driver.ended(2).is_none() || driver.ended(3).is_none() {
        driver.step();
        driver.end_loads("");
    }
    assert!((2..4).all(|id| driver.ended(id) == Some(&EndReason::Length)));
    assert_eq!(driver.scheduler.stats().adapter_loads, 4, "the counters stay");
}

#[test]
fn an_adapter_whose_load_crashes_the_shard_fails_its_request() {
    let mut driver = driver(2);
    driver.submit(asked(1, 0, 40));
    driver.submit(asked(2, 1, 20));
    driver.step();
    driver.restart_shard();
    while driver.loads.is_empty() {
        assert!(driver.step().is_some(), "it is tried again, with nothing else in flight");
    }
    driver.restart_shard();
    let Some(EndReason::Failed(error)) = driver.ended(2) else { panic!("the load is tried again") };
    assert_eq!(error.code, SequenceErrorCode::CrashedShard);
    driver.run();
    assert_eq!(driver.ended(1), Some(&EndReason::Length));
}

#[test]
fn others_go_on_while_the_adapter_of_a_suspect_is_loaded_that_computed_when_the_shard_was_lost() {
    let mut driver = driver(2);
    complete(&mut driver, 2, 1);
    driver.submit(asked(1, 0, 40));
    driver.submit(asked(3, 1, 30));
    driver.step();
    assert_eq!(driver.plan().map(|plan| plan.chunks.len()), Some(2), "both are in flight");
    driver.restart_shard();
    while driver.loads.is_empty() {
        assert!(driver.step().is_some(), "the first suspect is cleared");
    }
    for _ in 0..5 {
        assert_eq!(num_chunks(&mut driver), 1);
    }
    driver.end_loads("");
    driver.run();
    assert!([1, 3].iter().all(|&id| driver.ended(id) == Some(&EndReason::Length)));
}

#[test]
fn requests_for_an_adapter_go_to_the_lane_that_has_it_while_that_has_as_little_to_do() {
    let config = SchedulerConfig { num_lanes: 2, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, limits(2)).with_all_lanes();
    // Each lane loads the adapter of the first request that it is offered.
    for (id, lane) in [(1, LaneId(1)), (2, LaneId(0))] {
        driver.submit(asked(id, id as u8, 1));
        let plan = driver.plan_on(lane).expect("a load");
        assert_eq!(plan.adapter_loads.len(), 1);
        driver.load_at_once(lane, &plan);
    }
    while [LaneId(0), LaneId(1)].iter().any(|&lane| {
        driver.plan_on(lane);
        driver.acknowledge_on(lane)
    }) {}
    for (id, lane, other) in [(3, LaneId(1), LaneId(0)), (4, LaneId(0), LaneId(1))] {
        driver.submit(asked(id, (id - 2) as u8, 1));
        assert_eq!(driver.plan_on(other), None, "the adapter is loaded on the other lane");
        let plan = driver.plan_on(lane).expect("a step");
        assert!(plan.adapter_loads.is_empty());
        while driver.acknowledge_on(lane) {
            driver.plan_on(lane);
        }
    }
    // Many for one adapter are too many for its lane.
    (5..9).for_each(|id| driver.submit(asked(id, 1, 20)));
    while driver.plan_on(LaneId(1)).is_some() {}
    assert_eq!(driver.plan_on(LaneId(0)).map(|plan| plan.adapter_loads.len()), Some(1));
}

#[test]
fn a_lane_without_slots_leaves_adapters_to_others() {
    let config = SchedulerConfig { num_lanes: 2, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, limits(0));
    driver.submit(asked(1, 1, 2));
    assert_eq!(driver.rejection(1), Some((&RejectReason::NoAdapters, None)), "no lane takes it");
    driver.handle(Event::ShardReady(LaneId(1), limits(1)));
    driver.submit(asked(2, 1, 2));
    assert_eq!(driver.plan(), None);
    let plan = driver.scheduler.plan(LaneId(1), driver.now, &mut driver.updates).expect("a load");
    assert_eq!(plan.adapter_loads.len(), 1);
    assert_eq!(driver.scheduler.stats().rejected_no_adapters, 1);
}

#[test]
fn a_salt_that_is_not_that_of_the_adapter_is_refused() {
    let mut driver = driver(1);
    let mut other = asked(1, 1, 2);
    other.salt.adapter = Some(adapter(2, 1.0).in_salt());
    let mut plain = asked(2, 1, 2);
    plain.adapter = None;
    let mut scaled = asked(3, 1, 2);
    scaled.adapter = Some(adapter(1, 0.5));
    let mut long = asked(4, 1, 2);
    long.adapter = Some(Arc::new(AdapterUse { path: "x".repeat(4097).into(), ..(*adapter(1, 1.0)).clone() }));
    for request in [other, plain, scaled, long] {
        let id = request.id.0;
        driver.submit(request);
        assert!(matches!(driver.rejection(id), Some((RejectReason::Invalid { .. }, None))), "request {id}");
    }
}
