//! The table of routes, and the middleware around them.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{Html, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use super::observe::observe;
use crate::api::app::App;
use crate::api::dialect::Dialect;
use crate::api::openapi;
use crate::api::{anthropic, kv, models, openai, operate, responses, tgi, usage, vectors};
use crate::error::ApiError;
use crate::http::announce_close;
use crate::http::browser::{BrowserGuard, Foreign};
use crate::http::cors::{self, Origin};
use crate::limits::MAX_HEADER_FIELDS;
use crate::tenants::{Caller, ClientNetwork, PUBLIC, RateSlot};

const DOCS_PAGE: &str = include_str!("../api/docs.html");

pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/kv", get(kv::tree::totals))
        .route("/v1/kv/events", get(kv::events::events))
        .route("/v1/kv/tree", get(kv::tree::tree))
        .route("/v1/kv/tree/{id}", get(kv::node::show).delete(kv::tree::remove))
        .route("/v1/kv/tree/{id}/pin", post(kv::node::pin).delete(kv::node::unpin))
        .route("/v1/usage", get(usage::usage))
        // Only for the routes above, whose requests take no place.
        .route_layer(axum::middleware::from_fn_with_state(app.clone(), charge))
        .route("/v1/chat/completions", post(openai::chat::chat_completions))
        .route("/v1/chat/completions/render", post(openai::render::render_chat))
        .route("/v1/completions", post(openai::completions::completions))
        .route("/v1/completions/render", post(openai::render::render_completion))
        .route("/v1/models", get(models::list_models))
        .route("/v1/models/{*id}", get(models::get_model))
        .route("/v1/responses", post(responses::route::create))
        .route("/v1/responses/input_tokens", post(responses::route::input_tokens))
        .route("/v1/responses/{id}", get(responses::route::get).delete(responses::route::delete))
        .route("/v1/responses/{id}/input_items", get(responses::items::input_items))
        .route("/v1/responses/{id}/cancel", post(responses::route::cancel))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .route("/", post(tgi::generate::root).get(|| async { Redirect::temporary("/docs") }))
        .route("/generate", post(tgi::generate::generate))
        .route("/generate_stream", post(tgi::generate::generate_stream))
        .route("/info", get(tgi::info::info))
        .route("/tokenize", post(tgi::tokenize::tokenize))
        .route("/chat_tokenize", post(tgi::tokenize::chat_tokenize))
        .route("/detokenize", post(tgi::detokenize::detokenize))
        .route("/invocations", post(tgi::platforms::invocations))
        .route("/vertex", post(tgi::platforms::vertex))
        .route("/v1/embeddings", post(vectors::embeddings::embeddings))
        .route("/embed", post(vectors::embeddings::embed))
        .route("/v1/rerank", post(vectors::rerank::rerank))
        .route("/v2/rerank", post(vectors::rerank::rerank))
        .route("/rerank", post(vectors::rerank::rerank_tei))
        .route("/v1/score", post(vectors::rerank::score))
        .route("/score", post(vectors::rerank::score))
        .route("/v1/classify", post(vectors::classify::classify))
        .route("/classify", post(vectors::classify::classify))
        .route("/predict", post(vectors::classify::predict))
        .route("/health", get(operate::health))
        .route("/ping", get(operate::ping))
        .route("/livez", get(operate::livez))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .route("/openapi.json", get(openapi::document))
        .route("/docs", get(|| async { Html(DOCS_PAGE) }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        // Bodies are limited where they are read, with an error that names the flag.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(app.clone(), limit_header))
        // Added after the routes and around the fallbacks, so that unknown routes need a key, too.
        .layer(axum::middleware::from_fn_with_state(app.clone(), require_key))
        .layer(axum::middleware::from_fn(announce_close))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app)
}

/// Returns all routes, answering preflight requests of browsers if there are `origins`. A `guard` refuses foreign web
/// pages.
pub fn routes_with_cors(app: Arc<App>, origins: &[Origin], guard: Option<BrowserGuard>) -> Router {
    let routes = guarded(routes(app), guard);
    match cors::layer(origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    }
}

/// Returns the routes of `--metrics-port`: the probes, and metrics without samples of tenants. They need no key.
pub fn metrics_routes(app: Arc<App>, guard: Option<BrowserGuard>) -> Router {
    let routes = Router::new()
        .route("/livez", get(operate::livez))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        .layer(Extension(Caller::stranger()))
        .layer(axum::middleware::from_fn_with_state(app.clone(), limit_header))
        .layer(axum::middleware::from_fn(announce_close))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe))
        .with_state(app);
    guarded(routes, guard)
}

fn guarded(routes: Router, guard: Option<BrowserGuard>) -> Router {
    match guard {
        Some(guard) => {
            routes.layer(axum::middleware::from_fn_with_state(Arc::new(guard), refuse_foreign_pages))
        }
        None => routes,
    }
}

/// Refuses a header that is too large, with an error that names the limit. The HTTP library refuses much larger headers
/// before they reach this function.
async fn limit_header(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let uri = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    // On the wire a field has a colon, a space and a line break in addition to its name and value.
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    let num_fields = request.headers().len();
    if num_fields > MAX_HEADER_FIELDS {
        let error = ApiError::HeaderFields { num_fields, limit: MAX_HEADER_FIELDS };
        return Dialect::of_path(request.uri().path()).error_response(&error);
    }
    let limit = app.limits.max_header_bytes;
    if uri + fields.sum::<usize>() > limit {
        return Dialect::of_path(request.uri().path()).error_response(&ApiError::HeaderTooLarge { limit });
    }
    next.run(request).await
}

/// Refuses requests without a valid key, and stores the caller of the others in their extensions.
async fn require_key(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match app.admission.access.caller(request.uri().path(), request.headers()) {
        Ok(caller) => {
            let caller = caller.from_network(request.extensions().get::<ClientNetwork>().copied());
            let slot = RateSlot::default();
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(slot.clone());
            let dialect = Dialect::of_path(request.uri().path());
            let mut response = next.run(request).await;
            response.extensions_mut().insert(caller);
            slot.write(dialect.rate_headers(), response.headers_mut());
            response
        }
        Err(error) => Dialect::of_path(request.uri().path()).error_response(&error),
    }
}

/// Charges a request to its tenant's rate of requests.
async fn charge(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.admission.charge(&app.served, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => Dialect::of_path(request.uri().path()).error_response(&error),
    }
}

/// Refuses requests of web pages that are not this machine's own. Probes are answered.
async fn refuse_foreign_pages(
    State(guard): State<Arc<BrowserGuard>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    match guard.check(request.uri(), request.headers()) {
        Err(Foreign { header, value }) if !PUBLIC.contains(&path) => {
            let value = value.chars().take(128).collect();
            Dialect::of_path(path).error_response(&ApiError::ForeignPage { header, value })
        }
        _ => next.run(request).await,
    }
}

async fn unknown_route(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let similar = openapi::similar_path(&path);
    Dialect::of_path(&path).error_response(&ApiError::UnknownRoute { path, similar })
}

async fn unknown_method(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let method: String = request.method().as_str().chars().take(32).collect();
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let allowed = route.map(openapi::methods_of).unwrap_or_default();
    Dialect::of_path(&path).error_response(&ApiError::UnknownMethod { path, method, allowed })
}
