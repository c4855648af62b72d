//! Tenants beside each other: nobody is starved, service is by weight, and a flood leaves others their time to the first
//! token. Seeds as in `simulation.rs`.
#![allow(clippy::disallowed_methods, missing_docs)]

#[allow(dead_code)]
mod sim;

use std::panic::{AssertUnwindSafe, catch_unwind};

use sim::driver::{Driver, LIMITS};
use sim::rng::Rng;
use sim::scenario::{Arrival, Scenario, request, salt};
use sim::tenants::{Service, arrival, weights};
use sim::{Options, run};
use trunkline_scheduler::{Event, Millis, Priority, SchedulerConfig, SequenceId, ShardLimits, Update};

fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn every_request_of_every_tenant_ends_once_with_its_own_text() {
    let first = env_number("TRUNKLINE_SEED", 0);
    let (mut fair_preemptions, mut promotions, mut preemptions) = (0, 0, 0);
    for seed in first..first + env_number("TRUNKLINE_SIM_SEEDS", 4_000) {
        let scenario = Scenario::random_tenants(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&scenario, Options::default())));
        let report = outcome.unwrap_or_else(|_| {
            panic!("failed: seed {seed}; hint: run the example `sim -- --tenants 1 --seed {seed}`")
        });
        fair_preemptions += report.stats.fair_preemptions;
        promotions += report.stats.promotions;
        preemptions += report.stats.preemptions;
    }
    let met = [fair_preemptions, promotions, preemptions];
    assert!(met.iter().all(|&count| count > 100), "the runs meet everything often: {met:?}");
}

/// Nearest-rank percentile.
fn percentile(mut values: Vec<u64>, percent: usize) -> u64 {
    values.sort_unstable();
    values[(values.len() * percent).div_ceil(100) - 1]
}

/// Times to the first token of tenant 2.
fn ttft_ms(scenario: &Scenario) -> Vec<u64> {
    let report = run(scenario, Options::default());
    let own = scenario.arrivals.iter().filter(|arrival| arrival.salt == 2);
    own.map(|arrival| report.first_token_at[&arrival.request.id].since(arrival.at)).collect()
}

/// Chats of tenant 2, one after another, each given the time that it needs.
fn chats(rng: &mut Rng, num_chats: u64) -> Vec<Arrival> {
    let chat = |n: u64| {
        let num_tokens = rng.range(300, 900);
        arrival(rng, Millis(100 + 250 * n), 10_000 + n, 2, num_tokens, 24)
    };
    (0..num_chats).map(chat).collect()
}

/// 200 requests of tenant 1 at once, and then as much as the device can do.
fn flood(rng: &mut Rng, until_ms: u64) -> Vec<Arrival> {
    let later = (0..until_ms / 40).map(|n| 100 + 40 * n);
    let times = std::iter::repeat_n(90, 200).chain(later);
    let asked = times.zip(0..).map(|(at, n)| {
        let (num_tokens, num_new) = (rng.range(20, 600), rng.range_u32(16, 200));
        arrival(rng, Millis(at), n, 1, num_tokens, num_new)
    });
    asked.collect()
}

#[test]
fn a_flood_of_200_leaves_a_second_tenant_its_time_to_the_first_token() {
    const NUM_CHATS: u64 = 120;
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let own = chats(&mut rng, NUM_CHATS);
        let flood = flood(&mut rng, 250 * NUM_CHATS);
        let beside = flood.into_iter().chain(own.iter().cloned()).collect();
        let alone = ttft_ms(&Scenario::of_tenants(seed, &[1, 1], own));
        let beside = ttft_ms(&Scenario::of_tenants(seed, &[1, 1], beside));
        let p99 = (percentile(alone, 99), percentile(beside, 99));
        println!("{seed} {p99:?}");
        assert!(2 * p99.1 <= 3 * p99.0, "seed {seed}: p99 in ms alone and beside: {p99:?}");
    }
}
