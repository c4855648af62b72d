//! The results of each workload, and the table that shows them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde::Serialize;

/// The results of one workload.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub streams: usize,
    pub tokens: u64,
    pub tokens_per_s: f64,
    /// The received bytes per token.
    pub event_bytes: f64,
    /// The tokens per read of the client. Above 1, several events left the router in one write.
    pub tokens_per_read: f64,
    pub router_cpu_us_per_token: f64,
    /// The CPU time of mock shard and client.
    pub other_cpu_us_per_token: f64,
    /// The number of cores that other processes kept busy, which makes the times below longer.
    pub foreign_cores: f64,
    /// The time from the shard's token to the client's event.
    pub added: Option<Percentiles>,
    /// The same time in the half second with the lowest p99, in which the machine disturbed the router least.
    pub added_at_best: Option<Percentiles>,
    /// The time from the shard's result until the shard has the next plan.
    pub next_plan: Option<Percentiles>,
    /// The resident memory of the router before the first request.
    pub router_bytes: Option<u64>,
    /// The memory that each waiting stream adds.
    pub idle_stream_bytes: Option<u64>,
}

/// Percentiles of a list of times, in milliseconds.
#[derive(Debug, Serialize)]
pub struct Percentiles {
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl Percentiles {
    /// Computes the percentiles by nearest rank; `None` if the list is empty.
    pub fn of(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let rank = |part: f64| times[(last as f64 * part).round() as usize].as_secs_f64() * 1e3;
        Some(Self { p50_ms: rank(0.5), p99_ms: rank(0.99), max_ms: rank(1.0) })
    }
}

/// The length of the parts of a run whose percentiles are compared.
const WINDOW: Duration = Duration::from_millis(500);
/// Windows with fewer times than this share of the fullest are ignored, because the run began or ended in them.
const MIN_WINDOW_PART: f64 = 0.5;

impl Percentiles {
    /// Computes the percentiles of the window with the lowest p99.
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

/// Formats all rows as a Markdown table.
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
