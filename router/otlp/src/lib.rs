//! Sends the spans of requests to an OpenTelemetry collector by gRPC (OTLP).
//!
//! The standard variables `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*` and
//! `OTEL_EXPORTER_OTLP_*` hold. A thread of its own sends, from a queue with a bound: while the collector is away,
//! spans are lost and requests go on.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use trunkline_router::trace::{Exporter, Record, RequestSpan, Timeline};

/// The longest time that the end of the server waits until the last spans are sent.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// The exporter cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot send spans to {endpoint}: {source}")]
pub struct StartError {
    endpoint: String,
    source: ExporterBuildError,
}

/// Starts sending spans to `endpoint`, such as `http://collector:4317`. It must be called inside a tokio runtime, and
/// does not wait for the collector.
pub fn start(endpoint: &str) -> Result<Exporter, StartError> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
    let exporter = exporter.map_err(|source| StartError { endpoint: endpoint.to_owned(), source })?;
    let mut resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("trunkline");
    }
    let provider =
        SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build();
    let tracer = provider.tracer("trunkline");
    let begin = move |headers: &HeaderMap, record: &Record| {
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
        let span = tracer.build_with_context(builder, &parent);
        span.is_recording().then(|| {
            let context = Context::new().with_span(span);
            Box::new(OtlpSpan { tracer: tracer.clone(), context }) as Box<dyn RequestSpan>
        })
    };
    let stop = async move {
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(STOP_LIMIT)).await;
        match stopped {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the last spans are lost"),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    };
    Ok(Exporter { begin: Arc::new(begin), stop: Box::pin(stop) })
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
        let Timeline { submitted, started, first_token, last_token, ended, tokens } = *sequence;
        self.part("queue", submitted, started.unwrap_or(ended), &[]);
        let Some(started) = started else { return };
        let computed = tokens.prompt.saturating_sub(tokens.cached);
        let prompt = [
            ("trunkline.prompt_tokens.computed", computed),
            ("trunkline.prompt_tokens.cached", tokens.cached),
        ];
        self.part("prefill", started, first_token.unwrap_or(ended), &prompt);
        let (Some(first), Some(last)) = (first_token, last_token) else { return };
        self.part("decode", first, last, &[("trunkline.output_tokens", tokens.output)]);
    }
}

impl RequestSpan for OtlpSpan {
    fn end(self: Box<Self>, record: &Record) {
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
