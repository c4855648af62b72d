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
use opentelemetry::{Array, Context, KeyValue, StringValue};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use trunkline_router::trace::{Attributes, Exporter, RequestSpan, Value};

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
    let begin = move |headers: &HeaderMap, name: String, attributes: Attributes| {
        let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes.into_iter().map(key_value));
        let span = tracer.build_with_context(builder, &parent);
        span.is_recording().then(|| {
            let context = Context::new().with_span(span);
            Arc::new(OtlpSpan { tracer: tracer.clone(), context }) as Arc<dyn RequestSpan>
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

/// A span of a request. The library ends it when the last context that holds it is dropped.
struct OtlpSpan {
    tracer: SdkTracer,
    context: Context,
}

impl RequestSpan for OtlpSpan {
    fn set(&self, attributes: Attributes) {
        self.context.span().set_attributes(attributes.into_iter().map(key_value));
    }

    fn fail(&self, reason: String) {
        self.context.span().set_status(Status::error(reason));
    }

    fn part(&self, name: &'static str, begin: SystemTime, end: SystemTime, attributes: Attributes) {
        let builder = SpanBuilder::from_name(name)
            .with_start_time(begin)
            .with_attributes(attributes.into_iter().map(key_value));
        self.tracer.build_with_context(builder, &self.context).end_with_timestamp(end);
    }
}

fn key_value((key, value): (&'static str, Value)) -> KeyValue {
    let value = match value {
        Value::Text(text) => text.into(),
        Value::Number(number) => number.into(),
        Value::Texts(texts) => {
            let texts: Vec<StringValue> = texts.into_iter().map(StringValue::from).collect();
            opentelemetry::Value::Array(Array::String(texts))
        }
    };
    KeyValue::new(key, value)
}
