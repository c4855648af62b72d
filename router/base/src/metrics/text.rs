//! The text forms of `/metrics`: Prometheus' own, and OpenMetrics'.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::http::{HeaderMap, header};
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// The last line of OpenMetrics text.
const END: &str = "# EOF";

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

    /// Writes the metrics of the registries, without the samples of tenants that the reader may not see. Samples of a
    /// registry with a model get its name as a label.
    pub fn render<'a>(
        self,
        registries: impl IntoIterator<Item = (Option<&'a str>, &'a Registry)>,
        may_see: impl Fn(&str) -> bool,
    ) -> Result<String, std::fmt::Error> {
        let mut families = Families::default();
        for (model, registry) in registries {
            let mut text = String::new();
            text::encode(&mut text, registry)?;
            families.add(&text, model, &may_see);
        }
        let out = families.text();
        Ok(match self {
            Self::Prometheus => prometheus(&out),
            Self::OpenMetrics => out,
        })
    }
}

/// Metrics of several registries, in which each metric may be described once only.
#[derive(Default)]
struct Families {
    /// The description and the samples of each metric.
    texts: Vec<(String, String)>,
    /// The places of metrics in `texts`, by the first line of the description.
    places: HashMap<String, usize>,
}

impl Families {
    /// Adds the text of a registry.
    fn add(&mut self, text: &str, model: Option<&str>, may_see: impl Fn(&str) -> bool) {
        let mut place = 0;
        let mut is_new = false;
        for line in text.lines().filter(|line| *line != END) {
            if line.starts_with("# HELP ") {
                let next = self.texts.len();
                place = *self.places.entry(line.to_owned()).or_insert(next);
                is_new = place == next;
                if is_new {
                    self.texts.push(Default::default());
                }
            }
            let Some((description, samples)) = self.texts.get_mut(place) else { continue };
            if line.starts_with('#') {
                if is_new {
                    *description += line;
                    description.push('\n');
                }
            } else if tenant_of(line).is_none_or(&may_see) {
                *samples += &model.map_or_else(|| line.into(), |model| labelled(line, model));
                samples.push('\n');
            }
        }
    }

    fn text(self) -> String {
        let mut out: String =
            self.texts.into_iter().map(|(description, samples)| description + &samples).collect();
        out += END;
        out.push('\n');
        out
    }
}

/// Adds the label of a model to a sample.
fn labelled<'a>(sample: &'a str, model: &str) -> Cow<'a, str> {
    let name = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let at = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (metric, rest) = sample.split_at(at);
    match rest.strip_prefix('{') {
        Some(labels) => format!("{metric}{{model=\"{name}\",{labels}").into(),
        None => format!("{metric}{{model=\"{name}\"}}{rest}").into(),
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
