//! A report as one page that needs nothing else: no script, no font, no network.

use super::compare::{Pair, pairs};
use super::plot::{Plot, Series, escape};
use super::table::{UNKNOWN, number, share, times};
use super::{LoadReport, Report, RequestRow};
use crate::metrics::percentile;

const STYLE: &str = include_str!("style.css");

/// Renders a measurement, or two with their plots upon each other.
pub fn render(reports: &[Report]) -> String {
    let sections = match reports {
        [first, second] => both(first, second),
        reports => reports.iter().map(section).collect(),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>trunkline bench</title>\
         <style>{STYLE}</style></head><body>{sections}</body></html>\n"
    )
}

fn section(report: &Report) -> String {
    let mut out = about(report, "");
    out += "<div class=\"plots\">";
    out += &by_throughput(&[("", report)]);
    let loads: Vec<_> = report.loads.iter().map(|load| (load.title.as_str(), load)).collect();
    out += &distributions(&loads);
    out += "</div>";
    for load in &report.loads {
        out += &details(&load.title, &[("", load)]);
    }
    out
}

/// Renders two measurements. Loads that only one of them has are in its table and in the plots by throughput.
fn both(first: &Report, second: &Report) -> String {
    let mut out = about(first, "A: ") + &about(second, "B: ");
    out += &format!("<div class=\"plots\">{}</div>", by_throughput(&[("A, ", first), ("B, ", second)]));
    for Pair { title, a, b } in pairs(first, second) {
        let loads = [("A", a), ("B", b)];
        out += &details(&title, &loads);
        out += &format!("<div class=\"plots\">{}</div>", distributions(&loads));
    }
    out
}

/// Says what was measured, with a row for each load.
fn about(report: &Report, letter: &str) -> String {
    let server = &report.server;
    let software = server.software.as_ref().map(|name| format!(", {}", escape(name))).unwrap_or_default();
    let partial = if report.is_partial { "<p>The measurement was interrupted.</p>" } else { "" };
    let about = format!(
        "<h1>{letter}{}</h1><p class=\"soft\">{} {}{software} · {} · {}</p><p>{}</p>{partial}<p><code>{}</code></p>",
        escape(&server.model),
        escape(&server.url),
        escape(&server.path),
        escape(&report.started_at),
        escape(&report.tool),
        escape(&report.workload),
        escape(&report.command.join(" ")),
    );
    about + &table(report)
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

/// Plots times by throughput, with a point for each load; nothing if no measurement has several. A label precedes the
/// names of a measurement's lines.
fn by_throughput(reports: &[(&str, &Report)]) -> String {
    if reports.iter().all(|(_, report)| report.loads.len() < 2) {
        return String::new();
    }
    let mut out = String::new();
    for (index, title) in
        ["Time to first token", "Time per output token", "Time between tokens", "End to end"]
            .into_iter()
            .enumerate()
    {
        let lines = |(label, report): &(&str, &Report)| {
            let mut loads: Vec<&LoadReport> = report.loads.iter().collect();
            loads.sort_by(|a, b| a.figures.output_tokens_per_s.total_cmp(&b.figures.output_tokens_per_s));
            let line = |name: &str, value: fn(&crate::metrics::Summary) -> f64| {
                let point = |load: &&LoadReport| {
                    let (_, summary) = times(&load.figures)[index];
                    Some((load.figures.output_tokens_per_s, value(&summary?)))
                };
                line(format!("{label}{name}"), loads.iter().filter_map(point).collect())
            };
            [line("median", |s| s.median), line("p99", |s| s.p99)]
        };
        let title = format!("{title} by throughput");
        let series = reports.iter().flat_map(lines).collect();
        out += &Plot { title: &title, x: "output tokens/s", y: "ms", series }.render();
    }
    out
}

/// Plots the part of requests that took no longer than a time, with a line for each of these loads.
fn distributions(loads: &[(&str, &LoadReport)]) -> String {
    let quantiles = |values: Vec<f64>| -> Vec<(f64, f64)> {
        let mut sorted = values;
        sorted.sort_by(f64::total_cmp);
        let point = |p: usize| (percentile(&sorted, p as f64), p as f64);
        if sorted.is_empty() { Vec::new() } else { (0..=100).map(point).collect() }
    };
    let of_requests = |value: fn(&RequestRow) -> Option<f64>| {
        lines(loads, |load| quantiles(load.requests.iter().filter_map(value).collect()))
    };
    let itl = lines(loads, |load| {
        load.figures.itl_quantiles_ms.iter().zip(0..).map(|(ms, p)| (*ms, f64::from(p))).collect()
    });
    let all = [
        ("Time to first token", "requests, %", of_requests(|r| r.ttft_ms)),
        ("Time per output token", "requests, %", of_requests(|r| r.tpot_ms)),
        ("Time between tokens", "tokens, %", itl),
        ("End to end", "requests, %", of_requests(|r| r.e2el_ms)),
    ];
    let plot = |(title, y, series)| Plot { title, x: "ms", y, series }.render();
    all.into_iter().map(plot).collect()
}

/// Plots loads over time, upon each other, and lists their failures.
fn details(title: &str, loads: &[(&str, &LoadReport)]) -> String {
    let seconds = |counts: &[u64]| -> Vec<(f64, f64)> {
        counts.iter().zip(0..).map(|(count, second)| (f64::from(second) + 0.5, *count as f64)).collect()
    };
    let output = lines(loads, |load| seconds(&load.figures.output_tokens_by_second));
    let open = lines(loads, |load| seconds(&load.figures.open_by_second));
    let mut first =
        lines(loads, |load| load.requests.iter().filter_map(|r| Some((r.sent_s, r.ttft_ms?))).collect());
    first.iter_mut().for_each(|series| series.is_scatter = true);
    let plots = [
        Plot { title: "Output tokens in each second", x: "s", y: "tokens", series: output },
        Plot { title: "Open requests", x: "s", y: "requests", series: open },
        Plot { title: "Time to first token of each request", x: "s", y: "ms", series: first },
    ];
    let failures = |(label, load): &(&str, &LoadReport)| -> String {
        let line = |f: &crate::metrics::Failures| {
            format!("<p>{label} {} × {}: {}</p>", f.count, escape(&f.title), escape(&f.example))
        };
        load.figures.failures.iter().map(line).collect()
    };
    let failures: String = loads.iter().map(failures).collect();
    let plots: String = plots.iter().map(Plot::render).collect();
    format!("<h2>{}</h2>{failures}<div class=\"plots\">{plots}</div>", escape(title))
}

fn lines(loads: &[(&str, &LoadReport)], points: impl Fn(&LoadReport) -> Vec<(f64, f64)>) -> Vec<Series> {
    loads.iter().map(|(title, load)| line((*title).to_owned(), points(load))).collect()
}

fn line(title: String, points: Vec<(f64, f64)>) -> Series {
    Series { title, points, is_scatter: false }
}
