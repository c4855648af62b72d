//! The listener: accepts connections and serves HTTP on them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use super::stall::StallGuard;
use super::tls::Tls;
use trunkline_base::limits::{REFUSED_HEADER_BYTES, REFUSED_HEADER_FIELDS, SEND_BUFFER_BYTES, ServerLimits};
use trunkline_base::metrics::Metrics;
use trunkline_base::tenants::{ClientNetwork, SharedPlaces};

/// Serves HTTP/1.1 connections until `stop` resolves, then closes idle ones and waits until the others are answered.
///
/// Once `leave` resolves, no connection is accepted. Open ones are served as before, but each response announces that
/// its connection closes, so that clients move to another process that listens on the same socket. `left` gets a
/// message when this process has closed the socket. Returns when all connections are closed.
///
/// The number of connections is bounded, and those of one address leave room for others. Handshakes and headers have
/// time limits. Responses are sent without delay (Nagle's algorithm is off). A client that reads nothing of its
/// response for too long is disconnected.
pub async fn serve(
    listener: TcpListener,
    mut host: Host,
    leave: impl Future<Output = ()>,
    stop: impl Future<Output = ()>,
    left: oneshot::Sender<()>,
) -> io::Result<()> {
    // Accepted connections inherit the size. It bounds the kernel's memory for clients that do not read.
    SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let leaves = Arc::new(AtomicBool::new(false));
    host.routes = host.routes.layer(from_fn_with_state(leaves.clone(), announce_leave));
    let max_connections = host.max_connections;
    let connections = Arc::new(Semaphore::new(max_connections));
    let places = Arc::<SharedPlaces>::default();
    let graceful = GracefulShutdown::new();
    let watching = host.tls.clone().map(|tls| AbortOnDrop::spawn(tls.watch(host.metrics.clone())));
    let host = Arc::new(host);
    let (mut leave, mut stop) = (std::pin::pin!(leave), std::pin::pin!(stop));
    let is_leaving = loop {
        let permit = tokio::select! {
            permit = connections.clone().acquire_owned() => permit.map_err(io::Error::other)?,
            () = &mut leave => break true,
            () = &mut stop => break false,
        };
        let (stream, address) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    pause_after(&error).await;
                    continue;
                }
            },
            () = &mut leave => break true,
            () = &mut stop => break false,
        };
        let network = ClientNetwork::of(address.ip());
        let place = match places.take(&network.to_string(), 1, connections.available_permits()) {
            Ok(place) => place,
            Err(num_open) => {
                let limit = max_connections;
                tracing::warn!(%network, num_open, limit, "connection closed, the rest is reserved for others");
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "connection closed before it was served");
            continue;
        }
        let (host, watcher) = (host.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _held = (permit, place);
            host.connection(stream, network, watcher).await;
        });
    };
    drop((listener, watching));
    if is_leaving {
        leaves.store(true, Ordering::Relaxed);
        // This fails if nobody wants to know.
        let _ = left.send(());
        let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
        tokio::select! {
            closed = connections.acquire_many(all) => drop(closed.map_err(io::Error::other)?),
            () = &mut stop => {}
        }
    }
    graceful.shutdown().await;
    Ok(())
}

/// Adds `connection: close` to each response once `leaves` is set.
async fn announce_leave(State(leaves): State<Arc<AtomicBool>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if leaves.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The state that all connections share.
pub struct Host {
    pub routes: Router,
    /// The certificate and its key; without them connections are not encrypted.
    pub tls: Option<Arc<Tls>>,
    pub limits: Arc<ServerLimits>,
    pub max_connections: usize,
    /// Counts stalled connections and reloads of the certificate.
    pub metrics: Arc<Metrics>,
}

impl Host {
    async fn connection(&self, stream: TcpStream, network: ClientNetwork, watcher: Watcher) {
        let limit = self.limits.client_stall_timeout;
        let stream = StallGuard::new(stream, limit, self.metrics.stalled_connections.clone());
        let Some(tls) = &self.tls else { return self.http(stream, network, watcher).await };
        let limit = self.limits.timeouts.handshake;
        match tokio::time::timeout(limit, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream, network, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!(limit_s = limit.as_secs_f64(), "TLS handshake took too long"),
        }
    }

    async fn http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        network: ClientNetwork,
        watcher: Watcher,
    ) {
        let routes = self.routes.clone().map_request(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(network);
            request
        });
        let max_header_bytes = self.limits.max_header_bytes + REFUSED_HEADER_BYTES;
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.timeouts.header)
            .max_header_size(max_header_bytes)
            .max_headers(REFUSED_HEADER_FIELDS)
            .max_buf_size(max_header_bytes)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// A task that is aborted when this is dropped.
pub struct AbortOnDrop(JoinHandle<()>);

impl AbortOnDrop {
    pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(task))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Pauses after an error of `accept`, for example if the process has no file descriptors left, so that the loop does
/// not spin. A connection that was closed before it was accepted needs no pause.
async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "cannot accept connections");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
