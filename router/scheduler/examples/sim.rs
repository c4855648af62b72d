//! One simulated run, or many: `cargo run --release -p trunkline-scheduler --example sim -- --seed 42 [--count 1]`,
//! with `--windows 1` of a model whose layers have windows, with `--tenants 1` of several tenants, with
//! `--vectors 1` of requests for vectors.
//! A single run prints every event, update and plan; many print a line each.
#![allow(clippy::print_stdout, clippy::disallowed_methods, missing_docs)]

#[path = "../tests/scheduler/sim/mod.rs"]
mod sim;

use sim::scenario::Scenario;
use sim::{Options, run};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut seed, mut count, mut windows, mut tenants, mut vectors) = (0, 1, 0, 0, 0);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|text| text.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--seed", Some(value)) => seed = value,
            ("--count", Some(value)) => count = value,
            ("--windows", Some(value)) => windows = value,
            ("--tenants", Some(value)) => tenants = value,
            ("--vectors", Some(value)) => vectors = value,
            _ => {
                println!("usage: sim [--seed N] [--count N] [--windows 0|1] [--tenants 0|1] [--vectors 0|1]");
                return;
            }
        }
    }
    for seed in seed..seed + count {
        let scenario = match (windows, tenants) {
            _ if vectors > 0 => Scenario::random_pooled(seed),
            (0, 0) => Scenario::random(seed),
            (0, _) => Scenario::random_tenants(seed),
            _ => Scenario::random_windowed(seed),
        };
        if count == 1 {
            println!("{scenario:#?}");
        }
        let report = run(&scenario, Options { is_verbose: count == 1, ..Options::default() });
        println!(
            "seed {seed}: {} requests of {} tenants, {} tokens, {} computed, {} preemptions, {} events, {} ms, \
             {} steps, trace {:016x}",
            scenario.arrivals.len(),
            scenario.num_tenants(),
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
