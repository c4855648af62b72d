//! Metrics for Prometheus. Their names are `trunkline_*` with base units, in addition to the names that the Gateway API
//! Inference Extension scrapes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use trunkline_scheduler::{EndReason, Usage};

use crate::error::ErrorClass;

pub mod tenants;
pub mod text;
pub mod usage;

/// The labels of the counter `trunkline_http_requests_total`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route's pattern; `unmatched` if there is none.
    pub route: String,
    pub method: String,
    pub status: u16,
}

/// The label of the histogram `trunkline_http_longest_poll_seconds`.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct RouteLabel {
    /// The route's pattern; `unmatched` if there is none.
    pub route: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LimitLabels {
    tenant: String,
    limit: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Declares metrics: a struct, and for each field the constructor of its metric, and the name and description that
/// `/metrics` shows. They are updated where they are measured.
macro_rules! metrics {
    ($(#[doc = $about:literal])+ $name:ident {
        $($visible:vis $field:ident: $type:ty = $new:expr, $metric:literal, $unit:expr, $help:literal;)*
    }) => {
        $(#[doc = $about])+
        pub struct $name {
            $(#[doc = $help] $visible $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $new,)* }
            }
        }

        impl $name {
            pub fn registry(&self) -> Registry {
                let mut registry = Registry::default();
                let own = registry.sub_registry_with_prefix("trunkline");
                $(match $unit {
                    None => own.register($metric, $help, self.$field.clone()),
                    Some(unit) => own.register_with_unit($metric, $help, unit, self.$field.clone()),
                })*
                registry
            }
        }
    };
}

metrics! {
    /// Metrics of connections and requests.
    Metrics {
        pub http_requests: Family<RouteLabels, Counter> = Family::default(), "http_requests", None,
            "HTTP responses by route, method and status";
        pub http_longest_poll_seconds: Family<RouteLabel, Histogram> = Family::new_with_constructor(poll_seconds),
            "http_longest_poll", SECONDS,
            "Longest CPU time for which a request held a thread of the HTTP runtime, by route";
        rejections: Family<CodeLabel, Counter> = Family::default(), "rejections", None,
            "Requests rejected because of overload, by error code";
        tenant_rejections: Family<LimitLabels, Counter> = Family::default(), "tenant_rejections", None,
            "Requests rejected because of a limit of their tenant, by tenant and limit";
        pub stalled_connections: Counter = Counter::default(), "stalled_connections", None,
            "Connections closed because their client did not read";
        pub tls_reloads: Counter = Counter::default(), "tls_reloads", None,
            "Reloads of a changed certificate and key";
        pub tls_reload_failures: Counter = Counter::default(), "tls_reload_failures", None,
            "Failed reloads of a changed certificate and key";
    }
}

metrics! {
    /// Metrics of one model, besides those that are read from its scheduler's `Stats` on request.
    ModelMetrics {
        ends: Family<ReasonLabel, Counter> = Family::default(), "sequences_ended", None,
            "Sequences ended, by reason";
        pub aborts: Counter = Counter::default(), "aborts", None,
            "Sequences aborted because their client disconnected or read too slowly";
        pub grammar_hits: Counter = Counter::default(), "grammar_hits", None,
            "Requests whose grammar was in the cache";
        pub step_seconds: Histogram = seconds(), "step_duration", SECONDS,
            "Device time of a step";
        pub ttft_seconds: Histogram = seconds(), "time_to_first_token", SECONDS,
            "Time from the arrival of a request to its first output token";
        pub itl_seconds: Histogram = seconds(), "inter_token", SECONDS,
            "Time between two output tokens of a request";
        pub queue_seconds: Histogram = seconds(), "queue_time", SECONDS,
            "Time from the submission of a request to its first chunk";
        pub mask_seconds: Histogram = Histogram::new(exponential_buckets(1e-6, 4.0, 10)), "grammar_mask", SECONDS,
            "CPU time to compute the token mask of a sequence";
        pub grammar_compile_seconds: Histogram = seconds(), "grammar_compile", SECONDS,
            "Time to compile a grammar";
        pub step_tokens: Histogram = tokens(), "step_tokens", None,
            "Tokens computed by a step";
        pub draft_tokens: Histogram = Histogram::new(exponential_buckets(1.0, 2.0, 7)), "step_drafts", None,
            "Drafts of a sequence in a step, where it has any";
        prompt_tokens: Histogram = tokens(), "request_prompt_tokens", None,
            "Prompt tokens of a request";
        output_tokens: Histogram = tokens(), "request_output_tokens", None,
            "Output tokens of a request";
    }
}

const SECONDS: Option<Unit> = Some(Unit::Seconds);

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

fn poll_seconds() -> Histogram {
    Histogram::new([0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5])
}

fn tokens() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 18))
}

impl Metrics {
    /// Records an error response. It counts as a rejection if the client is asked to retry later.
    pub fn observe_failure(&self, class: ErrorClass, code: &'static str) {
        if class == ErrorClass::Overload {
            self.rejections.get_or_create(&CodeLabel { code }).inc();
        }
    }

    /// Counts a request that was rejected because of this limit of its tenant.
    pub fn count_rejection(&self, tenant: &str, limit: &'static str) {
        self.tenant_rejections.get_or_create(&LimitLabels { tenant: tenant.to_owned(), limit }).inc();
    }
}

impl ModelMetrics {
    pub fn observe_end(&self, reason: &EndReason, usage: Usage) {
        self.ends.get_or_create(&ReasonLabel { reason: end_label(reason) }).inc();
        self.prompt_tokens.observe(f64::from(usage.prompt_tokens));
        self.output_tokens.observe(f64::from(usage.output_tokens));
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
