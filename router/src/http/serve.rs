//! The routes, the listener, and the end of both.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use utoipa::OpenApi;

use super::cors::{self, Origin};
use super::stall::StallGuard;
use crate::api::app::App;
use crate::api::kv;
use crate::api::openapi::ApiDoc;
use crate::api::operate;
use crate::api::{Dialect, anthropic, openai, responses, tgi};
use crate::error::ApiError;
use crate::http::tls::Tls;
use crate::limits::{MAX_HEADER_FIELDS, REFUSED_HEADER_BYTES, REFUSED_HEADER_FIELDS, SEND_BUFFER_BYTES};
use crate::server::observe;
use crate::tenants::require_key;

const DOCS_PAGE: &str = include_str!("../api/docs.html");

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
        .route("/v1/kv", get(kv::tree::totals))
        .route("/v1/kv/events", get(kv::events::events))
        .route("/v1/kv/tree", get(kv::tree::tree))
        .route("/v1/kv/tree/{id}", get(kv::node::show).delete(kv::tree::remove))
        .route("/v1/kv/tree/{id}/pin", post(kv::node::pin).delete(kv::node::unpin))
        .route("/health", get(operate::health))
        .route("/ping", get(operate::ping))
        .route("/livez", get(operate::livez))
        .route("/readyz", get(operate::readyz))
        .route("/metrics", get(operate::metrics))
        .route("/openapi.json", get(|| async { axum::Json(ApiDoc::openapi()) }))
        .route("/docs", get(|| async { Html(DOCS_PAGE) }))
        .fallback(unknown_route)
        .method_not_allowed_fallback(unknown_method)
        // Bodies are limited where they are read, with a message that names the flag.
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn_with_state(app.clone(), limit_header))
        // After all routes and around the fallbacks: what is not listed is not open either.
        .layer(axum::middleware::from_fn_with_state(app.clone(), require_key))
        .layer(axum::middleware::from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}

/// The routes, with what answers browsers around them.
fn routes_for(app: Arc<App>, origins: &[Origin]) -> Router {
    let routes = routes(app);
    match cors::layer(origins) {
        Some(layer) => routes.layer(layer),
        None => routes,
    }
}

/// Refuses a header that is too large by the name of its limit; what is larger by far does not come here.
async fn limit_header(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let uri = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    // As on the wire: a colon, a blank and a line break around name and value.
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

async fn unknown_route(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    Dialect::of_path(&path).error_response(&ApiError::UnknownRoute { path }).into_response()
}

async fn unknown_method(State(_): State<Arc<App>>, request: Request) -> Response {
    let path: String = request.uri().path().chars().take(128).collect();
    let method: String = request.method().as_str().chars().take(32).collect();
    Dialect::of_path(&path).error_response(&ApiError::UnknownMethod { path, method })
}

/// What stands between connections and routes.
#[derive(Debug, Clone, Default)]
pub struct Front {
    /// Certificate and key; without them connections are in the clear.
    pub tls: Option<Arc<Tls>>,
    /// Origins whose scripts may call.
    pub origins: Vec<Origin>,
}

/// Serves connections until `stop` is ready, then closes idle ones and waits for the others to finish their answers.
///
/// HTTP/1.1. Connections are bounded; handshakes and headers must arrive in time; answers leave at once (no Nagle), and
/// a client that takes nothing of its answer for too long loses it.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    front: Front,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    // What is accepted inherits it. It bounds what a client that does not read makes the kernel keep.
    SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let max_connections = app.limits.max_concurrent_requests + app.limits.spare_connections;
    let connections = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    let watching = front.tls.clone().map(|tls| AbortOnDrop::spawn(tls.watch(app.metrics.clone())));
    let host = Arc::new(Host { routes: routes_for(app.clone(), &front.origins), app, tls: front.tls });
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
        let (host, watcher) = (host.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _permit = permit;
            host.connection(stream, watcher).await;
        });
    }
    drop((listener, watching));
    graceful.shutdown().await;
    Ok(())
}

/// What a connection needs.
struct Host {
    routes: Router,
    app: Arc<App>,
    tls: Option<Arc<Tls>>,
}

impl Host {
    /// A connection's life.
    async fn connection(&self, stream: TcpStream, watcher: Watcher) {
        let limit = self.app.limits.client_stall_timeout;
        let stream = StallGuard::new(stream, limit, self.app.metrics.stalled_connections.clone());
        let Some(tls) = &self.tls else { return self.http(stream, watcher).await };
        let limit = self.app.limits.timeouts.handshake;
        match tokio::time::timeout(limit, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!(limit_s = limit.as_secs_f64(), "TLS handshake took too long"),
        }
    }

    async fn http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let max_header_bytes = self.app.limits.max_header_bytes + REFUSED_HEADER_BYTES;
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.app.limits.timeouts.header)
            .max_header_size(max_header_bytes)
            .max_headers(REFUSED_HEADER_FIELDS)
            .max_buf_size(max_header_bytes)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(self.routes.clone()));
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// A task that ends with whoever began it.
struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Out of file descriptors is no reason to end, nor to spin; a connection that died in the queue is nothing.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
