//! Two results side by side.

use super::table::{UNKNOWN, align, number, times};
use super::{LoadReport, Report};
use crate::metrics::Figures;

/// Two loads to be compared.
pub struct Pair<'a> {
    pub title: String,
    pub a: &'a LoadReport,
    pub b: &'a LoadReport,
}

/// Returns the loads that both results have, or, if they have none in common as sweeps have, those of equal place.
pub fn pairs<'a>(first: &'a Report, second: &'a Report) -> Vec<Pair<'a>> {
    let of_second = |load: &LoadReport| second.loads.iter().find(|other| other.title == load.title);
    let same = first.loads.iter().filter_map(|a| Some(Pair { title: a.title.clone(), a, b: of_second(a)? }));
    let pairs: Vec<Pair<'a>> = same.collect();
    if !pairs.is_empty() {
        return pairs;
    }
    let in_order = first.loads.iter().zip(&second.loads);
    in_order.map(|(a, b)| Pair { title: format!("{} | {}", a.title, b.title), a, b }).collect()
}

/// Renders the pairs of loads, with the ratio of the second to the first.
pub fn render(first: &Report, second: &Report) -> String {
    let mut out = format!("A  {}\nB  {}\n", about(first), about(second));
    if first.workload != second.workload {
        out += "the workloads differ, so that ratios mean little\n";
    }
    for Pair { title, a, b } in pairs(first, second) {
        let mut rows = vec![["".to_owned(), "A".to_owned(), "B".to_owned(), "B / A".to_owned()].to_vec()];
        for ((name, a), (_, b)) in lines(&a.figures).into_iter().zip(lines(&b.figures)) {
            let ratio = match (a, b) {
                (Some(a), Some(b)) if a != 0.0 => format!("{:.3}", b / a),
                _ => UNKNOWN.to_owned(),
            };
            let cell = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), number);
            rows.push([name, cell(a), cell(b), ratio].to_vec());
        }
        out += &format!("\n{title}\n{}", align(&rows));
    }
    out
}

fn about(report: &Report) -> String {
    let server = &report.server;
    format!(
        "{} {}, model {}, {}, {}",
        server.url, server.path, server.model, report.workload, report.started_at
    )
}

fn lines(figures: &Figures) -> Vec<(String, Option<f64>)> {
    let mut lines = vec![
        ("requests done".to_owned(), Some(figures.completed as f64)),
        ("requests failed".to_owned(), Some(figures.failed as f64)),
        ("requests/s".to_owned(), Some(figures.requests_per_s)),
        ("output tokens/s".to_owned(), Some(figures.output_tokens_per_s)),
        ("tokens/s".to_owned(), Some(figures.total_tokens_per_s)),
    ];
    if let Some(good) = figures.good_requests_per_s {
        lines.push(("good requests/s".to_owned(), Some(good)));
    }
    lines.push(("cached share %".to_owned(), figures.cached_share().map(|share| share * 100.0)));
    for (name, summary) in times(figures) {
        let name = name.trim_end_matches(" ms");
        lines.push((format!("{name} mean ms"), summary.map(|s| s.mean)));
        lines.push((format!("{name} median ms"), summary.map(|s| s.median)));
        lines.push((format!("{name} p99 ms"), summary.map(|s| s.p99)));
    }
    lines
}
