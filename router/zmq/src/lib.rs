//! Publishes KV events on a ZeroMQ PUB socket. A message has three frames: the topic, the number of the batch, and the
//! batch. A second socket sends batches again to readers that missed them ([`replay`]).
//!
//! This is a separate crate, so that builds without it need not compile ZeroMQ.

pub mod replay;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;
use zeromq::{PubSocket, Socket, SocketEvent, SocketSend, ZmqError, ZmqMessage};

use replay::Kept;

/// The most batches that wait for the socket. Further batches are dropped, and their numbers are skipped.
const MAX_WAITING_BATCHES: usize = 1024;
/// The first and the longest pause before connecting again. The pause doubles.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Publishes batches. Dropping it closes the socket.
pub struct ZmqPublisher {
    batches: mpsc::Sender<(u64, Bytes)>,
    next: AtomicU64,
    address: Option<String>,
    /// The last batches, if a socket sends them again.
    kept: Option<Arc<Kept>>,
}

/// The error when the socket cannot listen on an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("`{flag}`: cannot listen on `{address}`: {source}; hint: choose another port")]
pub struct BindError {
    flag: &'static str,
    address: String,
    #[source]
    source: ZmqError,
}

impl ZmqPublisher {
    /// Listens on `address`, in the form `tcp://ADDRESS:PORT`, for readers that connect.
    pub async fn bind(address: String, topic: &str) -> Result<Self, BindError> {
        let mut socket = PubSocket::new();
        let flag = "--kv-events-endpoint";
        let bound = socket.bind(&address).await.map_err(|source| BindError { flag, address, source })?;
        let address = bound.to_string();
        tracing::info!(address, "publishing KV events");
        let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
        tokio::spawn(publish(socket, Bytes::from(topic.to_owned()), received));
        Ok(Self { batches, next: AtomicU64::new(0), address: Some(address), kept: None })
    }

    /// Connects to one reader that collects from many servers, and connects again whenever the connection is lost.
    pub fn connect(address: String, topic: &str) -> Self {
        let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
        tokio::spawn(publish_to(address, Bytes::from(topic.to_owned()), received));
        Self { batches, next: AtomicU64::new(0), address: None, kept: None }
    }

    /// Keeps the last batches from now on, and listens on `address` for readers that ask for them. Returns the address
    /// with the port that the system chose for port 0.
    pub async fn replay_on(&mut self, address: String, topic: &str) -> Result<String, BindError> {
        let kept = Arc::<Kept>::default();
        let address = replay::listen(address, topic, kept.clone()).await?;
        self.kept = Some(kept);
        Ok(address)
    }

    /// Returns the address that a bound socket listens on, with the port that the system chose for port 0.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Sends a batch to all readers without waiting. If too many batches wait, this one is dropped, and readers see a
    /// gap in the numbers.
    pub fn publish(&self, batch: Vec<u8>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let batch = Bytes::from(batch);
        if let Some(kept) = &self.kept {
            kept.push(number, batch.clone());
        }
        if self.batches.try_send((number, batch)).is_err() {
            tracing::warn!(number, "KV events dropped; readers see a gap in the numbers");
        }
    }
}

fn message(topic: &Bytes, number: u64, batch: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(topic.clone());
    message.push_back(number_frame(number));
    message.push_back(batch);
    message
}

fn number_frame(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

async fn publish(mut socket: PubSocket, topic: Bytes, mut batches: mpsc::Receiver<(u64, Bytes)>) {
    while let Some((number, batch)) = batches.recv().await {
        if let Err(error) = socket.send(message(&topic, number, batch)).await {
            tracing::warn!(%error, number, "cannot publish KV events");
        }
    }
}

/// Maintains one connection. Batches without a connection are dropped, as by any PUB socket.
async fn publish_to(address: String, topic: Bytes, mut batches: mpsc::Receiver<(u64, Bytes)>) {
    let mut pause = RECONNECT_PAUSE.0;
    loop {
        let mut socket = PubSocket::new();
        let mut states = socket.monitor();
        let connected = tokio::select! {
            connected = socket.connect(&address) => connected,
            () = discard(&mut batches) => return,
        };
        if let Err(error) = connected {
            tracing::warn!(address, %error, "cannot connect to the reader of KV events");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = discard(&mut batches) => return,
            }
            pause = (2 * pause).min(RECONNECT_PAUSE.1);
            continue;
        }
        pause = RECONNECT_PAUSE.0;
        tracing::info!(address, "publishing KV events");
        loop {
            tokio::select! {
                batch = batches.recv() => {
                    let Some((number, batch)) = batch else { return };
                    if let Err(error) = socket.send(message(&topic, number, batch)).await {
                        tracing::warn!(%error, number, "cannot publish KV events");
                    }
                }
                state = states.next() => {
                    if matches!(state, None | Some(SocketEvent::Disconnected(_))) {
                        tracing::warn!(address, "lost the connection to the reader of KV events");
                        break;
                    }
                }
            }
        }
    }
}

/// Drops batches until the sender is gone.
async fn discard(batches: &mut mpsc::Receiver<(u64, Bytes)>) {
    while batches.recv().await.is_some() {}
}
