//! A report as one page that needs nothing else: no script, no font, no network.

use super::plot::{Plot, Series, escape};
use super::table::{UNKNOWN, number, share, times};
use super::{LoadReport, Report, RequestRow};
use crate::metrics::percentile;

const STYLE: &str = include_str!("style.css");

/// Renders measurements, one after the other: a server, or two that were measured by turns.
pub fn render(reports: &[Report]) -> String {
    let sections: String = reports.iter().map(section).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>trunkline bench</title>\
         <style>{STYLE}</style></head><body>{sections}</body></html>\n"
    )
}

fn section(report: &Report) -> String {
    let server = &report.server;
    let software = server.software.as_ref().map(|name| format!(", {}", escape(name))).unwrap_or_default();
    let partial = if report.is_partial { "<p>The measurement was interrupted.</p>" } else { "" };
    let mut out = format!(
        "<h1>{}</h1><p class=\"soft\">{} {}{software} · {} · {}</p><p>{}</p>{partial}<p><code>{}</code></p>",
        escape(&server.model),
        escape(&server.url),
        escape(&server.path),
        escape(&report.started_at),
        escape(&report.tool),
        escape(&report.workload),
        escape(&report.command.join(" ")),
    );
    out += &table(report);
    out += "<div class=\"plots\">";
    if report.loads.len() > 1 {
        out += &by_throughput(report);
    }
    out += &distributions(report);
    out += "</div>";
    for load in &report.loads {
        out += &details(load);
    }
    out
}

fn table(report: &Report) -> String {
    let head = [
        "load",
        "done",
        "failed",
        "req/s",
        "output tok/s",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "ITL p50",
        "p99",
        "E2EL p50",
        "p99",
        "good req/s",
        "cached",
    ];
    let mut out = "<div class=\"scroll\"><table><tr>".to_owned();
    out.extend(head.map(|name| format!("<th>{name}</th>")));
    out += "</tr>";
    for load in &report.loads {
        let f = &load.figures;
        let mut cells = vec![
            escape(&load.title),
            f.completed.to_string(),
            f.failed.to_string(),
            number(f.requests_per_s),
            number(f.output_tokens_per_s),
        ];
        for (_, summary) in times(f) {
            cells.push(summary.map_or_else(|| UNKNOWN.to_owned(), |s| number(s.median)));
            cells.push(summary.map_or_else(|| UNKNOWN.to_owned(), |s| number(s.p99)));
        }
        cells.push(f.good_requests_per_s.map_or_else(|| UNKNOWN.to_owned(), number));
        cells.push(share(f.cached_share()));
        out += "<tr>";
        out.extend(cells.iter().map(|cell| format!("<td>{cell}</td>")));
        out += "</tr>";
    }
    out + "</table></div><p class=\"soft\">Times in milliseconds.</p>"
}

/// Plots times by throughput, with a point for each load.
fn by_throughput(report: &Report) -> String {
    let mut loads: Vec<&LoadReport> = report.loads.iter().collect();
    loads.sort_by(|a, b| a.figures.output_tokens_per_s.total_cmp(&b.figures.output_tokens_per_s));
    let mut out = String::new();
    for (index, title) in
        ["Time to first token", "Time per output token", "Time between tokens", "End to end"]
            .into_iter()
            .enumerate()
    {
        let points = |value: fn(&crate::metrics::Summary) -> f64| {
            let point = |load: &&LoadReport| {
                let (_, summary) = times(&load.figures)[index];
                Some((load.figures.output_tokens_per_s, value(&summary?)))
            };
            loads.iter().filter_map(point).collect()
        };
        let series = vec![
            Series { title: "median".to_owned(), points: points(|s| s.median), is_scatter: false },
            Series { title: "p99".to_owned(), points: points(|s| s.p99), is_scatter: false },
        ];
        let title = format!("{title} by throughput");
        out += &Plot { title: &title, x: "output tokens/s", y: "ms", series }.render();
    }
    out
}

/// Plots the part of requests that took no longer than a time, with a line for each load.
fn distributions(report: &Report) -> String {
    let quantiles = |values: Vec<f64>| -> Vec<(f64, f64)> {
        let mut sorted = values;
        sorted.sort_by(f64::total_cmp);
        let point = |p: usize| (percentile(&sorted, p as f64), p as f64);
        if sorted.is_empty() { Vec::new() } else { (0..=100).map(point).collect() }
    };
    let of_requests = |value: fn(&RequestRow) -> Option<f64>| -> Vec<Series> {
        let series = |load: &LoadReport| Series {
            title: load.title.clone(),
            points: quantiles(load.requests.iter().filter_map(value).collect()),
            is_scatter: false,
        };
        report.loads.iter().map(series).collect()
    };
    let itl = report.loads.iter().map(|load| Series {
        title: load.title.clone(),
        points: load.figures.itl_quantiles_ms.iter().zip(0..).map(|(ms, p)| (*ms, f64::from(p))).collect(),
        is_scatter: false,
    });
    let all = [
        ("Time to first token", "requests, %", of_requests(|r| r.ttft_ms)),
        ("Time per output token", "requests, %", of_requests(|r| r.tpot_ms)),
        ("Time between tokens", "tokens, %", itl.collect()),
        ("End to end", "requests, %", of_requests(|r| r.e2el_ms)),
    ];
    let plot = |(title, y, series)| Plot { title, x: "ms", y, series }.render();
    all.into_iter().map(plot).collect()
}

/// Plots one load over time, and lists its failures.
fn details(load: &LoadReport) -> String {
    let seconds = |counts: &[u64]| -> Vec<(f64, f64)> {
        counts.iter().zip(0..).map(|(count, second)| (f64::from(second) + 0.5, *count as f64)).collect()
    };
    let line = |title: &str, points| Series { title: title.to_owned(), points, is_scatter: false };
    let output = vec![line("", seconds(&load.figures.output_tokens_by_second))];
    let open = vec![line("", seconds(&load.figures.open_by_second))];
    let first = load.requests.iter().filter_map(|r| Some((r.sent_s, r.ttft_ms?))).collect();
    let first = vec![Series { title: String::new(), points: first, is_scatter: true }];
    let plots = [
        Plot { title: "Output tokens in each second", x: "s", y: "tokens", series: output },
        Plot { title: "Open requests", x: "s", y: "requests", series: open },
        Plot { title: "Time to first token of each request", x: "s", y: "ms", series: first },
    ];
    let failure = |f: &crate::metrics::Failures| {
        format!("<p>{} × {}: {}</p>", f.count, escape(&f.title), escape(&f.example))
    };
    let failures: String = load.figures.failures.iter().map(failure).collect();
    let plots: String = plots.iter().map(Plot::render).collect();
    format!("<h2>{}</h2>{failures}<div class=\"plots\">{plots}</div>", escape(&load.title))
}
