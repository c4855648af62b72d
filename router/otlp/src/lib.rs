//! Sends the spans of requests and steps, and the durations of requests, to an OpenTelemetry collector (OTLP).
//!
//! The standard variables `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
//! `OTEL_METRIC_EXPORT_*` and `OTEL_EXPORTER_OTLP_*` hold. Threads of their own send, spans from a queue with a bound:
//! while the collector is away, spans are lost and requests go on.
//!
//! [`start`] makes an exporter, which the router calls through the trait `Telemetry` of `trunkline-base`, the only
//! crate of ours that this one uses. `measure.rs` has the durations.

mod measure;
mod start;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags,
    TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use trunkline_base::trace::{Exporter, Record, RequestSpan, SpanIds, StepRecord, Telemetry, Timeline};

use measure::Instruments;
use start::Ids;
pub use start::LauncherSpan;

/// The longest time that the end of the server waits until the last spans are sent.
const STOP_LIMIT: Duration = Duration::from_secs(3);
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";

/// The exporter cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot send to `--otlp-endpoint` {endpoint}: {source}")]
    Endpoint { endpoint: String, source: ExporterBuildError },
    #[error("`{PROTOCOL}` is {name:?}; hint: use `grpc` or `http/protobuf`")]
    Protocol { name: String },
}

/// Starts sending to `endpoint`, such as `http://collector:4317`, by the protocol that `OTEL_EXPORTER_OTLP_PROTOCOL`
/// names, or by gRPC.
pub fn start(endpoint: &str) -> Result<Exporter, StartError> {
    let protocol = std::env::var(PROTOCOL).ok().filter(|name| !name.is_empty());
    start_by(endpoint, protocol.as_deref().unwrap_or("grpc"), LauncherSpan::from_environment())
}

/// Starts sending to `endpoint` by `protocol`: `grpc` or `http/protobuf`. It must be called inside a tokio runtime, and
/// does not wait for the collector. `launcher` is the span of the start that this process is a part of.
pub fn start_by(
    endpoint: &str,
    protocol: &str,
    launcher: Option<LauncherSpan>,
) -> Result<Exporter, StartError> {
    let (spans, measurements) = exporters(endpoint, protocol)?;
    let mut resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("trunkline");
    }
    let resource = resource.build();
    let tracers = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_id_generator(Ids::of(launcher.as_ref()))
        .with_batch_exporter(spans)
        .build();
    let meters =
        SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(measurements).build();
    let tracer = tracers.tracer("trunkline");
    let start = Mutex::new(launcher.map_or_else(Vec::new, |launcher| start::begin(&tracer, launcher)));
    let telemetry = Otlp { tracer, instruments: Instruments::new(&meters), start };
    let stop = async move {
        let (spans, measurements) = tokio::join!(
            tokio::task::spawn_blocking(move || tracers.shutdown_with_timeout(STOP_LIMIT)),
            tokio::task::spawn_blocking(move || meters.shutdown_with_timeout(STOP_LIMIT)),
        );
        for stopped in [spans, measurements] {
            match stopped {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the last spans or measurements are lost"),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    };
    Ok(Exporter { telemetry: Arc::new(telemetry), stop: Box::pin(stop) })
}

/// Returns what sends spans and measurements to `endpoint` by the named protocol. HTTP has a path for each.
fn exporters(endpoint: &str, protocol: &str) -> Result<(SpanExporter, MetricExporter), StartError> {
    let url = |signal: &str| format!("{}/v1/{signal}", endpoint.trim_end_matches('/'));
    let built = match protocol {
        "grpc" => SpanExporter::builder().with_tonic().with_endpoint(endpoint).build().and_then(|spans| {
            let measurements = MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
            Ok((spans, measurements))
        }),
        "http/protobuf" => {
            // The HTTP client demands it even for plain HTTP. It fails if the object store has installed it already.
            drop(rustls::crypto::ring::default_provider().install_default());
            SpanExporter::builder().with_http().with_endpoint(url("traces")).build().and_then(|spans| {
                let measurements =
                    MetricExporter::builder().with_http().with_endpoint(url("metrics")).build()?;
                Ok((spans, measurements))
            })
        }
        name => return Err(StartError::Protocol { name: name.to_owned() }),
    };
    built.map_err(|source| StartError::Endpoint { endpoint: endpoint.to_owned(), source })
}

struct Otlp {
    tracer: SdkTracer,
    instruments: Instruments,
    /// Ends the spans of the start.
    start: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Telemetry for Otlp {
    fn begin(&self, headers: &HeaderMap, record: &Record) -> Option<Box<dyn RequestSpan>> {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let builder = SpanBuilder::from_name(format!("{} {}", record.operation, record.model))
            .with_kind(SpanKind::Server)
            .with_start_time(record.arrived)
            .with_attributes([
                KeyValue::new("gen_ai.operation.name", record.operation),
                KeyValue::new("gen_ai.provider.name", "trunkline"),
                KeyValue::new("gen_ai.request.model", record.model.clone()),
                KeyValue::new("http.request.method", "POST"),
                KeyValue::new("http.route", record.route.clone()),
                KeyValue::new("trunkline.request_id", record.request_id.clone()),
            ]);
        let span = self.tracer.build_with_context(builder, &parent);
        span.is_recording().then(|| {
            let context = Context::new().with_span(span);
            Box::new(OtlpSpan { tracer: self.tracer.clone(), context }) as Box<dyn RequestSpan>
        })
    }

    fn measure(&self, record: &Record) {
        self.instruments.record(record);
    }

    fn step(&self, step: &StepRecord) {
        let links = step.requests.iter().map(|ids| {
            let (trace, span) = (TraceId::from_bytes(ids.trace_id), SpanId::from_bytes(ids.span_id));
            let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE);
            Link::with_context(context)
        });
        let builder = SpanBuilder::from_name("step")
            .with_start_time(before(step.ended, step.device_time))
            .with_links(links.collect())
            .with_attributes([
                KeyValue::new("trunkline.lane", i64::from(step.lane)),
                KeyValue::new("trunkline.step_id", i64::try_from(step.step_id).unwrap_or(i64::MAX)),
                KeyValue::new("trunkline.step.tokens", i64::try_from(step.num_tokens).unwrap_or(i64::MAX)),
                KeyValue::new("trunkline.step.sequences", step.num_sequences as i64),
            ]);
        self.tracer.build_with_context(builder, &Context::new()).end_with_timestamp(step.ended);
    }

    fn started(&self) {
        let spans = std::mem::take(&mut *self.start.lock().unwrap_or_else(PoisonError::into_inner));
        spans.into_iter().for_each(|end| end());
    }
}

/// Returns the beginning of a time that ended at `end`.
fn before(end: SystemTime, time: Duration) -> SystemTime {
    end.checked_sub(time).unwrap_or(end)
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

struct OtlpSpan {
    tracer: SdkTracer,
    context: Context,
}

impl OtlpSpan {
    fn part(
        &self,
        name: &'static str,
        begin: SystemTime,
        end: SystemTime,
        attributes: &[(&'static str, u32)],
    ) {
        let attributes = attributes.iter().map(|&(key, count)| KeyValue::new(key, i64::from(count)));
        let builder = SpanBuilder::from_name(name).with_start_time(begin).with_attributes(attributes);
        self.tracer.build_with_context(builder, &self.context).end_with_timestamp(end);
    }

    /// Adds the parts that a sequence reached.
    fn parts(&self, sequence: &Timeline) {
        let Timeline { submitted, started, restored, first_token, last_token, ended, tokens } = *sequence;
        self.part("queue", submitted, started.unwrap_or(ended), &[]);
        let Some(started) = started else { return };
        if let Some((num_tokens, time)) = restored {
            self.part(
                "restore",
                before(started, time),
                started,
                &[("trunkline.prompt_tokens.restored", num_tokens)],
            );
        }
        let prompt = [
            ("trunkline.prompt_tokens.computed", tokens.prompt.saturating_sub(tokens.cached)),
            ("trunkline.prompt_tokens.cached", tokens.cached),
            ("trunkline.prompt_tokens.restored", restored.map_or(0, |(num_tokens, _)| num_tokens)),
        ];
        self.part("prefill", started, first_token.unwrap_or(ended), &prompt);
        let (Some(first), Some(last)) = (first_token, last_token) else { return };
        self.part("decode", first, last, &[("trunkline.output_tokens", tokens.output)]);
    }
}

impl RequestSpan for OtlpSpan {
    fn ids(&self) -> SpanIds {
        let span = self.context.span();
        let context = span.span_context();
        SpanIds { trace_id: context.trace_id().to_bytes(), span_id: context.span_id().to_bytes() }
    }

    fn end(self: Box<Self>, record: &Record) {
        if let Some((ready, time)) = record.grammar {
            self.part("grammar", before(ready, time), ready, &[]);
        }
        record.sequences.iter().for_each(|sequence| self.parts(sequence));
        let span = self.context.span();
        if let Some(status) = record.status {
            span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        if let Some(tenant) = &record.tenant {
            span.set_attribute(KeyValue::new("trunkline.tenant", tenant.clone()));
        }
        if let Some(tokens) = record.tokens {
            let reasons = record.finish_reasons.iter().map(|&reason| StringValue::from(reason)).collect();
            span.set_attributes([
                KeyValue::new("gen_ai.usage.input_tokens", i64::from(tokens.prompt)),
                KeyValue::new("gen_ai.usage.output_tokens", i64::from(tokens.output)),
                KeyValue::new("gen_ai.usage.cache_read.input_tokens", i64::from(tokens.cached)),
                KeyValue::new("gen_ai.response.finish_reasons", Value::Array(Array::String(reasons))),
            ]);
        }
        if let Some(code) = record.error {
            span.set_attribute(KeyValue::new("error.type", code));
            // By the conventions, an error of the client is none of the server's.
            if record.status.is_none_or(|status| !(400..500).contains(&status)) {
                span.set_status(Status::error(code));
            }
        }
        span.end();
    }
}
