//! What `trunkline top` shows: panels of lines, the same on a screen and as text.

use std::time::Duration;

use serde::Deserialize;
use unicode_width::UnicodeWidthStr;

use super::metrics::{Samples, quantile, since};
use crate::client::Model;
use crate::style::harmless;
use crate::width;

const UNKNOWN: &str = "-";
const BAR: usize = 20;
const MIB: f64 = 1048576.0;
const FIRST_TOKEN: &str = "trunkline_time_to_first_token_seconds";
const INTER_TOKEN: &str = "trunkline_inter_token_seconds";
const OUTPUT: &str = "trunkline_output_tokens_total";
const PROMPT: &str = "trunkline_prompt_tokens_total";
const HITS: &str = "trunkline_prefix_hit_tokens_total";

/// What a server said at one time.
#[derive(Debug, Clone, Default)]
pub struct Scrape {
    /// Since `trunkline top` began.
    pub at: Duration,
    pub samples: Samples,
    pub models: Vec<Model>,
    pub cache: Option<Cache>,
    /// Why the server does not answer requests, if it does not.
    pub not_ready: Option<String>,
}

/// The answer of `GET /v1/kv`, without fields that are not shown.
#[derive(Debug, Clone, Deserialize)]
pub struct Cache {
    device: Device,
    host: Option<Tier>,
    disk: Option<Tier>,
    object_store: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
struct Device {
    blocks: u64,
    held: u64,
    cached: u64,
    pinned: u64,
}

#[derive(Debug, Clone, Deserialize)]
struct Tier {
    slots: u64,
    blocks: u64,
}

/// A titled list of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panel {
    pub title: &'static str,
    pub lines: Vec<String>,
}

/// All panels, in the order of a page.
#[derive(Debug, Clone)]
pub struct View {
    pub requests: Panel,
    pub latency: Panel,
    pub cache: Panel,
    pub models: Panel,
    pub lanes: Panel,
    pub tenants: Panel,
}

impl View {
    /// Makes the view of a scrape. Rates are those since `recent`, percentiles those since `older`.
    pub fn new(now: &Scrape, recent: &Scrape, older: &Scrape) -> Self {
        Self {
            requests: requests(now, recent),
            latency: latency(now, older),
            cache: cache(now),
            models: models(now),
            lanes: lanes(now, recent),
            tenants: tenants(now, recent),
        }
    }

    pub fn panels(&self) -> [&Panel; 6] {
        [&self.requests, &self.latency, &self.cache, &self.models, &self.lanes, &self.tenants]
    }

    /// Returns the view as text, without panels that have nothing.
    pub fn text(&self) -> String {
        let panels = self.panels().into_iter().filter(|panel| !panel.lines.is_empty());
        let text = |panel: &Panel| {
            let lines = panel.lines.iter().map(|line| format!("  {line}\n"));
            format!("{}\n{}", panel.title, lines.collect::<String>())
        };
        panels.map(text).collect::<Vec<_>>().join("\n")
    }
}

/// Returns the tokens of output a second between two scrapes.
pub fn output_rate(now: &Scrape, before: &Scrape) -> Option<f64> {
    rate(now, before, OUTPUT)
}

/// Returns how much a counter grew in a second; one that has begun again counts from 0.
fn rate(now: &Scrape, before: &Scrape, name: &str) -> Option<f64> {
    let (value, earlier) = (now.samples.sum(name)?, before.samples.sum(name).unwrap_or(0.0));
    per_second(value, earlier, now, before)
}

fn per_second(value: f64, earlier: f64, now: &Scrape, before: &Scrape) -> Option<f64> {
    let seconds = now.at.saturating_sub(before.at).as_secs_f64();
    let grown = if value < earlier { value } else { value - earlier };
    (seconds > 0.0).then(|| grown / seconds)
}

fn requests(now: &Scrape, recent: &Scrape) -> Panel {
    let count =
        |name: &str| now.samples.sum(name).map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string());
    let speed = |name: &str| rate(now, recent, name).map_or_else(|| UNKNOWN.to_owned(), number);
    let hits = match (now.samples.sum(HITS), now.samples.sum(PROMPT)) {
        (Some(hits), Some(prompts)) if prompts > 0.0 => format!("{:.0} %", hits / prompts * 100.0),
        _ => UNKNOWN.to_owned(),
    };
    let lines = vec![
        format!(
            "running {}, queued {}",
            count("trunkline_running_sequences"),
            count("trunkline_queued_sequences")
        ),
        format!("output  {} tokens/s", speed(OUTPUT)),
        format!("prompts {} tokens/s", speed(PROMPT)),
        format!("{hits} of prompts cached"),
    ];
    Panel { title: "Requests", lines }
}

fn latency(now: &Scrape, older: &Scrape) -> Panel {
    let row = |title: &str, name: &str| {
        let buckets = since(&now.samples.buckets(name), &older.samples.buckets(name));
        let cells =
            [0.5, 0.9, 0.99].map(|part| quantile(&buckets, part).map_or(UNKNOWN.to_owned(), milliseconds));
        format!("{title:16}{:>8}{:>8}{:>8}", cells[0], cells[1], cells[2])
    };
    let lines = vec![
        format!("{:16}{:>8}{:>8}{:>8}", "milliseconds", "p50", "p90", "p99"),
        row("first token", FIRST_TOKEN),
        row("between tokens", INTER_TOKEN),
    ];
    Panel { title: "Latency", lines }
}

fn cache(now: &Scrape) -> Panel {
    let mut lines = Vec::new();
    if let Some(cache) = &now.cache {
        let Device { blocks, held, cached, pinned } = cache.device;
        let used = format!("{held} held, {pinned} pinned, {cached} cached, of {blocks} blocks");
        lines.push(format!("device  {}  {used}", bar(&[(held, '█'), (cached, '▒')], blocks)));
        for (name, tier) in [("host", &cache.host), ("disk", &cache.disk)] {
            if let Some(Tier { slots, blocks }) = tier {
                lines.push(format!("{name:8}{}  {blocks} of {slots} blocks", bar(&[(*blocks, '▒')], *slots)));
            }
        }
        if cache.object_store.is_some() {
            let count = |name: &str| now.samples.sum(name).unwrap_or(0.0);
            let (up, down) = (
                count("trunkline_object_uploaded_blocks_total"),
                count("trunkline_object_downloaded_blocks_total"),
            );
            lines.push(format!("object  {up} blocks uploaded, {down} downloaded"));
        }
    } else {
        let ratio = now.samples.sum("trunkline_kv_usage_ratio");
        let ratio = ratio.map(|ratio| format!("device  {:.0} % held", ratio * 100.0));
        lines.extend(ratio);
    }
    Panel { title: "Cache", lines }
}

fn models(now: &Scrape) -> Panel {
    let longest = now.models.iter().map(|model| model.id.width()).max().unwrap_or(0);
    let line = |model: &Model| {
        let (state, memory) = match &model.status {
            Some(status) => {
                let detail = status.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
                let pinned = if status.pinned { ", pinned" } else { "" };
                let memory = match status.memory_bytes {
                    0 => String::new(),
                    bytes => format!(", {:.0} MiB", bytes as f64 / MIB),
                };
                (format!("{}{pinned}{detail}", status.value), memory)
            }
            None if model.parent.is_some() => ("adapter".to_owned(), String::new()),
            None => match &now.not_ready {
                None => ("ready".to_owned(), String::new()),
                Some(reason) => (reason.clone(), String::new()),
            },
        };
        let blanks = " ".repeat(longest.saturating_sub(model.id.width()));
        harmless(&format!("{}{blanks}  {state}{memory}", model.id))
    };
    Panel { title: "Models", lines: now.models.iter().map(line).collect() }
}

fn lanes(now: &Scrape, recent: &Scrape) -> Panel {
    let by = |scrape: &Scrape, name: &str| scrape.samples.by(name, "lane");
    let ready = by(now, "trunkline_lane_ready");
    let (draining, running) =
        (by(now, "trunkline_lane_draining"), by(now, "trunkline_lane_running_sequences"));
    let (held, cached) =
        (by(now, "trunkline_lane_kv_blocks_held"), by(now, "trunkline_lane_kv_blocks_cached"));
    let steps = "trunkline_lane_scheduled_tokens_total";
    let (tokens, earlier) = (by(now, steps), by(recent, steps));
    let mut numbers: Vec<&String> = ready.keys().collect();
    numbers.sort_by_key(|number| number.parse::<u32>().unwrap_or(u32::MAX));
    let line = |number: &String| {
        let of =
            |values: &std::collections::BTreeMap<String, f64>| values.get(number).copied().unwrap_or(0.0);
        let state = match (of(&ready) > 0.0, of(&draining) > 0.0) {
            (_, true) => "drains",
            (true, false) => "serves",
            (false, false) => "away",
        };
        let speed = per_second(of(&tokens), of(&earlier), now, recent).map_or(UNKNOWN.to_owned(), number_of);
        let blocks = format!("{} held, {} cached", of(&held), of(&cached));
        format!("{number:>2} {state:6}  {} running  {speed} tokens/s  {blocks}", of(&running))
    };
    Panel { title: "Lanes", lines: numbers.into_iter().map(line).collect() }
}

fn tenants(now: &Scrape, recent: &Scrape) -> Panel {
    let by = |scrape: &Scrape, name: &str| scrape.samples.by(name, "tenant");
    let (output, earlier) =
        (by(now, "trunkline_tenant_output_tokens_total"), by(recent, "trunkline_tenant_output_tokens_total"));
    let (prompts, cached) =
        (by(now, "trunkline_tenant_prompt_tokens_total"), by(now, "trunkline_tenant_cached_tokens_total"));
    let blocks = by(now, "trunkline_tenant_kv_blocks");
    let mut rows: Vec<(f64, String)> = output
        .iter()
        .map(|(tenant, tokens)| {
            let before = earlier.get(tenant).copied().unwrap_or(0.0);
            let speed = per_second(*tokens, before, now, recent).unwrap_or(0.0);
            let prompt = prompts.get(tenant).copied().unwrap_or(0.0);
            let share = cached.get(tenant).copied().unwrap_or(0.0) / prompt.max(1.0) * 100.0;
            let blocks = blocks.get(tenant).copied().unwrap_or(0.0);
            let name = width::cut(&harmless(tenant), 16);
            let blanks = " ".repeat(16usize.saturating_sub(name.width()));
            (
                speed,
                format!("{name}{blanks} {} tokens/s  {share:.0} % cached  {blocks} blocks", number(speed)),
            )
        })
        .collect();
    rows.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Panel { title: "Tenants", lines: rows.into_iter().map(|(_, line)| line).collect() }
}

/// Draws parts of a whole.
fn bar(parts: &[(u64, char)], whole: u64) -> String {
    let mut text = String::new();
    for (part, mark) in parts {
        let cells = (*part as f64 / whole.max(1) as f64 * BAR as f64).ceil() as usize;
        text.extend(std::iter::repeat_n(*mark, cells.min(BAR - text.chars().count())));
    }
    let rest = BAR - text.chars().count();
    text + &"░".repeat(rest)
}

fn milliseconds(seconds: f64) -> String {
    number(seconds * 1_000.0)
}

fn number_of(value: f64) -> String {
    number(value)
}

/// Returns about three digits of a number.
fn number(value: f64) -> String {
    match value {
        value if value >= 99.95 || value == 0.0 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}
