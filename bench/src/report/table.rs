//! Results as tables on a terminal.

use super::{LoadReport, Report};
use crate::metrics::{Figures, Summary};

/// Stands for a figure that nobody knows.
pub const UNKNOWN: &str = "-";

/// The times of a table, in this order.
pub fn times(figures: &Figures) -> [(&'static str, Option<Summary>); 4] {
    [
        ("TTFT ms", figures.ttft_ms),
        ("TPOT ms", figures.tpot_ms),
        ("ITL ms", figures.itl_ms),
        ("E2EL ms", figures.e2el_ms),
    ]
}

/// Writes a number with three or more significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub fn share(part: Option<f64>) -> String {
    part.map_or_else(|| UNKNOWN.to_owned(), |part| format!("{:.1} %", part * 100.0))
}

/// Aligns columns, the first to the left and the others to the right.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Describes the measurement, before its first load.
pub fn head(report: &Report) -> String {
    let server = &report.server;
    let mut out = format!("{} {}, model {}\n{}\n", server.url, server.path, server.model, report.workload);
    if !server.counts_tokens {
        out += "the server does not count tokens: an event counts as one token, and prompts have words for tokens\n";
    }
    out
}

/// Renders one load.
pub fn load(load: &LoadReport) -> String {
    let figures = &load.figures;
    let mut out = format!("\n{}, {} s\n", load.title, number(figures.duration_s));
    let mut counts = format!("{} done, {} failed", figures.completed, figures.failed);
    if figures.unfinished > 0 {
        counts += &format!(", {} unfinished", figures.unfinished);
    }
    let mut rates = format!(
        "{} requests/s, {} output tokens/s, {} tokens/s",
        number(figures.requests_per_s),
        number(figures.output_tokens_per_s),
        number(figures.total_tokens_per_s)
    );
    if let Some(good) = figures.good_requests_per_s {
        rates += &format!(", {} good requests/s", number(good));
    }
    let tokens = format!(
        "{} in ({} cached), {} out",
        figures.prompt_tokens,
        share(figures.cached_share()),
        figures.output_tokens
    );
    let peaks = format!(
        "{} requests at once, {} output tokens in a second",
        figures.peak_concurrency, figures.peak_output_tokens_per_s
    );
    for (name, text) in [("requests", counts), ("rates", rates), ("tokens", tokens), ("peaks", peaks)] {
        out += &format!("{name:<10}{text}\n");
    }
    for failure in &figures.failures {
        out += &format!("failed    {} × {}: {}\n", failure.count, failure.title, failure.example);
    }
    let mut rows = vec![row("", ["mean", "median", "p90", "p99", "max"].map(str::to_owned))];
    for (name, summary) in times(figures) {
        rows.push(match summary {
            Some(s) => row(name, [s.mean, s.median, s.p90, s.p99, s.max].map(number)),
            None => row(name, [UNKNOWN; 5].map(str::to_owned)),
        });
    }
    out + &align(&rows)
}

fn row<const N: usize>(name: &str, cells: [String; N]) -> Vec<String> {
    [name.to_owned()].into_iter().chain(cells).collect()
}

/// Renders a line for each load, if there are several.
pub fn overview(report: &Report) -> String {
    if report.loads.len() < 2 {
        return String::new();
    }
    let head = [
        "done",
        "failed",
        "req/s",
        "out tok/s",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "ITL p99",
        "E2EL p50",
        "p99",
        "good/s",
        "cached",
    ];
    let mut rows = vec![row("LOAD", head.map(str::to_owned))];
    for load in &report.loads {
        let f = &load.figures;
        let median = |s: Option<Summary>| s.map_or_else(|| UNKNOWN.to_owned(), |s| number(s.median));
        let p99 = |s: Option<Summary>| s.map_or_else(|| UNKNOWN.to_owned(), |s| number(s.p99));
        let cells = [
            f.completed.to_string(),
            f.failed.to_string(),
            number(f.requests_per_s),
            number(f.output_tokens_per_s),
            median(f.ttft_ms),
            p99(f.ttft_ms),
            median(f.tpot_ms),
            p99(f.tpot_ms),
            p99(f.itl_ms),
            median(f.e2el_ms),
            p99(f.e2el_ms),
            f.good_requests_per_s.map_or_else(|| UNKNOWN.to_owned(), number),
            share(f.cached_share()),
        ];
        rows.push(row(&load.title, cells));
    }
    format!("\n{}", align(&rows))
}
