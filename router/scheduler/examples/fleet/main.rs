//! Compares ways to spread a trace over several shards, on a simulated clock: `make sim-fleet TRACE=FILE LANES=16`.
//!
//! It reads a trace from stdin, one request a line, and prints a row for each load and policy. A load of 1 is the rate
//! at which the lanes complete the same requests if all of them wait from the beginning.
//!
//! Several numbers of lanes, as in `--lanes 1,2,4`, compare only the policies of `SWEPT`. `--json FILE` also writes the
//! rows there, as a JSON object a line.
//!
//! `--shrink N` makes prompts N times as short, for models with a shorter context than the trace's service has.
//!
//! `--lose N` loses N shards after a third of the requests' time, and gives them back, empty, after `--away` seconds.
//! `--join N` adds N shards after half of it. `--need-p99-ms N` prints instead how many lanes the trace needs at its
//! own pace, so that the first token comes within this time at the 99th percentile.
#![allow(clippy::print_stdout, clippy::disallowed_types, missing_docs)]

mod limits;
mod policy;
mod trace;
mod world;

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::str::FromStr;

use policy::{POLICIES, Policy, SWEPT};
use trace::Traced;
use world::{Absence, Cost, Fleet, Outcomes, run};

const USAGE: &str = "usage: fleet [--lanes N[,N...]] [--requests N] [--shrink N] [--blocks N] \
                     [--loads 0.3,0.6,0.9] [--step-us N] [--row-us N] [--context-us N] [--decode-context-us N] \
                     [--lose N [--away SECONDS] | --join N] [--need-p99-ms N] [--json FILE] < TRACE";
/// The name of the run in which one shard has the cache and the speed of all.
const WHOLE: &str = "one shard as large as all";

/// The most lanes that `--need-p99-ms` tries.
const MAX_LANES: usize = 256;

struct Options {
    /// The fleet, with one shard.
    fleet: Fleet,
    nums_lanes: Vec<usize>,
    num_requests: usize,
    shrink: u32,
    loads: Vec<f64>,
    num_lost: usize,
    away_s: f64,
    num_joining: usize,
    need_p99_ms: Option<f64>,
    json: Option<String>,
}

fn options() -> Option<Options> {
    // An estimate for a model of 8 billion parameters in bfloat16 on a card with 3.3 TB/s.
    let cost = Cost { step_us: 8_000.0, row_us: 45.0, context_us: 0.0004, decode_context_us: 0.04 };
    let mut options = Options {
        fleet: Fleet { num_shards: 1, num_blocks: 2_000, cost },
        nums_lanes: vec![16],
        num_requests: 4_000,
        shrink: 1,
        loads: vec![0.3, 0.6, 0.9, 1.1],
        num_lost: 0,
        away_s: 60.0,
        num_joining: 0,
        need_p99_ms: None,
        json: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next()?;
        let fleet = &mut options.fleet;
        match name.as_str() {
            "--lanes" => options.nums_lanes = list(&value)?,
            "--json" => options.json = Some(value),
            "--requests" => options.num_requests = value.parse().ok()?,
            "--shrink" => options.shrink = value.parse().ok().filter(|shrink| (1..=512).contains(shrink))?,
            "--lose" => options.num_lost = value.parse().ok()?,
            "--away" => options.away_s = value.parse().ok()?,
            "--join" => options.num_joining = value.parse().ok()?,
            "--need-p99-ms" => options.need_p99_ms = Some(value.parse().ok()?),
            "--blocks" => fleet.num_blocks = value.parse().ok()?,
            "--loads" => options.loads = list(&value)?,
            "--step-us" => fleet.cost.step_us = value.parse().ok()?,
            "--row-us" => fleet.cost.row_us = value.parse().ok()?,
            "--context-us" => fleet.cost.context_us = value.parse().ok()?,
            "--decode-context-us" => fleet.cost.decode_context_us = value.parse().ok()?,
            _ => return None,
        }
    }
    let is_fit = options.nums_lanes.iter().all(|&count| count > options.num_lost)
        && (options.num_lost == 0 || options.num_joining == 0);
    is_fit.then_some(options)
}

impl Options {
    /// The shards that are away for a part of the time until the last request.
    fn absence(&self, end_us: f64) -> Option<Absence> {
        if self.num_lost > 0 {
            let from_us = (end_us / 3.0) as u64;
            let until_us = from_us + (self.away_s * 1e6) as u64;
            return Some(Absence { num_shards: self.num_lost, from_us: Some(from_us), until_us });
        }
        let until_us = (end_us / 2.0) as u64;
        let joining = Absence { num_shards: self.num_joining, from_us: None, until_us };
        (self.num_joining > 0).then_some(joining)
    }
}

fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|value| value.parse().ok()).collect()
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    // All lines are read, so that the program that writes them does not fail.
    let lines: Vec<String> = std::io::stdin().lock().lines().map_while(Result::ok).collect();
    let lines = lines.iter().take(options.num_requests);
    let trace: Option<Vec<Traced>> = lines.map(|line| Traced::parse(line, options.shrink)).collect();
    let Some(trace) = trace.filter(|trace| trace.len() > 1) else {
        println!("error: stdin is not a trace with one request a line\n{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(bound_ms) = options.need_p99_ms {
        return show_need(&trace, options.fleet, bound_ms);
    }
    let json = options.json.as_ref().map(File::create).transpose();
    match json.and_then(|json| compare(&trace, &options, json)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: the file of --json cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a row for each number of lanes, load and policy, and writes it to `json`.
fn compare(trace: &[Traced], options: &Options, mut json: Option<File>) -> io::Result<()> {
    println!("{} requests, shards of {} blocks\n", trace.len(), options.fleet.num_blocks);
    println!("| lanes | load | requests/s | policy | completed | hit rate | p50 | p99 | busiest / mean |");
    println!("|--:|--:|--:|---|--:|--:|--:|--:|--:|");
    let policies = if options.nums_lanes.len() > 1 { &SWEPT[..] } else { &POLICIES };
    let span_ms = trace[trace.len() - 1].at_ms.max(1) as f64;
    for &num_shards in &options.nums_lanes {
        let mut fleet = Fleet { num_shards, ..options.fleet };
        let all_at_once = run(trace, &vec![0; trace.len()], fleet, Policy::Lanes, None);
        let capacity = all_at_once.num_completed as f64 / (all_at_once.ended_ms as f64 / 1e3);
        fleet.num_shards += options.num_joining;
        for &load in &options.loads {
            let rate = load * capacity;
            let end_us = trace.len() as f64 / rate * 1e6;
            let at_us: Vec<u64> =
                trace.iter().map(|traced| (traced.at_ms as f64 / span_ms * end_us) as u64).collect();
            let absence = options.absence(end_us);
            let mut row = |policy: &str, outcomes: &Outcomes| {
                let setting = Setting { num_lanes: num_shards, load, rate, policy };
                show(&setting, outcomes, json.as_mut())
            };
            for policy in policies {
                row(policy.name(), &run(trace, &at_us, fleet, *policy, absence))?;
            }
            if absence.is_none() {
                row(WHOLE, &run(trace, &at_us, fleet.whole(), Policy::Lanes, None))?;
            }
        }
    }
    Ok(())
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

/// What a run is asked.
struct Setting<'a> {
    num_lanes: usize,
    load: f64,
    /// Requests a second.
    rate: f64,
    policy: &'a str,
}

fn show(setting: &Setting<'_>, outcomes: &Outcomes, json: Option<&mut File>) -> io::Result<()> {
    let Setting { num_lanes, load, rate, policy } = setting;
    let (completed, hit_rate, balance) = (outcomes.num_completed, outcomes.hit_rate(), outcomes.balance());
    let (p50_s, p99_s) = (outcomes.percentile_s(50), outcomes.percentile_s(99));
    println!(
        "| {num_lanes} | {load} | {rate:.1} | {policy} | {completed} | {:.1} % | {p50_s:.2} s | {p99_s:.2} s | \
         {balance:.2} |",
        100.0 * hit_rate
    );
    let Some(json) = json else { return Ok(()) };
    writeln!(
        json,
        r#"{{"lanes": {num_lanes}, "load": {load}, "policy": "{policy}", "completed": {completed}, "hit_rate": {hit_rate:.4}, "p50_s": {p50_s:.3}, "p99_s": {p99_s:.3}}}"#
    )
}
