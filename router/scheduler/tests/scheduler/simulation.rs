//! Simulated runs, each from its seed. `TRUNKLINE_SEED` is the first seed, and `TRUNKLINE_SIM_SEEDS` their number.
//! To print one run: `cargo run --release -p trunkline-scheduler --example sim -- --seed 42`.
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::draw;
use crate::sim::scenario::{Arrival, Client, Outage, Poison, Scenario, request};
use crate::sim::shard::ShardFaults;
use crate::sim::store::StorePlan;
use crate::sim::{Blow, Options, Report, run};
use trunkline_scheduler::{
    EndReason, Millis, RejectReason, SchedulerConfig, SequenceErrorCode, SequenceId, ShardLimits, Stats,
};

/// Returns the seeds of this test run; see `draw`.
pub fn seeds() -> Range<u64> {
    let first = draw::first_seed();
    first..first + draw::count("TRUNKLINE_SIM_SEEDS", 600, 10_000)
}

/// Returns true if something happened in at least one of 200 runs on average.
fn is_often(count: u64, seeds: &Range<u64>) -> bool {
    count * 200 >= seeds.end - seeds.start
}

fn run_named(scenario: &Scenario, options: Options) -> Report {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(scenario, options)));
    outcome.unwrap_or_else(|_| {
        panic!(
            "failed: seed {} with {:?}; hint: run the example `sim -- --seed {0}`",
            scenario.seed, options.blow
        )
    })
}

fn add(total: &mut Stats, stats: &Stats) {
    total.preemptions += stats.preemptions;
    total.evicted_blocks += stats.evicted_blocks;
    total.dropped_window_parts += stats.dropped_window_parts;
    total.prefix_waits += stats.prefix_waits;
    total.prefix_hit_tokens += stats.prefix_hit_tokens;
    total.rejected_queue_full += stats.rejected_queue_full;
    total.rejected_too_long += stats.rejected_too_long;
    total.rejected_deadline += stats.rejected_deadline;
    total.rejected_shard_away += stats.rejected_shard_away;
    total.rejected_invalid += stats.rejected_invalid;
    total.replays += stats.replays;
    total.convictions += stats.convictions;
    total.excused_losses += stats.excused_losses;
    total.stored_blocks += stats.stored_blocks;
    total.store_failures += stats.store_failures;
    total.store_evicted_blocks += stats.store_evicted_blocks;
    total.restored_blocks += stats.restored_blocks;
    total.restore_failures += stats.restore_failures;
    total.restores_given_up += stats.restores_given_up;
    total.drafted_tokens += stats.drafted_tokens;
    total.accepted_draft_tokens += stats.accepted_draft_tokens;
    total.unexpected_results += stats.unexpected_results;
}

#[test]
fn every_request_ends_once_with_its_own_text_whatever_happens() {
    let (seeds, mut total) = (seeds(), Stats::default());
    let mut reasons = BTreeSet::new();
    for seed in seeds.clone() {
        let report = run_named(&Scenario::random(seed), Options::default());
        add(&mut total, &report.stats);
        reasons.extend(report.ends.values().map(|reason| match reason {
            EndReason::Failed(error) => format!("Failed({:?})", error.code),
            reason => format!("{reason:?}"),
        }));
    }
    let all = [
        "Aborted",
        "DeadlineExceeded",
        "EndToken",
        "Failed(CrashedShard)",
        "Failed(InvalidResult)",
        "Failed(NotFinite)",
        "Finished",
        "Length",
        "ShardLost",
    ];
    assert_eq!(reasons.iter().map(String::as_str).collect::<Vec<_>>(), all, "the runs meet every end");
    let met = [
        total.preemptions,
        total.evicted_blocks,
        total.prefix_waits,
        total.prefix_hit_tokens,
        total.rejected_queue_full,
        total.rejected_too_long,
        total.rejected_deadline,
        total.rejected_shard_away,
        total.rejected_invalid,
        total.replays,
        total.convictions,
        total.excused_losses,
        total.stored_blocks,
        total.store_failures,
        total.store_evicted_blocks,
        total.restored_blocks,
        total.restore_failures,
        total.restores_given_up,
        total.accepted_draft_tokens,
        total.drafted_tokens.saturating_sub(2 * total.accepted_draft_tokens),
        total.unexpected_results,
    ];
    assert!(met.iter().all(|&count| is_often(count, &seeds)), "and every other thing, often: {total:?}");
}

#[test]
fn vectors_are_those_of_their_prompts_beside_requests_that_generate() {
    let (seeds, mut total) = (seeds(), Stats::default());
    for seed in seeds.clone() {
        let scenario = Scenario::random_pooled(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&scenario, Options::default())));
        let report = outcome.unwrap_or_else(|_| {
            panic!("failed: seed {seed}; hint: run the example `sim -- --kind vectors --seed {seed}`")
        });
        add(&mut total, &report.stats);
    }
    let met = [
        total.preemptions,
        total.prefix_hit_tokens,
        total.replays,
        total.restored_blocks,
        total.accepted_draft_tokens,
    ];
    assert!(met.iter().all(|&count| is_often(count, &seeds)), "{total:?}");
}

#[test]
fn every_request_ends_once_with_its_own_text_where_layers_have_windows() {
    let (seeds, mut total) = (seeds(), Stats::default());
    for seed in seeds.clone() {
        let scenario = Scenario::random_windowed(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&scenario, Options::default())));
        let report = outcome.unwrap_or_else(|_| {
            panic!("failed: seed {seed}; hint: run the example `sim -- --kind windows --seed {seed}`")
        });
        add(&mut total, &report.stats);
        assert_eq!(
            report.stats.window_parts_needed, 0,
            "seed {seed}: nobody needs a part when all have ended"
        );
    }
    let met = [
        total.preemptions,
        total.evicted_blocks,
        total.prefix_waits,
        total.prefix_hit_tokens,
        total.dropped_window_parts,
        total.accepted_draft_tokens,
        total.stored_blocks,
        total.store_failures,
        total.restored_blocks,
        total.restore_failures,
        total.restores_given_up,
    ];
    assert!(met.iter().all(|&count| is_often(count, &seeds)), "the runs lack parts and blocks: {total:?}");
}

#[test]
fn every_request_ends_once_with_its_own_text_where_layers_are_recurrent() {
    let (seeds, mut total) = (seeds(), Stats::default());
    for seed in seeds.clone() {
        let scenario = Scenario::random_recurrent(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&scenario, Options::default())));
        let report = outcome.unwrap_or_else(|_| {
            panic!("failed: seed {seed}; hint: run the example `sim -- --kind recurrent --seed {seed}`")
        });
        add(&mut total, &report.stats);
        assert_eq!(report.stats.window_parts_needed, 0, "seed {seed}: nobody needs a state in the end");
    }
    let met = [
        total.preemptions,
        total.evicted_blocks,
        total.prefix_waits,
        total.prefix_hit_tokens,
        total.dropped_window_parts,
        total.replays,
    ];
    assert!(met.iter().all(|&count| is_often(count, &seeds)), "the runs lack states and blocks: {total:?}");
}

#[test]
fn a_sequence_that_lacks_blocks_leaves_the_step_to_the_others() {
    // With one token a step and two tenants that were served the same, the share went to the sequence that had to wait
    // for blocks. The other one could have used it, but waited forever.
    run_named(&Scenario::random(45_307), Options::default());
}

#[test]
fn a_prompt_that_is_computed_whole_leaves_the_rest_of_the_step_to_the_others() {
    // The first prompt took more than its share of the step, and the next one its own share as well.
    run_named(&Scenario::random_pooled(2_193_244_944), Options::default());
}

#[test]
fn a_prompt_that_is_computed_whole_gets_nothing_once_it_is_preempted() {
    run_named(&Scenario::random_pooled(1_721_710_452), Options::default());
}

#[test]
fn a_suspect_that_waits_for_a_restore_is_not_convicted_for_the_one_before_it() {
    // The poison had been cleared up to where the first shard was lost, and its next step crashed the second one.
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
fn crowded() -> Scenario {
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
            vector_size: 0,
            windows: None,
            numerics: 0,
            max_draft_tokens: 0,
            max_own_drafts: 0,
        },
        faults: ShardFaults::default(),
        arrivals: (0..6).map(arrival).collect(),
        outages: Vec::new(),
        poison: None,
        max_delay_ms: 2,
        twice: 0,
        store: None,
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
        let blows = ids.flat_map(|id| [Blow::Abort(id), Blow::Finish(id)]).chain([Blow::LoseShard]);
        for blow in blows {
            let struck = run_named(&scenario, Options { blow: Some((at, blow)), ..Options::default() });
            num_struck += usize::from(struck.ends != calm.ends);
            for (id, output) in &struck.outputs {
                assert!(calm.outputs[id].starts_with(output), "{blow:?} before event {at}: text of {}", id.0);
                let is_struck = match blow {
                    Blow::Abort(other) | Blow::Finish(other) => other == *id,
                    Blow::LoseShard => false,
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
    scenario.outages.push(Outage { at: Millis(6), for_ms: 10, limits });
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
            let outage = |at| Outage { at: Millis(at), for_ms: 2, limits };
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
            (scenario.store, scenario.outages) =
                (Some(plan), vec![Outage { at: Millis(at), for_ms: 2, limits }]);
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
    scenario.outages.push(Outage { at: Millis(2), for_ms: 10, limits });
    let report = run_named(&scenario, Options::default());
    assert!(report.ends.values().all(|reason| *reason == EndReason::ShardLost), "{:?}", report.ends);
    assert!(!report.ends.is_empty() && report.ends.len() + report.rejections.len() == 6);
    assert!(report.rejections.values().all(|reason| *reason == RejectReason::ShardAway));
}
