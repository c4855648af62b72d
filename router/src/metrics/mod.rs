//! Metrics in Prometheus' (OpenMetrics) text form. Names are `trunkline_*` in base units, and those that the Gateway
//! API Inference Extension scrapes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use trunkline_scheduler::{EndReason, Usage};

use self::tenants::TenantMetrics;
use crate::error::ErrorClass;

pub mod tenants;
pub mod text;

/// Labels of `trunkline_http_requests_total`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RouteLabels {
    /// Route pattern; `unmatched` if there is none.
    pub route: String,
    /// HTTP method.
    pub method: String,
    /// HTTP status.
    pub status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Metrics that are updated where they are measured. The scheduler's numbers are read from its `Stats` on request.
pub struct Metrics {
    /// HTTP answers.
    pub http_requests: Family<RouteLabels, Counter>,
    rejections: Family<CodeLabel, Counter>,
    ends: Family<ReasonLabel, Counter>,
    /// Sequences aborted: client gone or too slow.
    pub aborts: Counter,
    /// Connections given up because their client did not read.
    pub stalled_connections: Counter,
    /// Times that changed files of certificate and key were taken.
    pub tls_reloads: Counter,
    /// Times that they could not be used.
    pub tls_reload_failures: Counter,
    /// Device time of a step.
    pub step_seconds: Histogram,
    /// Tokens computed by a step.
    pub step_tokens: Histogram,
    /// Arrival to first output token.
    pub ttft_seconds: Histogram,
    /// Output token to output token.
    pub itl_seconds: Histogram,
    /// Submission to first chunk.
    pub queue_seconds: Histogram,
    /// Time that the masks of a step's sequences take, each.
    pub mask_seconds: Histogram,
    /// Time to compile a grammar.
    pub grammar_compile_seconds: Histogram,
    /// Grammars that were compiled before.
    pub grammar_hits: Counter,
    /// Prompt lengths of ended requests.
    prompt_tokens: Histogram,
    /// Output lengths of ended requests.
    output_tokens: Histogram,
    /// By tenant.
    pub tenants: TenantMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 18));
        let tokens = || Histogram::new(exponential_buckets(1.0, 2.0, 18));
        Self {
            http_requests: Family::default(),
            rejections: Family::default(),
            ends: Family::default(),
            aborts: Counter::default(),
            stalled_connections: Counter::default(),
            tls_reloads: Counter::default(),
            tls_reload_failures: Counter::default(),
            step_seconds: seconds(),
            step_tokens: tokens(),
            ttft_seconds: seconds(),
            itl_seconds: seconds(),
            queue_seconds: seconds(),
            mask_seconds: Histogram::new(exponential_buckets(1e-6, 4.0, 10)),
            grammar_compile_seconds: seconds(),
            grammar_hits: Counter::default(),
            prompt_tokens: tokens(),
            output_tokens: tokens(),
            tenants: TenantMetrics::default(),
        }
    }
}

impl Metrics {
    /// A sequence ended.
    pub fn observe_end(&self, reason: &EndReason, usage: Usage) {
        self.ends.get_or_create(&ReasonLabel { reason: end_label(reason) }).inc();
        self.prompt_tokens.observe(f64::from(usage.prompt_tokens));
        self.output_tokens.observe(f64::from(usage.output_tokens));
    }

    /// A request was answered with an error; those that ask the client to come back count as rejections.
    pub fn observe_failure(&self, class: ErrorClass, code: &'static str) {
        if class == ErrorClass::Overload {
            self.rejections.get_or_create(&CodeLabel { code }).inc();
        }
    }

    /// Returns a registry of these metrics.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("trunkline");
        own.register("http_requests", "HTTP answers by route and status", self.http_requests.clone());
        own.register(
            "rejections",
            "Requests told to come back later, by error code",
            self.rejections.clone(),
        );
        own.register("sequences_ended", "Sequences ended, by reason", self.ends.clone());
        own.register(
            "aborts",
            "Sequences aborted because their client left or read too slowly",
            self.aborts.clone(),
        );
        let counters = [
            (
                "stalled_connections",
                "Connections given up because their client did not read",
                &self.stalled_connections,
            ),
            ("tls_reloads", "Times that a changed certificate and key were taken", &self.tls_reloads),
            (
                "tls_reload_failures",
                "Times that a changed certificate and key could not be used",
                &self.tls_reload_failures,
            ),
        ];
        for (name, help, counter) in counters {
            own.register(name, help, counter.clone());
        }
        own.register(
            "grammar_hits",
            "Grammars that were compiled for an earlier request",
            self.grammar_hits.clone(),
        );
        let seconds = [
            ("step_duration", "Time the device worked on a step", &self.step_seconds),
            ("time_to_first_token", "Arrival of a request to its first output token", &self.ttft_seconds),
            ("inter_token", "Time between two output tokens of a request", &self.itl_seconds),
            ("queue_time", "Submission of a request to its first chunk", &self.queue_seconds),
            ("grammar_mask", "Time to work out what a sequence may sample", &self.mask_seconds),
            ("grammar_compile", "Time to compile a grammar", &self.grammar_compile_seconds),
        ];
        for (name, help, histogram) in seconds {
            own.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        own.register("step_tokens", "Tokens computed by a step", self.step_tokens.clone());
        own.register("request_prompt_tokens", "Prompt tokens of a request", self.prompt_tokens.clone());
        own.register("request_output_tokens", "Output tokens of a request", self.output_tokens.clone());
        self.tenants.register(own);
        registry
    }
}

fn end_label(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::EndToken => "end_token",
        EndReason::Length => "length",
        EndReason::Finished => "stop_string",
        EndReason::Aborted => "aborted",
        EndReason::DeadlineExceeded => "deadline_exceeded",
        EndReason::Failed(_) => "failed",
        EndReason::ShardLost => "shard_lost",
    }
}
