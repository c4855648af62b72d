//! The numbers of a workload, and the table of all.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::Serialize;

/// What one workload gave.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub streams: usize,
    pub tokens: u64,
    pub tokens_per_s: f64,
    /// Bytes on the wire per token.
    pub event_bytes: f64,
    /// How many tokens a client's read brought: writes coalesce when it is above 1.
    pub tokens_per_read: f64,
    pub router_cpu_us_per_token: f64,
    /// Mock shard and client.
    pub other_cpu_us_per_token: f64,
    /// Cores that all other processes of the machine kept busy meanwhile: what the times below suffer from.
    pub foreign_cores: f64,
    /// From the shard's token to the client's event.
    pub added: Option<Percentiles>,
    /// The same in the half second with the lowest p99: what the router does when the machine lets it.
    pub added_at_best: Option<Percentiles>,
    /// From the shard's result to the next plan in the shard.
    pub next_plan: Option<Percentiles>,
    /// Resident memory of the router before the first request.
    pub router_bytes: Option<u64>,
    /// What a stream adds to it while it waits.
    pub idle_stream_bytes: Option<u64>,
}

/// Of a list of times, in milliseconds.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Percentiles {
    /// Nearest rank; none of an empty list.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let rank = |part: f64| times[(last as f64 * part).round() as usize].as_secs_f64() * 1e3;
        Some(Self { p50_ms: rank(0.5), p99_ms: rank(0.99), max_ms: rank(1.0) })
    }
}

/// A part of a run that is looked at by itself.
const WINDOW: Duration = Duration::from_millis(500);
/// Windows with less than this part of the fullest one are its cut ends.
const MIN_WINDOW_PART: f64 = 0.5;

impl Percentiles {
    /// Of the window with the lowest p99.
    pub fn of_best_window(times: &[(Instant, Duration)]) -> Option<Self> {
        let begin = times.iter().map(|(at, _)| *at).min()?;
        let mut windows: BTreeMap<u128, Vec<Duration>> = BTreeMap::new();
        for (at, time) in times {
            windows.entry((*at - begin).as_millis() / WINDOW.as_millis()).or_default().push(*time);
        }
        let fullest = windows.values().map(Vec::len).max()? as f64;
        windows
            .into_values()
            .filter(|window| window.len() as f64 >= fullest * MIN_WINDOW_PART)
            .filter_map(Self::of)
            .min_by(|a, b| a.p99_ms.total_cmp(&b.p99_ms))
    }
}

/// All rows as Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| workload | streams | tokens/s | bytes/token | tokens/read | router CPU µs/token | shard + client CPU | \
         foreign cores | added p50 / p99 / max ms | in the best half second | result to next plan p50 / p99 ms | \
         router MiB | KiB per idle stream |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let three = |at: &Percentiles| format!("{:.2} / {:.2} / {:.2}", at.p50_ms, at.p99_ms, at.max_ms);
        let added = row.added.as_ref().map(three);
        let at_best = row.added_at_best.as_ref().map(three);
        let plan = row.next_plan.as_ref().map(|at| format!("{:.2} / {:.2}", at.p50_ms, at.p99_ms));
        let mib = row.router_bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 20)));
        let kib = row.idle_stream_bytes.map(|bytes| format!("{:.1}", bytes as f64 / 1024.0));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} | {:.0} | {:.1} | {:.2} | {:.2} | {:.1} | {} | {} | {} | {} | {} |",
            row.name,
            row.streams,
            row.tokens_per_s,
            row.event_bytes,
            row.tokens_per_read,
            row.router_cpu_us_per_token,
            row.other_cpu_us_per_token,
            row.foreign_cores,
            added.unwrap_or_default(),
            at_best.unwrap_or_default(),
            plan.unwrap_or_default(),
            mib.unwrap_or_default(),
            kib.unwrap_or_default(),
        );
    }
    out
}
