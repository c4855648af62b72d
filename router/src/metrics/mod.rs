//! Metrics for Prometheus. Their names are `trunkline_*` with base units, in addition to the names that the Gateway API
//! Inference Extension scrapes.

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

/// The labels of the counter `trunkline_http_requests_total`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route's pattern; `unmatched` if there is none.
    pub route: String,
    pub method: String,
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
    pub http_requests: Family<RouteLabels, Counter>,
    rejections: Family<CodeLabel, Counter>,
    ends: Family<ReasonLabel, Counter>,
    /// Sequences that were aborted because their client disconnected or read too slowly.
    pub aborts: Counter,
    /// Connections that were closed because their client did not read.
    pub stalled_connections: Counter,
    /// Successful reloads of a changed certificate and key.
    pub tls_reloads: Counter,
    /// Reloads that failed because the files were unusable.
    pub tls_reload_failures: Counter,
    /// The device time of each step.
    pub step_seconds: Histogram,
    /// The number of tokens that each step computes.
    pub step_tokens: Histogram,
    /// The time from a request's arrival to its first output token.
    pub ttft_seconds: Histogram,
    /// The time between two output tokens of a request.
    pub itl_seconds: Histogram,
    /// The time from a request's submission to its first chunk.
    pub queue_seconds: Histogram,
    /// The CPU time of each mask.
    pub mask_seconds: Histogram,
    /// The time to compile each grammar.
    pub grammar_compile_seconds: Histogram,
    /// Requests whose grammar was in the cache.
    pub grammar_hits: Counter,
    /// The prompt lengths of ended sequences.
    prompt_tokens: Histogram,
    /// The output lengths of ended sequences.
    output_tokens: Histogram,
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
    /// Records the end of a sequence.
    pub fn observe_end(&self, reason: &EndReason, usage: Usage) {
        self.ends.get_or_create(&ReasonLabel { reason: end_label(reason) }).inc();
        self.prompt_tokens.observe(f64::from(usage.prompt_tokens));
        self.output_tokens.observe(f64::from(usage.output_tokens));
    }

    /// Records an error response. It counts as a rejection if the client is asked to retry later.
    pub fn observe_failure(&self, class: ErrorClass, code: &'static str) {
        if class == ErrorClass::Overload {
            self.rejections.get_or_create(&CodeLabel { code }).inc();
        }
    }

    /// Returns a registry of these metrics.
    pub fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        let own = registry.sub_registry_with_prefix("trunkline");
        own.register(
            "http_requests",
            "HTTP responses by route, method and status",
            self.http_requests.clone(),
        );
        own.register(
            "rejections",
            "Requests rejected because of overload, by error code",
            self.rejections.clone(),
        );
        own.register("sequences_ended", "Sequences ended, by reason", self.ends.clone());
        own.register(
            "aborts",
            "Sequences aborted because their client disconnected or read too slowly",
            self.aborts.clone(),
        );
        let counters = [
            (
                "stalled_connections",
                "Connections closed because their client did not read",
                &self.stalled_connections,
            ),
            ("tls_reloads", "Reloads of a changed certificate and key", &self.tls_reloads),
            (
                "tls_reload_failures",
                "Failed reloads of a changed certificate and key",
                &self.tls_reload_failures,
            ),
        ];
        for (name, help, counter) in counters {
            own.register(name, help, counter.clone());
        }
        own.register("grammar_hits", "Requests whose grammar was in the cache", self.grammar_hits.clone());
        let seconds = [
            ("step_duration", "Device time of a step", &self.step_seconds),
            (
                "time_to_first_token",
                "Time from the arrival of a request to its first output token",
                &self.ttft_seconds,
            ),
            ("inter_token", "Time between two output tokens of a request", &self.itl_seconds),
            ("queue_time", "Time from the submission of a request to its first chunk", &self.queue_seconds),
            ("grammar_mask", "CPU time to compute the token mask of a sequence", &self.mask_seconds),
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
