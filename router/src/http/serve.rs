//! The listener: accepts connections, serves HTTP on them, and ends both.

use std::io;
use std::sync::Arc;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::stall::StallGuard;
use super::tls::Tls;
use crate::limits::{REFUSED_HEADER_BYTES, REFUSED_HEADER_FIELDS, SEND_BUFFER_BYTES, ServerLimits};
use crate::metrics::Metrics;

/// Serves connections until `stop` is ready, then closes idle ones and waits for the others to finish their answers.
///
/// HTTP/1.1. Connections are bounded; handshakes and headers must arrive in time; answers leave at once (no Nagle), and
/// a client that takes nothing of its answer for too long loses it.
pub async fn serve(listener: TcpListener, host: Host, stop: impl Future<Output = ()>) -> io::Result<()> {
    // What is accepted inherits it. It bounds what a client that does not read makes the kernel keep.
    SockRef::from(&listener).set_send_buffer_size(SEND_BUFFER_BYTES)?;
    let max_connections = host.limits.max_concurrent_requests + host.limits.spare_connections;
    let connections = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    let watching = host.tls.clone().map(|tls| AbortOnDrop::spawn(tls.watch(host.metrics.clone())));
    let host = Arc::new(host);
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

/// What all connections share.
pub struct Host {
    /// Answers requests.
    pub routes: Router,
    /// Certificate and key; without them connections are in the clear.
    pub tls: Option<Arc<Tls>>,
    /// Bounds connections, headers and waits.
    pub limits: Arc<ServerLimits>,
    /// Counts stalled connections and reloads of the certificate.
    pub metrics: Arc<Metrics>,
}

impl Host {
    /// A connection's life.
    async fn connection(&self, stream: TcpStream, watcher: Watcher) {
        let limit = self.limits.client_stall_timeout;
        let stream = StallGuard::new(stream, limit, self.metrics.stalled_connections.clone());
        let Some(tls) = &self.tls else { return self.http(stream, watcher).await };
        let limit = self.limits.timeouts.handshake;
        match tokio::time::timeout(limit, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!(limit_s = limit.as_secs_f64(), "TLS handshake took too long"),
        }
    }

    async fn http(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, watcher: Watcher) {
        let max_header_bytes = self.limits.max_header_bytes + REFUSED_HEADER_BYTES;
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.timeouts.header)
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
