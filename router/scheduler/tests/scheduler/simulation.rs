//! Simulated runs, each from its seed. `TRUNKLINE_SEED` is the first seed, and `TRUNKLINE_SIM_SEEDS` their number.
//! To print one run: `cargo run --release -p trunkline-scheduler --example sim -- --seed 42`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::draw;
use crate::sim::driver::LIMITS;
use crate::sim::scenario::{Arrival, Client, Outage, Poison, Scenario, request};
use crate::sim::shard::ShardFaults;
use crate::sim::store::StorePlan;
use crate::sim::{Blow, Options, Report, run};
use trunkline_scheduler::{
    EndReason, LaneId, Millis, RejectReason, SchedulerConfig, SequenceErrorCode, SequenceId, ShardLimits,
    Stats,
};

/// Returns the seeds of this test run; see `draw`.
pub fn seeds() -> Range<u64> {
    let first = draw::first_seed();
    first..first + draw::count("TRUNKLINE_SIM_SEEDS", 600, 10_000)
}

/// Returns a counter of a run.
pub type Count = fn(&Stats) -> u64;

pub fn run_named(scenario: &Scenario, options: Options) -> Report {
    run_of_kind("", scenario, options)
}

pub fn run_of_kind(kind: &str, scenario: &Scenario, options: Options) -> Report {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(scenario, options)));
    let (seed, blow) = (scenario.seed, options.blow);
    outcome.unwrap_or_else(|_| {
        panic!("failed: seed {seed} with {blow:?}; hint: run the example `sim -- {kind}--seed {seed}`")
    })
}

/// Runs a kind of scenario with all seeds. Each thing that is counted happens in one of `one_in` runs on average.
pub fn run_all(
    kind: &str,
    random: fn(u64) -> Scenario,
    one_in: u64,
    counts: &[Count],
    mut check: impl FnMut(&Report),
) {
    let (seeds, mut met) = (seeds(), vec![0; counts.len()]);
    for seed in seeds.clone() {
        let report = run_of_kind(kind, &random(seed), Options::default());
        check(&report);
        met.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count(&report.stats));
    }
    let is_often = |&count: &u64| count * one_in >= seeds.end - seeds.start;
    assert!(met.iter().all(is_often), "the runs meet everything, often: {met:?}");
}

#[test]
fn every_request_ends_once_with_its_own_text_whatever_happens() {
    let mut reasons = BTreeSet::new();
    let counts: [Count; 21] = [
        |stats| stats.preemptions,
        |stats| stats.evicted_blocks,
        |stats| stats.prefix_waits,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.rejected_queue_full,
        |stats| stats.rejected_too_long,
        |stats| stats.rejected_deadline,
        |stats| stats.rejected_shard_away,
        |stats| stats.rejected_invalid,
        |stats| stats.replays,
        |stats| stats.convictions,
        |stats| stats.excused_losses,
        |stats| stats.stored_blocks,
        |stats| stats.store_failures,
        |stats| stats.store_evicted_blocks,
        |stats| stats.restored_blocks,
        |stats| stats.restore_failures,
        |stats| stats.restores_given_up,
        |stats| stats.accepted_draft_tokens,
        |stats| stats.drafted_tokens - stats.accepted_draft_tokens,
        |stats| stats.unexpected_results,
    ];
    run_all("", Scenario::random, 200, &counts, |report| {
        reasons.extend(report.ends.values().map(|reason| match reason {
            EndReason::Failed(error) => format!("Failed({:?})", error.code),
            reason => format!("{reason:?}"),
        }));
    });
    let all = "Aborted DeadlineExceeded EndToken Failed(AdapterFailed) Failed(CrashedShard) Failed(InvalidResult) Failed(NotFinite) \
               Finished Length ShardLost";
    assert_eq!(Vec::from_iter(reasons).join(" "), all, "the runs meet every end");
}

#[test]
fn vectors_are_those_of_their_prompts_beside_requests_that_generate() {
    let counts: [Count; 5] = [
        |stats| stats.preemptions,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.replays,
        |stats| stats.restored_blocks,
        |stats| stats.accepted_draft_tokens,
    ];
    run_all("--kind vectors ", Scenario::random_pooled, 200, &counts, |_| {});
}

#[test]
fn every_request_ends_once_with_its_own_text_where_requests_have_adapters() {
    let counts: [Count; 9] = [
        |stats| stats.preemptions,
        |stats| stats.prefix_waits,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.replays,
        |stats| stats.restored_blocks,
        |stats| stats.adapter_loads,
        |stats| stats.adapter_load_failures,
        |stats| stats.adapter_evictions,
        |stats| stats.adapter_waits,
    ];
    run_all("--kind adapters ", Scenario::random_adapters, 200, &counts, |_| {});
}

#[test]
fn every_request_ends_once_with_its_own_text_where_lanes_have_adapters() {
    let counts: [Count; 7] = [
        |stats| stats.moves,
        |stats| stats.escapes,
        |stats| stats.hand_overs,
        |stats| stats.adapter_load_failures,
        |stats| stats.adapter_evictions,
        |stats| stats.adapter_waits,
        |stats| stats.rejected_no_adapters,
    ];
    run_all("--kind adapter-lanes ", Scenario::random_adapter_lanes, 200, &counts, |_| {});
}

/// Nobody needs a window part or a state when all have ended.
fn needs_no_parts(report: &Report) {
    assert_eq!(report.stats.window_parts_needed, 0);
}

#[test]
fn every_request_ends_once_with_its_own_text_where_layers_have_windows() {
    let counts: [Count; 11] = [
        |stats| stats.preemptions,
        |stats| stats.evicted_blocks,
        |stats| stats.prefix_waits,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.dropped_window_parts,
        |stats| stats.accepted_draft_tokens,
        |stats| stats.stored_blocks,
        |stats| stats.store_failures,
        |stats| stats.restored_blocks,
        |stats| stats.restore_failures,
        |stats| stats.restores_given_up,
    ];
    run_all("--kind windows ", Scenario::random_windowed, 200, &counts, needs_no_parts);
}

#[test]
fn every_request_ends_once_with_its_own_text_where_layers_are_recurrent() {
    let counts: [Count; 6] = [
        |stats| stats.preemptions,
        |stats| stats.evicted_blocks,
        |stats| stats.prefix_waits,
        |stats| stats.prefix_hit_tokens,
        |stats| stats.dropped_window_parts,
        |stats| stats.replays,
    ];
    run_all("--kind recurrent ", Scenario::random_recurrent, 200, &counts, needs_no_parts);
}

#[test]
fn seeds_that_failed_once_pass() {
    // A sequence that lacks blocks leaves the step to the others. With one token a step and two tenants that were
    // served the same, the share went to the sequence that had to wait for blocks. The other one could have used it,
    // but waited forever.
    run_named(&Scenario::random(45_307), Options::default());
    // A prompt that is computed whole leaves the rest of the step to the others. The first prompt took more than its
    // share of the step, and the next one its own share as well.
    run_named(&Scenario::random_pooled(2_193_244_944), Options::default());
    // A prompt that is computed whole gets nothing once it is preempted.
    run_named(&Scenario::random_pooled(1_721_710_452), Options::default());
    // A suspect that waits for a restore is not convicted for the one before it. The poison had been cleared up to
    // where the first shard was lost, and its next step crashed the second one.
    run_named(&Scenario::random_windowed(3_599_326_037), Options::default());
}

#[test]
fn a_seed_replays_bit_for_bit() {
    let first = draw::first_seed();
    let mut hashes = BTreeSet::new();
    for seed in first..first + 100 {
        let scenario = Scenario::random(seed);
        let (one, two) = (run_named(&scenario, Options::default()), run_named(&scenario, Options::default()));
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed}");
        hashes.insert(one.trace_hash);
    }
    assert!(hashes.len() > 95, "seeds differ");
}

/// Six conversations with common beginnings in a pool that does not hold them all.
pub fn crowded() -> Scenario {
    let common: Vec<u32> = (0..11).map(|index| index % 3).collect();
    let arrival = |index: u64| {
        let mut token_ids = common.clone();
        token_ids.extend((0..index as u32).map(|token| token % 2));
        let at = Millis(index / 2);
        Arrival { at, request: request(index, token_ids, 9), salt: 0, client: Client::Waits }
    };
    Scenario {
        seed: 7,
        config: SchedulerConfig { max_prefill_tokens_beside_decodes: 4, ..SchedulerConfig::default() },
        limits: ShardLimits {
            block_size: 3,
            num_blocks: 14,
            max_step_tokens: 8,
            max_step_sequences: 4,
            vocab_size: 4,
            ..LIMITS
        },
        more_lanes: Vec::new(),
        faults: ShardFaults::default(),
        arrivals: (0..6).map(arrival).collect(),
        outages: Vec::new(),
        drains: Vec::new(),
        stalls: Vec::new(),
        poison: None,
        hang_ms: 0,
        max_delay_ms: 2,
        twice: 0,
        store: None,
        load_ms: None,
    }
}

#[test]
fn a_blow_at_any_point_loses_nothing() {
    let scenario = crowded();
    let calm = run_named(&scenario, Options::default());
    assert!(
        calm.stats.preemptions > 0 && calm.stats.prefix_waits > 0,
        "the run is a busy one: {:?}",
        calm.stats
    );
    assert!(calm.ends.values().all(|reason| *reason == EndReason::Length));
    let mut num_struck = 0;
    for at in 0..calm.num_events {
        let ids = (0..6).map(SequenceId);
        let blows =
            ids.flat_map(|id| [Blow::Abort(id), Blow::Finish(id)]).chain([Blow::LoseShard(LaneId::FIRST)]);
        for blow in blows {
            let struck = run_named(&scenario, Options { blow: Some((at, blow)), ..Options::default() });
            num_struck += usize::from(struck.ends != calm.ends);
            for (id, output) in &struck.outputs {
                assert!(calm.outputs[id].starts_with(output), "{blow:?} before event {at}: text of {}", id.0);
                let is_struck = match blow {
                    Blow::Abort(other) | Blow::Finish(other) => other == *id,
                    Blow::LoseShard(_) => false,
                };
                assert!(
                    is_struck || calm.outputs[id] == *output,
                    "{blow:?} before event {at} hits nobody else"
                );
            }
        }
    }
    assert!(num_struck > calm.num_events * 4, "most blows hit somebody: {num_struck}");
}

#[test]
fn every_stream_survives_a_lost_shard() {
    let mut scenario = crowded();
    let calm = run_named(&scenario, Options::default());
    let limits = scenario.limits;
    scenario.outages.push(Outage::new(Millis(6), 10, limits));
    let report = run_named(&scenario, Options::default());
    assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends));
    assert!(report.stats.replays > 1, "several had started: {:?}", report.stats);
}

#[test]
fn two_losses_in_a_row_fail_at_most_the_sequence_that_ran_alone() {
    let mut scenario = crowded();
    let calm = run_named(&scenario, Options::default());
    let (limits, mut num_convictions) = (scenario.limits, 0);
    for at in 1..calm.ended_at.0 {
        for gap in 0..8 {
            let outage = |at| Outage::new(Millis(at), 2, limits);
            scenario.outages = vec![outage(at), outage(at + 2 + gap)];
            let report = run_named(&scenario, Options::default());
            assert!(report.stats.convictions <= 1, "{:?}", scenario.outages);
            num_convictions += report.stats.convictions;
            for (id, reason) in &report.ends {
                // A sequence that ran alone at the second loss looks like a poison.
                let is_convicted = matches!(reason, EndReason::Failed(_));
                let is_same = (reason, &report.outputs[id]) == (&calm.ends[id], &calm.outputs[id]);
                assert!(is_same || is_convicted, "{:?}: {reason:?}", scenario.outages);
            }
        }
    }
    assert!(num_convictions > 0, "some sequences run alone");
}

#[test]
fn a_full_store_and_a_lost_one_change_no_text() {
    let mut scenario = crowded();
    let calm = run_named(&scenario, Options::default());
    let whole = StorePlan { num_slots: 60, ..StorePlan::default() };
    let (from, limits) = (Millis(3), scenario.limits);
    for (name, plan) in [
        ("full for a while", StorePlan { full: Some((from, Millis(9))), ..whole }),
        ("slow", StorePlan { max_delay_ms: 40, hung_read: 2, ..whole }),
        ("lost", StorePlan { lost_at: Some(Millis(12)), ..whole }),
    ] {
        let (mut num_failures, mut num_restored) = (0, 0);
        // After a loss, blocks are read from the store.
        for at in 4..calm.ended_at.0 {
            (scenario.store, scenario.outages) = (Some(plan), vec![Outage::new(Millis(at), 2, limits)]);
            let report = run_named(&scenario, Options::default());
            assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends), "{name}, loss at {at}");
            num_failures += report.stats.store_failures;
            num_restored += report.stats.restored_blocks;
            let again = run_named(&scenario, Options::default());
            assert_eq!(report.trace_hash, again.trace_hash, "{name}, loss at {at}: it replays");
        }
        assert_eq!(num_failures > 0, name != "slow", "{name}: {num_failures}");
        assert!(num_restored > 0, "{name}");
    }
}

#[test]
fn a_poison_fails_by_itself_and_all_others_go_on() {
    let mut scenario = crowded();
    let calm = run_named(&scenario, Options::default());
    for request in 0..6 {
        // Other requests share no position of the output, so each request computes these itself.
        let num_prompt_tokens = 11 + request as u32;
        for position in num_prompt_tokens..num_prompt_tokens + 8 {
            scenario.poison = Some(Poison::Position { request, position });
            let report = run_named(&scenario, Options::default());
            assert_eq!(report.stats.convictions, 1, "{:?}", scenario.poison);
            assert_eq!(report.stats.excused_losses, report.num_losses, "{:?}", scenario.poison);
            for (id, reason) in &report.ends {
                if id.0 == request {
                    let EndReason::Failed(error) = reason else {
                        panic!("{:?}: {reason:?}", scenario.poison)
                    };
                    assert_eq!(error.code, SequenceErrorCode::CrashedShard);
                } else {
                    assert_eq!((reason, &report.outputs[id]), (&calm.ends[id], &calm.outputs[id]));
                }
            }
        }
    }
}

#[test]
fn two_requests_that_crash_only_together_are_separated() {
    let mut scenario = crowded();
    (scenario.limits.num_blocks, scenario.limits.max_step_sequences) = (400, 16);
    scenario.limits.max_step_tokens = 64;
    let arrival = |index: u64| {
        let request = request(index, vec![index as u32 % 3, 1, 2], 40);
        Arrival { at: Millis(index / 4), request, salt: 0, client: Client::Waits }
    };
    scenario.arrivals = (0..12).map(arrival).collect();
    let calm = run_named(&scenario, Options::default());
    let mut num_losses = BTreeSet::new();
    for one in 0..12 {
        for other in one + 1..12 {
            scenario.poison = Some(Poison::Pair(one, other));
            let report = run_named(&scenario, Options::default());
            assert_eq!((&report.outputs, &report.ends), (&calm.outputs, &calm.ends), "{one} and {other}");
            assert_eq!(report.stats.excused_losses, report.num_losses, "{one} and {other}");
            num_losses.insert(report.num_losses);
        }
    }
    assert_eq!(num_losses, [2, 3].into(), "those that come into one of four cells are separated again");
}

#[test]
fn sequences_end_if_no_shard_comes_back_in_time() {
    let mut scenario = crowded();
    scenario.config.max_running_sequences = 1;
    scenario.config.shard_patience_ms = 5;
    let limits = scenario.limits;
    scenario.outages.push(Outage::new(Millis(2), 10, limits));
    let report = run_named(&scenario, Options::default());
    assert!(report.ends.values().all(|reason| *reason == EndReason::ShardLost), "{:?}", report.ends);
    assert!(!report.ends.is_empty() && report.ends.len() + report.rejections.len() == 6);
    assert!(report.rejections.values().all(|reason| *reason == RejectReason::ShardAway));
}
