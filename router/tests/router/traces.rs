//! The spans of requests, as a collector gets them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use trunkline_router::trace::Exporter;

use crate::support::Router;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let of_resources = request.into_inner().resource_spans.into_iter();
        let spans =
            of_resources.flat_map(|of_resource| of_resource.scope_spans).flat_map(|scope| scope.spans);
        self.spans.lock().unwrap().extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Starts a collector, and makes `router` send to it.
    async fn of(router: &Router) -> (Self, Exporter) {
        let collector = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = TraceServiceServer::new(collector.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        let exporter = trunkline_otlp::start(&url).unwrap();
        assert!(router.app.begin_span.set(exporter.begin.clone()).is_ok());
        (collector, exporter)
    }

    /// Returns the spans after all are sent, those of one request by name.
    async fn finish(self, exporter: Exporter) -> Vec<BTreeMap<String, Span>> {
        exporter.stop.await;
        let spans = std::mem::take(&mut *self.spans.lock().unwrap());
        let mut by_request: BTreeMap<Vec<u8>, BTreeMap<String, Span>> = BTreeMap::new();
        for span in spans {
            let before = by_request.entry(span.trace_id.clone()).or_default().insert(span.name.clone(), span);
            assert_eq!(before, None, "each name occurs once in a request");
        }
        by_request.into_values().collect()
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
    let router = Router::default().await;
    let (collector, exporter) = Collector::of(&router).await;
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

    let requests = collector.finish(exporter).await;
    assert_eq!(requests.len(), 2, "other routes have no spans");
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
async fn a_refused_request_names_its_error_and_an_unsampled_one_has_no_span() {
    let router = Router::default().await;
    let (collector, exporter) = Collector::of(&router).await;
    router.post("/v1/completions", &json!({"prompt": vec![7; 3], "max_tokens": 0.5})).await;
    let mut connection = router.connect().await;
    let unsampled = format!("00-{TRACE}-{PARENT}-00");
    let body = json!({"prompt": vec![7; 3], "max_tokens": 1}).to_string();
    let headers = [("traceparent", unsampled.as_str()), ("content-type", "application/json")];
    connection.request_with("POST", "/v1/completions", &headers, body.as_bytes()).await.ok();
    router.wait_idle().await;

    let requests = collector.finish(exporter).await;
    assert_eq!(requests.len(), 1);
    let span = requests[0].values().next().unwrap();
    assert!(attribute(span, "error.type").is_some());
    // By the conventions, an error of the client is none of the server's.
    assert_ne!(span.status.as_ref().map(|status| status.code), Some(StatusCode::Error as i32));
}
