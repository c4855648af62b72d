//! The outermost middleware: gives each request an id, a log line, metrics, and an answer even if its handler panics.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use trunkline_api::app::App;
use trunkline_api::dialect::Errors;
use trunkline_api::respond::Failure;
use trunkline_api::route::{Kind, Route};
use trunkline_base::error::{ApiError, ErrorClass};
use trunkline_base::metrics::{RouteLabel, RouteLabels};
use trunkline_base::request_id::RequestId;
use trunkline_base::tenants::Caller;
use trunkline_base::trace::{ACCESS_LOG, Record, RequestTrace};
use trunkline_http::LongestPoll;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Runs a request and records its outcome.
pub async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let arrived = Instant::now();
    let id = sent_id(&request).unwrap_or_else(RequestId::random);
    let row = Route::of(&request);
    request.extensions_mut().insert(row);
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unmatched".to_owned());
    let method = request.method().clone();
    let operation = row.filter(|row| row.method == method).and_then(Route::operation);
    let id = match operation.map(|operation| begin_trace(&app, &request, operation, &route, &id)) {
        Some(trace) => id.with_trace(trace),
        None => id,
    };
    request.extensions_mut().insert(id.clone());
    let request_id = id.as_str();
    let errors = Errors::of(&request);
    let span = tracing::info_span!("request", id = request_id);
    let polls =
        app.metrics.http_longest_poll_seconds.get_or_create_owned(&RouteLabel { route: route.clone() });
    let mut longest = LongestPoll::new(polls);
    let handled =
        longest.of_future(AssertUnwindSafe(next.run(request).instrument(span)).catch_unwind()).await;
    let mut response = handled.unwrap_or_else(|_| {
        // The panic hook has already logged the message and place of the panic.
        tracing::error!(request_id, route, "a handler panicked");
        errors.response(&ApiError::Bug { request_id: id.clone() })
    });

    let status = response.status().as_u16();
    let method = known_method(method.as_str());
    app.metrics.http_requests.get_or_create(&RouteLabels { route: route.clone(), method, status }).inc();
    let ms = u64::try_from(arrived.elapsed().as_millis()).unwrap_or(u64::MAX);
    let tenant = response.extensions().get::<Caller>().and_then(Caller::name);
    if let Some(trace) = id.trace() {
        trace.update(|record| {
            record.status = Some(status);
            record.tenant = tenant.map(str::to_owned);
        });
    }
    match response.extensions().get::<Failure>().cloned() {
        Some(Failure { code, class, field }) => {
            // What follows a field's name may be a key that the client made up, and no text of a request is logged.
            let field = field.as_deref().and_then(|field| field.split(['.', '[']).next());
            let is_refused = id.trace().is_none_or(|trace| trace.update(|record| record.fail(code)));
            let is_probe = row.is_some_and(|row| row.kind == Kind::Probes);
            if !is_probe {
                app.metrics.observe_failure(class, code);
            }
            let ids = id.trace().and_then(RequestTrace::span_ids);
            let (trace_id, span_id) = (ids.map(|ids| ids.trace()), ids.map(|ids| ids.span()));
            macro_rules! log {
                ($level:ident, $message:literal) => {
                    tracing::$level!(
                        target: ACCESS_LOG,
                        request_id, trace_id, span_id, route, status, code, field, ms, tenant, $message
                    )
                };
            }
            if class == ErrorClass::Bug {
                log!(error, "request failed");
            } else if is_probe {
                log!(debug, "request refused");
            } else if is_refused {
                log!(info, "request refused");
            }
        }
        None => {
            tracing::debug!(target: ACCESS_LOG, request_id, route, status, ms, tenant, "request answered")
        }
    }
    if let Ok(value) = HeaderValue::from_str(request_id) {
        if errors == Errors::Anthropic {
            // Anthropic's clients read this header.
            response.headers_mut().insert(HeaderName::from_static("request-id"), value.clone());
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response.map(|body| longest.of_body(body))
}

/// Begins the record of a request that generates, and its span if there is an exporter.
fn begin_trace(
    app: &App,
    request: &Request,
    operation: &'static str,
    route: &str,
    id: &RequestId,
) -> RequestTrace {
    let record = Record {
        request_id: id.to_string(),
        operation,
        route: route.to_owned(),
        model: app.served.model.served_name.clone(),
        adapter: None,
        arrived: SystemTime::now(),
        status: None,
        tenant: None,
        error: None,
        is_aborted: false,
        tokens: None,
        finish_reasons: Vec::new(),
        grammar: None,
        sequences: Vec::new(),
    };
    RequestTrace::begin(record, request.headers(), app.telemetry.clone())
}

/// Returns the id that the client or a proxy sent, if it is valid.
fn sent_id(request: &Request) -> Option<RequestId> {
    RequestId::from_client(request.headers().get(REQUEST_ID)?.to_str().ok()?)
}

/// Returns the method as a label. Unknown methods share one, so that clients cannot create labels.
fn known_method(method: &str) -> String {
    match method {
        "GET" | "POST" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "PATCH" => method.to_owned(),
        _ => "other".to_owned(),
    }
}
