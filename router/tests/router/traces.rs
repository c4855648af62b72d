//! The spans of requests, as a collector gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use trunkline_base::limits::Limits;
use trunkline_base::trace::Exporter;
use trunkline_otlp::LauncherSpan;

use crate::support::{Router, ShardPlan};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector that keeps what it gets, by gRPC and by HTTP.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    /// The number of measurements by name.
    measured: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// Everything that a collector got.
struct Collected {
    /// The spans of each request by name.
    requests: Vec<BTreeMap<String, Span>>,
    steps: Vec<Span>,
    measured: BTreeMap<String, u64>,
}

impl Collector {
    fn take_spans(&self, request: ExportTraceServiceRequest) {
        let of_resources = request.resource_spans.into_iter();
        let spans =
            of_resources.flat_map(|of_resource| of_resource.scope_spans).flat_map(|scope| scope.spans);
        self.spans.lock().unwrap().extend(spans);
    }

    fn take_metrics(&self, request: ExportMetricsServiceRequest) {
        let of_resources = request.resource_metrics.into_iter();
        let metrics =
            of_resources.flat_map(|of_resource| of_resource.scope_metrics).flat_map(|scope| scope.metrics);
        for metric in metrics {
            let Some(Data::Histogram(histogram)) = metric.data else { panic!("{metric:?} is no histogram") };
            let count = histogram.data_points.iter().map(|point| point.count).sum();
            self.measured.lock().unwrap().insert(metric.name, count);
        }
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.take_spans(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.take_metrics(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector, and makes `router` send to it by `protocol`.
    async fn of(router: &Router, protocol: &str) -> (Self, Exporter) {
        Self::of_launched(router, protocol, None).await
    }

    /// Does so in a router that is a part of a start.
    async fn of_launched(
        router: &Router,
        protocol: &str,
        launcher: Option<LauncherSpan>,
    ) -> (Self, Exporter) {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        if protocol == "grpc" {
            let server = tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(collector.clone()))
                .add_service(MetricsServiceServer::new(collector.clone()));
            tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        } else {
            let (traces, metrics) = (collector.clone(), collector.clone());
            let routes = axum::Router::new()
                .route(
                    "/v1/traces",
                    post(async move |body: Bytes| traces.take_spans(Message::decode(body).unwrap())),
                )
                .route(
                    "/v1/metrics",
                    post(async move |body: Bytes| metrics.take_metrics(Message::decode(body).unwrap())),
                );
            tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        }
        let exporter = trunkline_otlp::start_by(&url, protocol, launcher).unwrap();
        assert!(router.app.telemetry.set(exporter.telemetry.clone()).is_ok());
        (collector, exporter)
    }

    /// Returns what arrived after everything is sent.
    async fn finish(self, exporter: Exporter) -> Collected {
        exporter.stop.await;
        let spans = std::mem::take(&mut *self.spans.lock().unwrap());
        let (steps, spans): (Vec<_>, Vec<_>) = spans.into_iter().partition(|span| span.name == "step");
        let mut requests: BTreeMap<Vec<u8>, BTreeMap<String, Span>> = BTreeMap::new();
        for span in spans {
            let before = requests.entry(span.trace_id.clone()).or_default().insert(span.name.clone(), span);
            assert_eq!(before, None, "each name occurs once in a request");
        }
        let measured = std::mem::take(&mut *self.measured.lock().unwrap());
        Collected { requests: requests.into_values().collect(), steps, measured }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let value = span.attributes.iter().find(|attribute| attribute.key == key)?.value.clone()?.value?;
    Some(match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_tree_of_spans_in_the_clients_trace() {
    for protocol in ["grpc", "http/protobuf"] {
        is_a_tree_of_spans_in_the_clients_trace(protocol).await;
    }
}

async fn is_a_tree_of_spans_in_the_clients_trace(protocol: &str) {
    let router = Router::default().await;
    let (collector, exporter) = Collector::of(&router, protocol).await;
    let body =
        json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true, "stream": true}).to_string();
    let parent = format!("00-{TRACE}-{PARENT}-01");
    let headers = [("traceparent", parent.as_str()), ("content-type", "application/json")];
    let mut connection = router.connect().await;
    let streamed = connection.request_with("POST", "/v1/completions", &headers, body.as_bytes()).await;
    assert_eq!(streamed.status, 200);
    // The second request has no parent, and finds its prompt in the cache.
    assert_eq!(router.post_bytes("/v1/completions", body.as_bytes()).await.status, 200);
    router.get("/metrics").await;
    router.wait_idle().await;

    let Collected { requests, steps, measured } = collector.finish(exporter).await;
    assert_eq!(requests.len(), 2, "other routes have no spans");
    for name in ["request.duration", "time_to_first_token", "time_per_output_token"] {
        assert_eq!(measured.get(&format!("gen_ai.server.{name}")), Some(&2), "{name}: {measured:?}");
    }
    assert!(!steps.is_empty(), "at least the first step has a span");
    for link in steps.iter().flat_map(|step| &step.links) {
        let mut spans = requests.iter().flat_map(BTreeMap::values);
        let is_linked = |span: &&Span| (&span.trace_id, &span.span_id) == (&link.trace_id, &link.span_id);
        let request = spans.find(is_linked).expect("a step is linked to its requests");
        assert_eq!(request.kind, SpanKind::Server as i32);
    }
    let is_child = |spans: &BTreeMap<String, Span>| spans.values().any(|span| hex(&span.trace_id) == TRACE);
    let (children, roots): (Vec<_>, Vec<_>) = requests.into_iter().partition(is_child);
    for (spans, parent, cached) in [(&children[0], PARENT, "0"), (&roots[0], "", "19")] {
        let request = &spans[&format!("text_completion {}", router.app.served.model.served_name)];
        assert_eq!(hex(&request.parent_span_id), parent);
        assert_eq!(request.kind, SpanKind::Server as i32);
        for (key, expected) in [
            ("gen_ai.operation.name", "text_completion"),
            ("gen_ai.usage.input_tokens", "20"),
            ("gen_ai.usage.output_tokens", "5"),
            ("gen_ai.usage.cache_read.input_tokens", cached),
            ("http.route", "/v1/completions"),
            ("http.response.status_code", "200"),
        ] {
            assert_eq!(attribute(request, key).as_deref(), Some(expected), "{key}");
        }
        let mut last = request.start_time_unix_nano;
        for name in ["queue", "prefill", "decode"] {
            let part = &spans[name];
            assert_eq!(part.parent_span_id, request.span_id);
            assert!(
                last <= part.start_time_unix_nano && part.start_time_unix_nano <= part.end_time_unix_nano
            );
            last = part.end_time_unix_nano;
        }
        assert!(last <= request.end_time_unix_nano);
        assert_eq!(attribute(&spans["prefill"], "trunkline.prompt_tokens.cached").as_deref(), Some(cached));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_a_trace_with_the_launchers_span() {
    let (launcher, began) = ("b7ad6b7169203331", 1_800_000_000_000_000_000_u64);
    for (outside, parent) in [("-", ""), (PARENT, PARENT)] {
        let router = Router::default().await;
        let times = format!("{outside} {began} {}", began + 5);
        let told = LauncherSpan::parse(&format!("00-{TRACE}-{launcher}-01"), &times);
        assert!(told.is_some());
        let (collector, exporter) = Collector::of_launched(&router, "grpc", told).await;
        for _ in 0..2 {
            exporter.telemetry.started();
        }
        let Collected { requests, .. } = collector.finish(exporter).await;
        let spans = &requests[0];
        assert_eq!(spans.keys().collect::<Vec<_>>(), ["resolve", "start", "start router"]);
        let whole = &spans["start"];
        assert_eq!((hex(&whole.trace_id), hex(&whole.span_id)), (TRACE.to_owned(), launcher.to_owned()));
        assert_eq!(hex(&whole.parent_span_id), parent);
        assert!(whole.start_time_unix_nano == began && spans["resolve"].end_time_unix_nano == began + 5);
        for part in ["resolve", "start router"] {
            assert_eq!(hex(&spans[part].parent_span_id), launcher);
        }
    }
    assert_eq!(LauncherSpan::parse("00-1-2", "- 1 -"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_names_its_error_and_an_unsampled_one_has_no_span() {
    let router = Router::default().await;
    let (collector, exporter) = Collector::of(&router, "grpc").await;
    router.post("/v1/completions", &json!({"prompt": vec![7; 3], "max_tokens": 0.5})).await;
    let mut connection = router.connect().await;
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let body = json!({"prompt": vec![7; 3], "max_tokens": 1}).to_string();
    let headers = [("traceparent", unsampled.as_str()), ("content-type", "application/json")];
    connection.request_with("POST", "/v1/completions", &headers, body.as_bytes()).await.ok();
    router.wait_idle().await;

    let Collected { requests, steps, measured } = collector.finish(exporter).await;
    assert_eq!((requests.len(), steps.len()), (1, 0), "only the refused request is sampled");
    assert_eq!(measured["gen_ai.server.request.duration"], 2, "each request is measured");
    let span = requests[0].values().next().unwrap();
    assert!(attribute(span, "error.type").is_some());
    // By the conventions, an error of the client is none of the server's.
    assert_ne!(span.status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_from_the_store_and_grammars_have_spans() {
    let folder = tempfile::tempdir().unwrap();
    let plan = ShardPlan { store: Some((folder.path().join("store"), 64)), ..ShardPlan::saying("!") };
    let mut router = Router::start(plan.clone(), Limits::default()).await;
    let prompt: Vec<u32> = (0..100).collect();
    router.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.ok();
    router.wait("stored blocks", |app| app.served.stats.borrow().store_blocks == 12).await;
    router.kill_shard();
    router.wait("the loss", |app| app.served.shard_info().is_err()).await;
    router.start_shard(plan).await;
    router.wait("stored blocks", |app| app.served.stats.borrow().store_blocks == 12).await;

    let (collector, exporter) = Collector::of(&router, "grpc").await;
    let body = json!({"prompt": prompt, "max_tokens": 1, "guided_regex": "!+"});
    router.post("/v1/completions", &body).await.ok();
    router.wait_idle().await;
    let Collected { requests, .. } = collector.finish(exporter).await;
    let spans = &requests[0];
    for name in ["restore", "prefill"] {
        let restored = attribute(&spans[name], "trunkline.prompt_tokens.restored");
        assert_eq!(restored.as_deref(), Some("96"), "{name}");
    }
    assert_eq!(attribute(&spans["prefill"], "trunkline.prompt_tokens.cached").as_deref(), Some("96"));
    assert!(spans["grammar"].end_time_unix_nano <= spans["queue"].start_time_unix_nano);
}

#[test]
fn an_unknown_protocol_is_refused() {
    let error =
        trunkline_otlp::start_by("http://127.0.0.1:4318", "http/json", None).err().unwrap().to_string();
    assert_eq!(error, "`OTEL_EXPORTER_OTLP_PROTOCOL` is \"http/json\"; hint: use `grpc` or `http/protobuf`");
}
