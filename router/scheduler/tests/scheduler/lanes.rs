//! Several lanes: what one may lose, where sequences run, and what stays the same whatever the number of lanes.

use std::collections::BTreeSet;

use crate::draw;
use crate::sim::driver::{Driver, LIMITS};
use crate::sim::rng::Rng;
use crate::sim::scenario::{Arrival, Client, Drain, Outage, Poison, Scenario, Stall, request};
use crate::sim::store::StorePlan;
use crate::sim::{Options, Report};
use crate::simulation::{Count, crowded, run_all, run_named, run_of_kind};
use trunkline_scheduler::{
    EndReason, Event, LaneId, Millis, RejectReason, SchedulerConfig, SequenceErrorCode, SequenceId,
    ShardLimits,
};

const KIND: &str = "--kind lanes ";

#[test]
fn every_request_ends_once_with_its_own_text_on_several_lanes() {
    let counts: [Count; 16] = [
        |stats| stats.preemptions,
        |stats| stats.evicted_blocks,
        |stats| stats.prefix_waits,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.rejected_too_long,
        |stats| stats.rejected_deadline,
        |stats| stats.replays,
        |stats| stats.escapes,
        |stats| stats.convictions,
        |stats| stats.stored_blocks,
        |stats| stats.restored_blocks,
        |stats| stats.moved_blocks,
        |stats| stats.moves,
        |stats| stats.hand_overs,
        |stats| stats.accepted_draft_tokens,
        |stats| stats.unexpected_results,
    ];
    let mut num_busy_lanes = 0;
    run_all(KIND, Scenario::random_lanes, 200, &counts, |report| {
        num_busy_lanes += report.lane_stats.iter().filter(|lane| lane.steps > 0).count();
    });
    assert!(num_busy_lanes > 2 * crate::simulation::seeds().count(), "{num_busy_lanes}");
}

#[test]
fn a_seed_with_several_lanes_replays_bit_for_bit() {
    let first = draw::first_seed();
    for seed in first..first + 50 {
        let run = || run_of_kind(KIND, &Scenario::random_lanes(seed), Options::default());
        assert_eq!(run().trace_hash, run().trace_hash, "seed {seed}");
    }
}

#[test]
fn text_and_scores_do_not_depend_on_the_number_of_lanes() {
    for seed in 0..40 {
        let mut scenario = Scenario::random(seed);
        (scenario.faults, scenario.outages, scenario.poison) = (Default::default(), Vec::new(), None);
        scenario.config.max_queued_requests = 100;
        for arrival in &mut scenario.arrivals {
            (arrival.client, arrival.request.deadline) = (Client::Waits, None);
        }
        let one = run_named(&scenario, Options::default());
        for num_lanes in [2, 3, 8] {
            let many = run_named(&scenario.clone().on_lanes(num_lanes), Options::default());
            let is_same =
                (&one.outputs, &one.ends, &one.rejections) == (&many.outputs, &many.ends, &many.rejections);
            assert!(is_same, "seed {seed} with {num_lanes} lanes");
        }
    }
}

/// Requests with prompts that share nothing, for lanes that have room for eight at once.
fn streams(num_streams: u64, num_new: u32) -> Scenario {
    let mut scenario = crowded();
    (scenario.limits.num_blocks, scenario.limits.max_step_sequences) = (400, 8);
    (scenario.limits.max_step_tokens, scenario.limits.vocab_size) = (64, 1_000);
    scenario.config.max_prefill_tokens_beside_decodes = 16;
    scenario.max_delay_ms = 0;
    let mut rng = Rng::new(5);
    let mut arrival = |index: u64| {
        let request = request(index, rng.tokens(6, 1_000), num_new);
        Arrival { at: Millis(index), request, salt: 0, client: Client::Waits }
    };
    scenario.arrivals = (0..num_streams).map(&mut arrival).collect();
    scenario
}

/// Loses a lane's shard.
fn outage(scenario: &mut Scenario, lane: u32, at: u64, for_ms: u64) {
    let limits = scenario.limits_of(LaneId(lane));
    scenario.outages.push(Outage { lane: LaneId(lane), ..Outage::new(Millis(at), for_ms, limits) });
}

#[test]
fn texts_do_not_depend_on_drains() {
    let mut num_stops = 0;
    for seed in 0..100 {
        let mut scenario = Scenario::random_lanes(seed);
        (scenario.faults, scenario.outages, scenario.poison) = (Default::default(), Vec::new(), None);
        scenario.drains.clear();
        scenario = scenario.on_lanes(2 + seed as u32 % 3);
        (scenario.config.max_queued_requests, scenario.config.shard_patience_ms) = (100, 60_000);
        for arrival in &mut scenario.arrivals {
            (arrival.client, arrival.request.deadline) = (Client::Waits, None);
        }
        let calm = run_named(&scenario, Options::default());
        scenario.add_drains(seed);
        let report = run_named(&scenario, Options::default());
        let is_same = (&calm.outputs, &calm.ends, &calm.rejections)
            == (&report.outputs, &report.ends, &report.rejections);
        assert!(is_same, "seed {seed}");
        assert!(report.lane_stats.iter().all(|lane| lane.losses == 0 && !lane.is_draining), "seed {seed}");
        num_stops += report.num_stops;
    }
    assert!(num_stops > 50, "{num_stops}");
}

/// Adds a drain of a lane to a scenario.
fn drain(scenario: &mut Scenario, lane: u32, at: u64, patience_ms: u64, until: u64) {
    scenario.drains.push(Drain { lane: LaneId(lane), at: Millis(at), patience_ms, until: Millis(until) });
}

#[test]
fn a_lane_that_drains_takes_nothing_and_what_runs_too_long_goes_on_elsewhere() {
    let at_end = |scenario: &Scenario| run_named(scenario, Options::default());
    let mut scenario = streams(12, 40).on_lanes(2);
    let calm = at_end(&scenario);
    assert!(calm.lane_stats.iter().all(|lane| lane.steps > 0));
    // From the beginning, for good.
    drain(&mut scenario, 1, 0, 0, 100_000);
    let report = at_end(&scenario);
    assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
    assert_eq!(report.lane_stats[1].steps, 0);
    // Patience that suffices, and none.
    for (patience_ms, is_cut) in [(100_000, false), (0, true)] {
        scenario.drains.clear();
        drain(&mut scenario, 1, 20, patience_ms, 200_000);
        let report = at_end(&scenario);
        assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
        assert_eq!(report.stats.preemptions > calm.stats.preemptions, is_cut);
        assert_eq!((report.num_stops, report.num_losses, report.stats.replays), (1, 0, 0));
    }
}

#[test]
fn a_lane_that_returns_takes_running_streams_over() {
    let mut scenario = streams(12, 400);
    (scenario.limits.num_blocks, scenario.limits.max_step_sequences) = (2_000, 16);
    scenario = scenario.on_lanes(2);
    let calm = run_named(&scenario, Options::default());
    for store in [None, Some(StorePlan { num_slots: 400, ..StorePlan::default() })] {
        scenario.store = store;
        scenario.outages.clear();
        outage(&mut scenario, 1, 0, 100);
        let report = run_named(&scenario, Options::default());
        assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
        // Until one lane runs about twice as many as the other; none goes back.
        assert!((3..=5).contains(&report.stats.moves), "{:?}", report.stats);
        assert_eq!(report.stats.preemptions, 0, "a move is none");
        assert_eq!(report.stats.moved_blocks > 0, scenario.store.is_some());
        let tokens = report.lane_stats.iter().map(|lane| lane.scheduled_tokens).collect::<Vec<_>>();
        assert!(tokens[1] > tokens[0] / 4, "{tokens:?}");
    }
}

#[test]
fn lanes_that_all_drain_go_on_until_one_serves() {
    let mut scenario = streams(12, 40).on_lanes(2);
    drain(&mut scenario, 0, 0, 0, 100_000);
    drain(&mut scenario, 1, 10, 0, 20_000);
    let report = run_named(&scenario, Options::default());
    all_end_well(&report, 12);
    assert!(report.lane_stats[1].steps > 0);
}

fn all_end_well(report: &Report, num_streams: usize) {
    assert_eq!(report.ends.len(), num_streams, "{:?}", report.rejections);
    assert!(report.ends.values().all(|reason| *reason == EndReason::Length), "{:?}", report.ends);
}

#[test]
fn streams_of_a_lost_lane_go_on_at_once_on_another_one() {
    // A lane that comes back late, and one that never does.
    for for_ms in [10_000, u64::MAX] {
        let mut scenario = streams(12, 40).on_lanes(2);
        let calm = run_named(&scenario, Options::default());
        outage(&mut scenario, 1, 20, for_ms);
        let report = run_named(&scenario, Options::default());
        assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
        all_end_well(&report, 12);
        assert!(report.stats.replays >= 4, "{:?}", report.stats);
        let last = report.ended_ats.values().max().expect("some end");
        assert!(last.0 < 4 * calm.ended_at.0, "{last:?} instead of {:?}", calm.ended_at);
    }
}

#[test]
fn streams_of_a_lost_lane_are_restored_from_its_store() {
    let mut scenario = streams(12, 40).on_lanes(2);
    scenario.store = Some(StorePlan { num_slots: 400, ..StorePlan::default() });
    let calm = run_named(&scenario, Options::default());
    assert_eq!(calm.stats.moved_blocks, 0);
    outage(&mut scenario, 1, 20, u64::MAX);
    let report = run_named(&scenario, Options::default());
    assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
    all_end_well(&report, 12);
    assert!(report.stats.moved_blocks >= 4, "{:?}", report.stats);
    assert_eq!(
        report.stats.moved_blocks, report.stats.restored_blocks,
        "the other lane has its own in the pool"
    );
}

/// Long prompts for two lanes with stores, of which the first computes prompts for the other.
fn long_prompts() -> Scenario {
    let mut scenario = streams(12, 20).on_lanes(2);
    scenario.store = Some(StorePlan { num_slots: 400, max_delay_ms: 5, ..StorePlan::default() });
    let mut rng = Rng::new(9);
    for arrival in &mut scenario.arrivals {
        arrival.request.token_ids = rng.tokens(41, 1_000);
    }
    scenario
}

#[test]
fn prompts_are_computed_on_one_lane_for_another() {
    let mut scenario = long_prompts();
    let expected = run_named(&scenario, Options::default());
    scenario.config.num_prefill_lanes = 1;
    let report = run_named(&scenario, Options::default());
    assert_eq!((&report.outputs, &report.ends), (&expected.outputs, &expected.ends));
    let block_size = u64::from(scenario.limits.block_size);
    assert_eq!((report.stats.hand_overs, report.stats.preemptions), (12, 0), "{:?}", report.stats);
    assert_eq!(report.stats.moved_blocks, 12 * (40 / block_size));
    let num_others = report.lane_stats[1].scheduled_tokens;
    assert_eq!(
        num_others,
        12 * (41 - 40 / block_size * block_size + 19),
        "the rest of each prompt, and its output"
    );
}

#[test]
fn a_lane_computes_prompts_itself_that_it_cannot_read_or_while_it_is_alone() {
    let mut scenario = long_prompts();
    let expected = run_named(&scenario, Options::default());
    scenario.config.num_prefill_lanes = 1;
    let mut broken = scenario.clone();
    broken.store = Some(StorePlan { num_slots: 400, write_fault: 1, ..StorePlan::default() });
    let mut small = scenario.clone();
    small.store = Some(StorePlan { num_slots: 3, ..StorePlan::default() });
    let mut without = scenario.clone();
    without.store = None;
    let mut lost = scenario.clone();
    outage(&mut lost, 0, 8, u64::MAX);
    let mut alone = scenario;
    outage(&mut alone, 1, 8, u64::MAX);
    for scenario in [broken, small, without, lost, alone] {
        let report = run_named(&scenario, Options::default());
        assert_eq!((&report.outputs, &report.ends), (&expected.outputs, &expected.ends));
        all_end_well(&report, 12);
    }
}

#[test]
fn sequences_end_only_if_all_lanes_stay_away() {
    let mut scenario = streams(12, 40).on_lanes(2);
    scenario.config.shard_patience_ms = 50;
    outage(&mut scenario, 0, 6, 200);
    outage(&mut scenario, 1, 6, 30);
    all_end_well(&run_named(&scenario, Options::default()), 12);

    scenario.outages[1].for_ms = u64::MAX;
    let report = run_named(&scenario, Options::default());
    let num_ended = report.ends.values().filter(|reason| **reason == EndReason::ShardLost).count();
    assert!(num_ended > 4, "{:?}", report.ends);
    assert!(report.rejections.values().all(|reason| *reason == RejectReason::ShardAway));
    assert!(report.ended_ats.values().all(|at| at.0 == 56), "when the last one is given up");
}

#[test]
fn a_sequence_that_fits_one_lane_only_waits_for_it_and_ends_if_it_stays_away() {
    for (for_ms, may_go_on) in [(20, true), (u64::MAX, false), (400, false)] {
        let mut scenario = streams(6, 40).on_lanes(2);
        scenario.config.shard_patience_ms = 100;
        scenario.more_lanes[0].num_blocks = 10;
        outage(&mut scenario, 0, 12, for_ms);
        let report = run_named(&scenario, Options::default());
        let reason = if may_go_on { EndReason::Length } else { EndReason::ShardLost };
        assert!(report.ends.values().all(|end| *end == reason), "{for_ms}: {:?}", report.ends);
        assert_eq!(report.ends.len(), 6, "{for_ms}: {:?}", report.rejections);
        let patience_ms = if for_ms == u64::MAX { 0 } else { 100 };
        let is_on_time = report.ended_ats.values().all(|at| may_go_on || at.0 == 12 + patience_ms);
        assert!(is_on_time, "{for_ms}: {:?}", report.ended_ats);
    }
}

#[test]
fn many_sequences_that_fit_one_lane_only_do_not_keep_another_one_idle() {
    let mut scenario = streams(60, 20).on_lanes(2);
    scenario.more_lanes[0].num_blocks = 5;
    scenario.config.cached_first_window_ms = 100_000;
    for arrival in &mut scenario.arrivals {
        arrival.at = Millis(0);
    }
    for arrival in &mut scenario.arrivals[50..] {
        arrival.request.max_new_tokens = 5;
    }
    let report = run_named(&scenario, Options::default());
    all_end_well(&report, 60);
    let short = report.ended_ats.iter().filter(|(id, _)| id.0 >= 50).map(|(_, at)| at.0).max();
    let long = report.ended_ats.iter().filter(|(id, _)| id.0 < 50).map(|(_, at)| at.0).max();
    assert!(short < long.map(|at| at / 2), "{short:?} of {long:?}");
}

#[test]
fn a_poison_visits_two_lanes_at_most_and_all_others_go_on() {
    for num_lanes in [2, 4] {
        let mut scenario = streams(12, 30).on_lanes(num_lanes);
        let calm = run_named(&scenario, Options::default());
        for (request, position) in [(0, 6), (3, 20), (7, 30), (11, 12)] {
            scenario.poison = Some(Poison::Position { request, position });
            let report = run_named(&scenario, Options::default());
            assert_eq!((report.num_losses, report.stats.convictions), (2, 1), "{:?}", scenario.poison);
            assert_eq!(report.stats.excused_losses, 2, "{:?}", scenario.poison);
            assert!(report.crashed_lanes.len() <= 2);
            for (id, reason) in &report.ends {
                if id.0 == request {
                    let EndReason::Failed(error) = reason else { panic!("{reason:?}") };
                    assert_eq!(error.code, SequenceErrorCode::CrashedShard);
                } else {
                    assert_eq!((reason, &report.outputs[id]), (&calm.ends[id], &calm.outputs[id]));
                }
            }
        }
    }
}

#[test]
fn an_idle_lane_waits_for_no_full_one_and_for_others_within_the_window() {
    for (num_lanes, window_ms) in [(2, 0), (2, 30), (4, 30), (8, 300)] {
        let mut scenario = streams(120, 12).on_lanes(num_lanes);
        scenario.config.cached_first_window_ms = window_ms;
        let report = run_named(&scenario, Options::default());
        all_end_well(&report, 120);
        assert!(report.longest_idle_ms <= window_ms, "{num_lanes} lanes: {}", report.longest_idle_ms);
        let busy = report.lane_stats.iter().filter(|lane| lane.steps > 20).count();
        assert_eq!(busy, num_lanes as usize, "{:?}", report.lane_stats);
    }
}

/// Conversations that share a long system prompt. Each request has the whole conversation before it.
fn conversations(num_conversations: u64, num_turns: u64, spread_ms: u64) -> Scenario {
    let mut scenario = streams(0, 0);
    (scenario.limits.block_size, scenario.limits.num_blocks) = (4, 1_600);
    let mut rng = Rng::new(9);
    let system = rng.tokens(80, 1_000);
    let mut prompts = vec![system; num_conversations as usize];
    for turn in 0..num_turns {
        for (index, prompt) in (0..).zip(&mut prompts) {
            prompt.extend(rng.tokens(24, 1_000));
            let at = Millis(turn * spread_ms + rng.range(0, spread_ms));
            let request = request(turn * num_conversations + index, prompt.clone(), 8);
            scenario.arrivals.push(Arrival { at, request, salt: 0, client: Client::Waits });
        }
    }
    scenario
}

#[test]
fn conversations_return_to_the_lane_that_has_their_prefix() {
    for (num_lanes, spread_ms) in [(2, 60), (4, 15)] {
        let mut scenario = conversations(12, 10, spread_ms);
        let one = run_named(&scenario, Options::default());
        scenario.limits.num_blocks /= num_lanes;
        let many = run_named(&scenario.on_lanes(num_lanes), Options::default());
        let hits = (one.stats.prefix_hit_tokens, many.stats.prefix_hit_tokens);
        let least_percent = if num_lanes == 2 { 90 } else { 85 };
        assert!(100 * hits.1 >= least_percent * hits.0, "{num_lanes} lanes: hit tokens {hits:?}");
        let used: BTreeSet<bool> = many.lane_stats.iter().map(|lane| lane.steps > 20).collect();
        assert_eq!(used, [true].into(), "{:?}", many.lane_stats);
    }
}

#[test]
fn a_passed_over_sequence_runs_at_the_end_of_its_window_though_nothing_else_happens() {
    let config = SchedulerConfig { num_lanes: 2, cached_first_window_ms: 50, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS).with_all_lanes();
    driver.submit(request(1, vec![1; 40], 30));
    driver.run();
    // The first lane has the prefix. It seems to have room, but never plans.
    driver.submit(request(2, vec![1; 41], 30));
    assert!(driver.plan_on(LaneId(1)).is_none(), "it is better off on the first lane");
    let until = driver.now.plus(50);
    assert_eq!(driver.scheduler.next_wakeup(), Some(until));
    driver.now = until;
    assert!(driver.plan_on(LaneId(1)).is_some_and(|plan| !plan.chunks.is_empty()));
}

#[test]
fn the_streams_of_a_lane_go_on_while_it_clears_suspects() {
    let config = SchedulerConfig { num_lanes: 2, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, ShardLimits { max_step_sequences: 16, ..LIMITS }).with_all_lanes();
    for id in 0..8 {
        driver.submit(request(id, vec![id as u32; 4], 40));
        for lane in driver.scheduler.lane_ids() {
            driver.plan_on(lane);
            driver.acknowledge_on(lane);
        }
    }
    assert_eq!(driver.scheduler.lane_stats(LaneId(0)).num_running, 4);
    driver.plan_on(LaneId(1)).expect("a step of the second lane");
    driver.handle(Event::ShardLost { lane: LaneId(1), may_return: true });
    let mut sizes = Vec::new();
    for _ in 0..7 {
        let plan = driver.plan().expect("there is work");
        assert!(driver.plan().is_none(), "a suspect shares its time with nobody");
        sizes.push(plan.chunks.len());
        driver.acknowledge();
    }
    assert_eq!(sizes, [1, 5, 1, 6, 1, 7, 1], "each suspect has a step, and all others have one after it");
    driver.run();
    assert!((0..8).all(|id| driver.ended(id) == Some(&EndReason::Length)));
}

/// Streams on lanes with room for all of them.
fn roomy_streams(num_lanes: u32) -> Scenario {
    let mut scenario = streams(18, 200).on_lanes(num_lanes);
    (scenario.limits.max_step_sequences, scenario.limits.num_blocks) = (32, 2_000);
    scenario.more_lanes = vec![scenario.limits; num_lanes as usize - 1];
    scenario
}

#[test]
fn streams_of_a_stalled_lane_go_on_at_once_on_another_one() {
    let mut scenario = roomy_streams(2);
    let calm = run_named(&scenario, Options::default());
    // The lane comes back, or it is lost later.
    for (for_ms, lost_at) in [(400, None), (5_000, None), (50_000, Some(3_000))] {
        scenario.stalls = vec![Stall { lane: LaneId(1), at: Millis(60), for_ms }];
        scenario.outages.clear();
        lost_at.into_iter().for_each(|at| outage(&mut scenario, 1, at, 100));
        let report = run_named(&scenario, Options::default());
        all_end_well(&report, 18);
        assert_eq!(report.outputs, calm.outputs);
        assert!(report.stats.escapes >= 6, "{:?}", report.stats);
        assert!(report.longest_pause_ms <= 300, "{} ms", report.longest_pause_ms);
        assert_eq!(report.stats.convictions, 0);
    }
}

#[test]
fn a_lane_that_was_late_keeps_its_cache_and_takes_work_again() {
    let mut scenario = roomy_streams(2);
    scenario.stalls = vec![Stall { lane: LaneId(1), at: Millis(60), for_ms: 1_000 }];
    let short = run_named(&scenario, Options::default());
    let mut rng = Rng::new(77);
    for index in 18..36 {
        let request = request(index, rng.tokens(6, 1_000), 60);
        scenario.arrivals.push(Arrival { at: Millis(2_000), request, salt: 0, client: Client::Waits });
    }
    let report = run_named(&scenario, Options::default());
    all_end_well(&report, 36);
    let steps = |report: &Report| report.lane_stats[1].steps;
    assert!(steps(&report) > steps(&short) + 20, "{} and {}", steps(&report), steps(&short));
    assert_eq!(report.stats.evicted_blocks, 0);
    assert!(short.lane_stats[1].blocks_cached > 20, "{:?}", short.lane_stats);
}

#[test]
fn nobody_escapes_if_all_lanes_are_late() {
    let mut scenario = streams(16, 40).on_lanes(2);
    let calm = run_named(&scenario, Options::default());
    scenario.stalls = (0..2).map(|lane| Stall { lane: LaneId(lane), at: Millis(20), for_ms: 900 }).collect();
    let report = run_named(&scenario, Options::default());
    assert_eq!((report.stats.escapes, &report.outputs), (0, &calm.outputs));
}

#[test]
fn a_stall_and_a_loss_elsewhere_convict_no_one() {
    let mut scenario = roomy_streams(3);
    let calm = run_named(&scenario, Options::default());
    let mut num_losses_of_suspects = 0;
    for lost_at in 210..290 {
        scenario.stalls = vec![Stall { lane: LaneId(1), at: Millis(60), for_ms: 600 }];
        scenario.outages.clear();
        outage(&mut scenario, lost_at as u32 % 2 * 2, lost_at, 10);
        let report = run_named(&scenario, Options::default());
        assert_eq!((report.stats.convictions, &report.outputs), (0, &calm.outputs), "{lost_at}");
        num_losses_of_suspects += u64::from(report.longest_pause_ms > 400);
    }
    assert!(num_losses_of_suspects > 4, "{num_losses_of_suspects}");
}

#[test]
fn a_poison_that_hangs_shards_visits_two_lanes_at_most_and_all_others_go_on() {
    let mut scenario = roomy_streams(4);
    let calm = run_named(&scenario, Options::default());
    // The first lane is lost while the second one hangs, or before that.
    for hang_ms in [3_000, 180] {
        for (request, position) in [(0, 40), (3, 60), (7, 150)] {
            (scenario.hang_ms, scenario.poison) = (hang_ms, Some(Poison::Position { request, position }));
            let report = run_named(&scenario, Options::default());
            assert_eq!((report.num_losses, report.stats.convictions), (2, 1), "{:?}", scenario.poison);
            assert_eq!(report.crashed_lanes.len(), 2);
            assert!(report.stats.escapes >= 4, "{:?}", report.stats);
            for (id, reason) in report.ends.iter().filter(|(id, _)| id.0 != request) {
                assert_eq!((reason, &report.outputs[id]), (&calm.ends[id], &calm.outputs[id]));
            }
            assert!(matches!(report.ends[&SequenceId(request)], EndReason::Failed(_)));
        }
    }
}

#[test]
fn a_suspect_waits_for_its_late_step_if_its_second_lane_is_lost_first() {
    let mut scenario = roomy_streams(4);
    (scenario.hang_ms, scenario.poison) = (3_000, Some(Poison::Position { request: 3, position: 60 }));
    let report = run_named(&scenario, Options::default());
    let lost_at = report.ended_ats[&SequenceId(3)].0 - 1_500;
    let crashed_lanes = (0..4).map(|lane| {
        scenario.outages.clear();
        outage(&mut scenario, lane, lost_at, 100);
        let report = run_named(&scenario, Options::default());
        assert_eq!(report.stats.convictions, 1);
        report.crashed_lanes
    });
    // The poison hangs two lanes. If one of them is lost before it crashes, the poison crashes the other one only.
    let mut num_crashed: Vec<usize> = crashed_lanes.map(|lanes| lanes.len()).collect();
    num_crashed.sort_unstable();
    assert_eq!(num_crashed, [1, 1, 2, 2]);
}

#[test]
fn seeds_of_several_lanes_that_failed_once_pass() {
    // Drafts in flight at a loss reach beyond the planned positions. The poison was cleared before it was past them.
    run_of_kind(KIND, &Scenario::random_lanes(11_963), Options::default());
    // A prefix hit cleared the poison on a lane that did not compute the position that crashes.
    run_of_kind(KIND, &Scenario::random_lanes(5_404), Options::default());
    // Two sequences are separated while another lane computes both in one step.
    run_of_kind(KIND, &Scenario::random_lanes(16_950), Options::default());
}
