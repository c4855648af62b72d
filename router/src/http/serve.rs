//! The routes, the listener, and the end of both.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use utoipa::OpenApi;

use super::{kv, kv_events, kv_node, observe, operate};
use crate::app::App;
use crate::dialects::{Dialect, anthropic, openai, responses, tgi};
use crate::error::ApiError;
use crate::limits::{HEADER_TIMEOUT, SPARE_CONNECTIONS};
use crate::openapi::ApiDoc;
use crate::tenants::require_key;

const DOCS_PAGE: &str = include_str!("docs.html");

/// All routes.
pub fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(openai::chat::chat_completions))
        .route("/v1/completions", post(openai::completions::completions))
        .route("/v1/models", get(openai::models::list_models))
        .route("/v1/models/{*id}", get(openai::models::get_model))
        .route("/v1/responses", post(responses::route::create))
        .route("/v1/responses/{id}", get(responses::route::get).delete(responses::route::delete))
        .route("/v1/messages", post(anthropic::messages::create))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .route("/", post(tgi::generate::root).get(|| async { Redirect::temporary("/docs") }))
        .route("/generate", post(tgi::generate::generate))
        .route("/generate_stream", post(tgi::generate::generate_stream))
        .route("/info", get(tgi::info::info))
        .route("/tokenize", post(tgi::tokenize::tokenize))
        .route("/chat_tokenize", post(tgi::tokenize::chat_tokenize))
        .route("/invocations", post(tgi::platforms::invocations))
        .route("/vertex", post(tgi::platforms::vertex))
        .route("/v1/kv", get(kv::totals))
        .route("/v1/kv/events", get(kv_events::events))
        .route("/v1/kv/tree", get(kv::tree))
        .route("/v1/kv/tree/{id}", get(kv_node::show).delete(kv::remove))
        .route("/v1/kv/tree/{id}/pin", post(kv_node::pin).delete(kv_node::unpin))
        .route("/health", get(operate::health))
        .route("/livez", get(operate::livez))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .route("/openapi.json", get(|| async { axum::Json(ApiDoc::openapi()) }))
        .route("/docs", get(|| async { Html(DOCS_PAGE) }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        // Bodies are limited where they are read, with a message that names the flag.
        .layer(axum::extract::DefaultBodyLimit::disable())
        // After all routes and around the fallbacks: what is not listed is not open either.
        .layer(axum::middleware::from_fn_with_state(app.clone(), require_key))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}

async fn unknown_route(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    Dialect::of_path(&path).error_response(&ApiError::UnknownRoute { path }).into_response()
}

async fn unknown_method(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let method: String = request.method().as_str().chars().take(32).collect();
    Dialect::of_path(&path).error_response(&ApiError::UnknownMethod { path, method })
}

/// Serves connections until `stop` is ready, then closes idle ones and waits for the others to finish their answers.
///
/// HTTP/1.1. Connections are bounded; headers must arrive in time; answers leave at once (no Nagle).
pub async fn serve(
    listener: TcpListener,
    routes: Router,
    max_requests: usize,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let connections = Arc::new(Semaphore::new(max_requests + SPARE_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit.map_err(io::Error::other)?,
            () = &mut stop => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection is gone already");
            continue;
        }
        let service = TowerToHyperService::new(routes.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
    Ok(())
}

/// Out of file descriptors is no reason to end, nor to spin; a connection that died in the queue is nothing.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
