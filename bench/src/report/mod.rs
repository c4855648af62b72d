//! The result of a measurement, and the forms in which it is shown.

pub mod compare;
pub mod html;
pub mod plot;
pub mod table;

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::arrivals::Load;
use crate::error::BenchError;
use crate::metrics::{Bounds, Figures};
use crate::plan::Plan;
use crate::record::{Open, Record};
use crate::run::Outcome;
use crate::server::Server;

/// Version of the form of the JSON file (docs/bench.md). A reader accepts only its own.
pub const SCHEMA: u32 = 1;

/// A measurement: the document that `--json` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// The program and its version.
    pub tool: String,
    pub command: Vec<String>,
    /// RFC 3339.
    pub started_at: String,
    pub server: ServerAbout,
    pub workload: String,
    pub seed: u64,
    pub goodput_ms: Bounds,
    /// True if it was interrupted or the server went away.
    pub is_partial: bool,
    pub loads: Vec<LoadReport>,
}

/// The server that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerAbout {
    pub url: String,
    pub path: String,
    pub model: String,
    /// Its `server` header.
    pub software: Option<String>,
    /// False if it does not say how many tokens a request has, so that events are counted.
    pub counts_tokens: bool,
    /// Tokens of a word of the prompts.
    pub tokens_per_word: f64,
}

/// One load: its figures, and each request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    pub title: String,
    pub concurrency: Option<usize>,
    pub rate_per_s: Option<f64>,
    /// Absent for a fixed rate.
    pub burstiness: Option<f64>,
    /// When it began: seconds of Unix time.
    #[serde(default)]
    pub began_unix_s: f64,
    pub figures: Figures,
    pub requests: Vec<RequestRow>,
}

/// One request. One that failed has a `failure`, and no times. One that was open at the end has neither; it is there if
/// the measurement is detailed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    pub session: u64,
    pub turn: u32,
    pub sent_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2el_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Times from the request to each event with output, if the measurement is detailed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_ms: Option<Vec<f64>>,
    /// The text of the answer, if the measurement is detailed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Report {
    /// Begins the report of a server, without loads.
    pub fn new(command: &[String], plan: &Plan, server: &Server) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            schema: SCHEMA,
            tool: format!("trunkline {}", env!("CARGO_PKG_VERSION")),
            command: command.to_vec(),
            started_at: humantime::format_rfc3339_seconds(UNIX_EPOCH + now).to_string(),
            server: ServerAbout {
                url: server.client.address.url(),
                path: server.endpoint().path().to_owned(),
                model: server.composer.model.clone(),
                software: server.software.clone(),
                counts_tokens: server.counts_tokens,
                tokens_per_word: server.composer.scale.tokens_per_word(),
            },
            workload: plan.workload_title.clone(),
            seed: plan.seed,
            goodput_ms: plan.bounds,
            is_partial: false,
            loads: Vec::new(),
        }
    }

    pub fn parse(file: &str, text: &str) -> Result<Self, BenchError> {
        let wrong = |problem: String| BenchError::NoReport { file: file.to_owned(), problem };
        let report: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if report.schema != SCHEMA {
            return Err(wrong(format!("its `schema` is {}, expected {SCHEMA}", report.schema)));
        }
        Ok(report)
    }

    pub fn to_json(&self) -> String {
        // A report is plain data with text keys, which always has a JSON form.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

impl LoadReport {
    pub fn new(load: Load, outcome: &Outcome, bounds: &Bounds) -> Self {
        let (concurrency, rate_per_s, burstiness) = match load {
            Load::Closed { clients } => (Some(clients), None, None),
            Load::Open { rate_per_s, burstiness } => {
                (None, Some(rate_per_s), Some(burstiness).filter(|shape| shape.is_finite()))
            }
            Load::Trace { .. } => (None, None, None),
        };
        Self {
            title: title(load),
            concurrency,
            rate_per_s,
            burstiness,
            began_unix_s: outcome.began_unix_s,
            figures: Figures::new(
                &outcome.records,
                outcome.duration.as_secs_f64(),
                outcome.unfinished,
                bounds,
            ),
            requests: outcome
                .records
                .iter()
                .map(RequestRow::new)
                .chain(outcome.open.iter().map(RequestRow::open))
                .collect(),
        }
    }
}

/// Names a load.
pub fn title(load: Load) -> String {
    match load {
        Load::Closed { clients } => format!("concurrency {clients}"),
        Load::Open { rate_per_s, .. } => format!("rate {} /s", table::number(rate_per_s)),
        Load::Trace { speed: 1.0 } => "trace".to_owned(),
        Load::Trace { speed } => format!("trace, {speed} times as fast"),
    }
}

impl RequestRow {
    fn new(record: &Record) -> Self {
        let place =
            Self { session: record.session, turn: record.turn, sent_s: record.sent_s, ..Self::default() };
        match &record.outcome {
            Ok(measured) => Self {
                ttft_ms: Some(measured.ttft_s * 1e3),
                tpot_ms: measured.tpot_s().map(|s| s * 1e3),
                e2el_ms: Some(measured.e2el_s * 1e3),
                prompt_tokens: Some(measured.prompt_tokens),
                output_tokens: Some(measured.output_tokens),
                cached_tokens: measured.cached_tokens,
                events_ms: measured.text.is_some().then(|| measured.events_s().map(|s| s * 1e3).collect()),
                text: measured.text.clone(),
                ..place
            },
            Err(failure) => Self { failure: Some(failure.kind.name().to_owned()), ..place },
        }
    }

    fn open(open: &Open) -> Self {
        Self {
            session: open.session,
            turn: open.turn,
            sent_s: open.sent_s,
            events_ms: Some(open.events_s.iter().map(|s| s * 1e3).collect()),
            ..Self::default()
        }
    }
}
