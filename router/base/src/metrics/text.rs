//! The text forms of `/metrics`: Prometheus' own, and OpenMetrics'.

use axum::http::{HeaderMap, header};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// A text form, which the `Accept` header chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// <https://prometheus.io/docs/instrumenting/exposition_formats>
    Prometheus,
    /// <https://github.com/prometheus/OpenMetrics>
    OpenMetrics,
}

impl TextForm {
    /// Returns OpenMetrics if the client names it, and Prometheus' own form otherwise. Clients that take both list
    /// OpenMetrics first.
    pub fn accepted_by(headers: &HeaderMap) -> Self {
        let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut types = accepted.flat_map(|list| list.split(','));
        let is_open_metrics = |media: &str| {
            let name = media.split(';').next().unwrap_or_default().trim();
            name.eq_ignore_ascii_case("application/openmetrics-text")
        };
        if types.any(is_open_metrics) { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes the metrics of a registry, without the samples of tenants that the reader may not see.
    pub fn render(
        self,
        registry: &Registry,
        may_see: impl Fn(&str) -> bool,
    ) -> Result<String, std::fmt::Error> {
        let mut all = String::new();
        text::encode(&mut all, registry)?;
        let mut out = String::with_capacity(all.len());
        let shown = all.split_inclusive('\n').filter(|line| tenant_of(line).is_none_or(&may_see));
        shown.for_each(|line| out.push_str(line));
        Ok(match self {
            Self::Prometheus => prometheus(&out),
            Self::OpenMetrics => out,
        })
    }
}

/// Returns the tenant that a sample's labels name. Names of tenants need no escapes.
fn tenant_of(line: &str) -> Option<&str> {
    let labels = line.split_once('{').filter(|_| !line.starts_with('#'))?.1;
    labels.strip_prefix("tenant=\"")?.split('"').next()
}

/// Turns OpenMetrics text into Prometheus' own.
///
/// The samples are the same. A counter is described under the name of its samples, which ends with `_total`; a metric
/// of unknown type is `untyped`; there are neither units nor a line for the end.
pub fn prometheus(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            let kind = if kind == "unknown" { "untyped" } else { kind };
            if let Some((_, text)) = help.take() {
                out.push_str(&format!("# HELP {name}{suffix} {text}\n"));
            }
            out.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
