//! Compares ways to spread a trace over several shards, on a simulated clock: `make sim-fleet TRACE=FILE LANES=16`.
//!
//! It reads a trace from stdin, one request a line, and prints a table for each load. A load of 1 is the rate at which
//! the lanes complete the same requests if all of them wait from the beginning.
//!
//! `--lose N` loses N shards after a third of the requests' time, and gives them back, empty, after `--away` seconds.
//! `--join N` adds N shards after half of it. `--need-p99-ms N` prints instead how many lanes the trace needs at its
//! own pace, so that the first token comes within this time at the 99th percentile.
#![allow(clippy::print_stdout, clippy::disallowed_types, missing_docs)]

mod limits;
mod policy;
mod trace;
mod world;

use std::io::BufRead;
use std::process::ExitCode;

use policy::{POLICIES, Policy};
use trace::Traced;
use world::{Absence, Cost, Fleet, Outcomes, run};

const USAGE: &str = "usage: fleet [--lanes N] [--requests N] [--blocks N] [--loads 0.3,0.6,0.9] [--step-us N] [--row-us N] \
                     [--context-us N] [--decode-context-us N] [--lose N [--away SECONDS] | --join N] \
                     [--need-p99-ms N] < TRACE";

/// The most lanes that `--need-p99-ms` tries.
const MAX_LANES: usize = 256;

struct Options {
    fleet: Fleet,
    num_requests: usize,
    loads: Vec<f64>,
    num_lost: usize,
    away_s: f64,
    num_joining: usize,
    need_p99_ms: Option<f64>,
}

fn options() -> Option<Options> {
    // An estimate for a model of 8 billion parameters in bfloat16 on a card with 3.3 TB/s.
    let cost = Cost { step_us: 8_000.0, row_us: 45.0, context_us: 0.0004, decode_context_us: 0.04 };
    let mut options = Options {
        fleet: Fleet { num_shards: 16, num_blocks: 2_000, cost },
        num_requests: 4_000,
        loads: vec![0.3, 0.6, 0.9, 1.1],
        num_lost: 0,
        away_s: 60.0,
        num_joining: 0,
        need_p99_ms: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        let fleet = &mut options.fleet;
        match name.as_str() {
            "--lanes" => fleet.num_shards = value.parse().ok().filter(|&count| count > 0)?,
            "--requests" => options.num_requests = value.parse().ok()?,
            "--lose" => options.num_lost = value.parse().ok()?,
            "--away" => options.away_s = value.parse().ok()?,
            "--join" => options.num_joining = value.parse().ok()?,
            "--need-p99-ms" => options.need_p99_ms = Some(value.parse().ok()?),
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
    let is_fit =
        options.num_lost < options.fleet.num_shards && (options.num_lost == 0 || options.num_joining == 0);
    is_fit.then_some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    // All lines are read, so that the program that writes them does not fail.
    let lines: Vec<String> = std::io::stdin().lock().lines().map_while(Result::ok).collect();
    let lines = lines.iter().take(options.num_requests);
    let trace: Option<Vec<Traced>> = lines.map(|line| Traced::parse(line)).collect();
    let Some(trace) = trace.filter(|trace| trace.len() > 1) else {
        println!("error: stdin is not a trace with one request a line\n{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(bound_ms) = options.need_p99_ms {
        return show_need(&trace, options.fleet, bound_ms);
    }
    let mut fleet = options.fleet;
    let all_at_once = run(&trace, &vec![0; trace.len()], fleet, Policy::Lanes, None);
    let capacity = all_at_once.num_completed as f64 / (all_at_once.ended_ms as f64 / 1e3);
    println!(
        "{} requests, {} shards of {} blocks, which complete {capacity:.1} requests a second at most\n",
        trace.len(),
        fleet.num_shards,
        fleet.num_blocks
    );
    fleet.num_shards += options.num_joining;
    let span_ms = trace[trace.len() - 1].at_ms.max(1) as f64;
    for &load in &options.loads {
        let seconds = trace.len() as f64 / (load * capacity);
        let at_us: Vec<u64> =
            trace.iter().map(|traced| (traced.at_ms as f64 / span_ms * seconds * 1e6) as u64).collect();
        println!("load {load}\n");
        let end_us = seconds * 1e6;
        let absence = if options.num_lost > 0 {
            let from_us = (end_us / 3.0) as u64;
            let until_us = from_us + (options.away_s * 1e6) as u64;
            Some(Absence { num_shards: options.num_lost, from_us: Some(from_us), until_us })
        } else {
            let until_us = (end_us / 2.0) as u64;
            let joining = Absence { num_shards: options.num_joining, from_us: None, until_us };
            (options.num_joining > 0).then_some(joining)
        };
        println!("| policy | completed | hit rate | first token p50 | p99 | busiest shard / mean |");
        println!("|---|--:|--:|--:|--:|--:|");
        for policy in POLICIES {
            row(policy.name(), &run(&trace, &at_us, fleet, policy, absence));
        }
        if absence.is_some() {
            println!();
            continue;
        }
        // The cache of all shards in one place.
        let whole = Fleet {
            num_shards: 1,
            num_blocks: fleet.num_blocks * fleet.num_shards as u32,
            cost: divided(fleet.cost, fleet.num_shards as f64),
        };
        row("one shard as large as all", &run(&trace, &at_us, whole, Policy::Lanes, None));
        println!();
    }
    ExitCode::SUCCESS
}

/// Prints the fewest lanes with which the trace at its own pace has its first tokens in time.
fn show_need(trace: &[Traced], fleet: Fleet, bound_ms: f64) -> ExitCode {
    let at_us: Vec<u64> = trace.iter().map(|traced| traced.at_ms * 1_000).collect();
    let is_enough = |num_shards: usize| {
        let outcomes = run(trace, &at_us, Fleet { num_shards, ..fleet }, Policy::Lanes, None);
        let p99_s = outcomes.percentile_s(99);
        println!("{num_shards} lanes: {} completed, p99 {p99_s:.2} s", outcomes.num_completed);
        outcomes.num_completed == trace.len() && p99_s * 1e3 <= bound_ms
    };
    let mut enough = 1;
    while !is_enough(enough) {
        if enough >= MAX_LANES {
            println!("{MAX_LANES} lanes are not enough for {bound_ms} ms");
            return ExitCode::FAILURE;
        }
        enough *= 2;
    }
    let mut too_few = enough / 2;
    while too_few + 1 < enough {
        let middle = usize::midpoint(too_few, enough);
        if is_enough(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    println!("{enough} lanes are needed");
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
