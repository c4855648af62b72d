//! Publishes KV events on a ZeroMQ PUB socket. A message has three frames: the topic, the number of the batch, and the
//! batch. A second socket sends batches again to readers that missed them ([`replay`]).
//!
//! ```text
//! publish ──▶ Kept ──┬─▶ a task for each subscriber        (`publish`, PUB)
//!             (ring) └─▶ a task for each reader that asks  (`replay`, ROUTER)
//! ```
//!
//! Readers have no queues of their own. A subscriber that falls behind the oldest kept batch goes on with it, so all
//! readers together hold no more than what is kept. The sockets speak ZMTP themselves ([`zmtp`]), because neither of
//! the libraries for it bounds what one reader holds: the `zeromq` crate reserves the length that a frame announces and
//! queues 100,000 messages for each reader, and libzmq bounds messages by number and not by bytes.
//!
//! This is a separate crate, so that builds without it need not compile it. It uses no other crate of ours. Begin with
//! `publish`.

mod kept;
mod publish;
pub mod replay;
pub mod zmtp;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use kept::{Kept, MAX_KEPT_BATCHES, MAX_KEPT_BYTES, MAX_UNREAD_BATCHES};

/// The most readers of one socket. Further ones wait in the listener's backlog until another has left.
pub const MAX_READERS: usize = 64;
/// The first and the longest pause before connecting again. The pause doubles.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// The pause after a connection could not be accepted, which happens without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Publishes batches. Dropping it closes the sockets and all connections.
pub struct ZmqPublisher {
    source: Source,
    next: watch::Sender<u64>,
    address: Option<String>,
    sockets: JoinSet<()>,
}

/// What a reader's task reads.
#[derive(Clone)]
pub(crate) struct Source {
    pub topic: Bytes,
    pub kept: Arc<Kept>,
    /// The number of the next batch.
    pub next: watch::Receiver<u64>,
}

/// The error when the socket cannot listen on an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("`{flag}`: cannot listen on `{address}`: {source}; hint: choose another port")]
pub struct BindError {
    flag: &'static str,
    address: String,
    #[source]
    source: io::Error,
}

impl ZmqPublisher {
    /// Listens on `address`, in the form `tcp://ADDRESS:PORT`, for readers that connect.
    pub async fn bind(address: String, topic: &str) -> Result<Self, BindError> {
        let mut publisher = Self::new(topic);
        let (listener, address) = listen("--kv-events-endpoint", address).await?;
        tracing::info!(address, "publishing KV events");
        publisher.sockets.spawn(accept(listener, publisher.source.clone(), publish::serve));
        publisher.address = Some(address);
        Ok(publisher)
    }

    /// Connects to one reader that collects from many servers, and connects again whenever the connection is lost.
    pub fn connect(address: String, topic: &str) -> Self {
        let mut publisher = Self::new(topic);
        publisher.sockets.spawn(connect(address, publisher.source.clone()));
        publisher
    }

    fn new(topic: &str) -> Self {
        let (next, number) = watch::channel(0);
        let source = Source { topic: Bytes::from(topic.to_owned()), kept: Arc::default(), next: number };
        Self { source, next, address: None, sockets: JoinSet::new() }
    }

    /// Keeps more batches from now on, and listens on `address` for readers that ask for them. Returns the address
    /// with the port that the system chose for port 0.
    pub async fn replay_on(&mut self, address: String) -> Result<String, BindError> {
        let (listener, address) = listen("--kv-events-replay-endpoint", address).await?;
        tracing::info!(address, "sending KV events again on request");
        self.source.kept.set_max_batches(MAX_KEPT_BATCHES);
        self.sockets.spawn(accept(listener, self.source.clone(), replay::serve));
        Ok(address)
    }

    /// Returns the address that a bound socket listens on, with the port that the system chose for port 0.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Sends a batch to all readers without waiting. A reader that falls too far behind sees a gap in the numbers.
    pub fn publish(&self, batch: Vec<u8>) {
        self.next.send_modify(|next| {
            self.source.kept.push(*next, Bytes::from(batch));
            *next += 1;
        });
    }
}

/// Listens on `tcp://ADDRESS:PORT`. Returns the address with the port that the system chose for port 0.
async fn listen(flag: &'static str, address: String) -> Result<(TcpListener, String), BindError> {
    let bind = async {
        let listener = TcpListener::bind(socket_address(&address)).await?;
        let bound = format!("tcp://{}", listener.local_addr()?);
        Ok((listener, bound))
    };
    bind.await.map_err(|source| BindError { flag, address: address.clone(), source })
}

fn socket_address(address: &str) -> &str {
    address.strip_prefix("tcp://").unwrap_or(address)
}

/// Serves each connection in a task of its own. Dropping the future ends all of them.
async fn accept<F>(listener: TcpListener, source: Source, serve: fn(TcpStream, Source) -> F)
where
    F: Future<Output = Result<(), zmtp::Error>> + Send + 'static,
{
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = readers.join_next() => {}
            accepted = listener.accept(), if readers.len() < MAX_READERS => match accepted {
                Ok((stream, reader)) => {
                    let connection = serve(stream, source.clone());
                    readers.spawn(async move {
                        if let Err(error) = connection.await {
                            tracing::debug!(%reader, %error, "a reader of KV events is gone");
                        }
                    });
                    if readers.len() == MAX_READERS {
                        tracing::warn!(limit = MAX_READERS, "readers of KV events take all places; others wait");
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot accept readers of KV events");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Maintains one connection. Batches without a connection are dropped, as by any PUB socket.
async fn connect(address: String, source: Source) {
    let mut pause = RECONNECT_PAUSE.0;
    loop {
        let connected =
            async { zmtp::open(TcpStream::connect(socket_address(&address)).await?, zmtp::PUB).await };
        match connected.await {
            Ok((receiver, sender)) => {
                pause = RECONNECT_PAUSE.0;
                tracing::info!(address, "publishing KV events");
                if let Err(error) = publish::serve_subscriber(receiver, sender, source.clone()).await {
                    tracing::warn!(address, %error, "lost the connection to the reader of KV events");
                }
            }
            Err(error) => tracing::warn!(address, %error, "cannot connect to the reader of KV events"),
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(RECONNECT_PAUSE.1);
    }
}
