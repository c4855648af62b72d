//! One simulated run, or many: `cargo run --release -p trunkline-scheduler --example sim -- --seed 42 [--count 1]`,
//! with `--kind windows` of a model whose layers have windows, with `--kind recurrent` of one with recurrent layers,
//! with `--kind tenants` of several tenants, with `--kind vectors` of requests for vectors, with `--kind lanes` of
//! several lanes, and with `--kind adapters` or `--kind adapter-lanes` of requests with adapters.
//! A single run prints every event, update and plan; many print a line each.
#![allow(clippy::print_stdout, clippy::disallowed_methods, missing_docs)]

// The example uses only a part of it.
#[allow(dead_code)]
#[path = "../tests/scheduler/sim/mod.rs"]
mod sim;

use sim::scenario::Scenario;
use sim::{Options, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut seed, mut count, mut random): (u64, u64, fn(u64) -> Scenario) = (0, 1, Scenario::random);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (name.as_str(), value.as_str(), value.parse::<u64>()) {
            ("--seed", _, Ok(value)) => seed = value,
            ("--count", _, Ok(value)) => count = value,
            ("--kind", "windows", _) => random = Scenario::random_windowed,
            ("--kind", "recurrent", _) => random = Scenario::random_recurrent,
            ("--kind", "tenants", _) => random = Scenario::random_tenants,
            ("--kind", "vectors", _) => random = Scenario::random_pooled,
            ("--kind", "lanes", _) => random = Scenario::random_lanes,
            ("--kind", "adapters", _) => random = Scenario::random_adapters,
            ("--kind", "adapter-lanes", _) => random = Scenario::random_adapter_lanes,
            _ => {
                println!(
                    "usage: sim [--seed N] [--count N] \
                     [--kind windows|recurrent|tenants|vectors|lanes|adapters|adapter-lanes]"
                );
                return;
            }
        }
    }
    for seed in seed..seed + count {
        let scenario = random(seed);
        if count == 1 {
            println!("{scenario:#?}");
        }
        let report = run(&scenario, Options { is_verbose: count == 1, ..Options::default() });
        println!(
            "seed {seed}: {} requests of {} tenants on {} lanes, {} tokens, {} computed, {} preemptions, \
             {} events, {} ms, {} steps, trace {:016x}",
            scenario.arrivals.len(),
            scenario.num_tenants(),
            scenario.config.num_lanes,
            scenario.num_tokens(),
            report.stats.scheduled_tokens,
            report.stats.preemptions,
            report.num_events,
            report.ended_at.0,
            report.stats.steps,
            report.trace_hash
        );
        if count == 1 {
            println!("{:#?}", report.stats);
        }
    }
}
