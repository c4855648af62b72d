//! Compares ways to spread a trace over several shards, on a simulated clock: `make sim-fleet TRACE=FILE LANES=16`.
//!
//! It reads a trace from stdin, one request a line, and prints a table for each load. A load of 1 is the rate at which
//! the lanes complete the same requests if all of them wait from the beginning.
#![allow(clippy::print_stdout, clippy::disallowed_types, missing_docs)]

mod policy;
mod trace;
mod world;

use std::io::BufRead;
use std::process::ExitCode;

use policy::{POLICIES, Policy};
use trace::Traced;
use world::{Cost, Fleet, Outcomes, run};

const USAGE: &str = "usage: fleet [--lanes N] [--requests N] [--blocks N] [--loads 0.3,0.6,0.9] [--step-us N] [--row-us N] \
                     [--context-us N] [--decode-context-us N] < TRACE";

struct Options {
    fleet: Fleet,
    num_requests: usize,
    loads: Vec<f64>,
}

fn options() -> Option<Options> {
    // An estimate for a model of 8 billion parameters in bfloat16 on a card with 3.3 TB/s.
    let cost = Cost { step_us: 8_000.0, row_us: 45.0, context_us: 0.0004, decode_context_us: 0.04 };
    let mut options = Options {
        fleet: Fleet { num_shards: 16, num_blocks: 2_000, cost },
        num_requests: 4_000,
        loads: vec![0.3, 0.6, 0.9, 1.1],
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        let fleet = &mut options.fleet;
        match name.as_str() {
            "--lanes" => fleet.num_shards = value.parse().ok().filter(|&count| count > 0)?,
            "--requests" => options.num_requests = value.parse().ok()?,
            "--blocks" => fleet.num_blocks = value.parse().ok()?,
            "--loads" => {
                options.loads = value.split(',').map(|load| load.parse().ok()).collect::<Option<_>>()?
            }
            "--step-us" => fleet.cost.step_us = value.parse().ok()?,
            "--row-us" => fleet.cost.row_us = value.parse().ok()?,
            "--context-us" => fleet.cost.context_us = value.parse().ok()?,
            "--decode-context-us" => fleet.cost.decode_context_us = value.parse().ok()?,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    let lines = std::io::stdin().lock().lines().map_while(Result::ok).take(options.num_requests);
    let trace: Option<Vec<Traced>> = lines.map(|line| Traced::parse(&line)).collect();
    let Some(trace) = trace.filter(|trace| trace.len() > 1) else {
        println!("error: stdin is not a trace with one request a line\n{USAGE}");
        return ExitCode::from(2);
    };
    let fleet = options.fleet;
    let all_at_once = run(&trace, &vec![0; trace.len()], fleet, Policy::Lanes);
    let capacity = all_at_once.num_completed as f64 / (all_at_once.ended_ms as f64 / 1e3);
    println!(
        "{} requests, {} shards of {} blocks, which complete {capacity:.1} requests a second at most\n",
        trace.len(),
        fleet.num_shards,
        fleet.num_blocks
    );
    let span_ms = trace[trace.len() - 1].at_ms.max(1) as f64;
    for &load in &options.loads {
        let seconds = trace.len() as f64 / (load * capacity);
        let at_us: Vec<u64> =
            trace.iter().map(|traced| (traced.at_ms as f64 / span_ms * seconds * 1e6) as u64).collect();
        println!("load {load}\n");
        println!("| policy | completed | hit rate | first token p50 | p99 | busiest shard / mean |");
        println!("|---|--:|--:|--:|--:|--:|");
        for policy in POLICIES {
            row(policy.name(), &run(&trace, &at_us, fleet, policy));
        }
        // The cache of all shards in one place.
        let whole = Fleet {
            num_shards: 1,
            num_blocks: fleet.num_blocks * fleet.num_shards as u32,
            cost: divided(fleet.cost, fleet.num_shards as f64),
        };
        row("one shard as large as all", &run(&trace, &at_us, whole, Policy::Lanes));
        println!();
    }
    ExitCode::SUCCESS
}

/// A shard that is so many times as quick.
fn divided(cost: Cost, times: f64) -> Cost {
    Cost {
        step_us: cost.step_us / times,
        row_us: cost.row_us / times,
        context_us: cost.context_us / times,
        decode_context_us: cost.decode_context_us / times,
    }
}

fn row(name: &str, outcomes: &Outcomes) {
    println!(
        "| {name} | {} | {:.1} % | {:.2} s | {:.2} s | {:.2} |",
        outcomes.num_completed,
        100.0 * outcomes.hit_rate(),
        outcomes.percentile_s(50),
        outcomes.percentile_s(99),
        outcomes.balance()
    );
}
