//! The PUB socket on which events are published: three frames, topic, number of the batch, batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;
use trunkline_scheduler::KvEvent;
use zeromq::{PubSocket, Socket, SocketEvent, SocketSend, ZmqError, ZmqMessage};

use super::endpoint::{Endpoint, Topic};
use super::vllm;

/// Batches that may wait for the socket; more are dropped, and their numbers with them.
const MAX_WAITING_BATCHES: usize = 1024;
/// Pause before connecting again, at first and at most; it doubles.
const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Publishes batches. Dropping it ends the socket.
pub struct ZmqPublisher {
    batches: mpsc::Sender<(u64, Bytes)>,
    next: AtomicU64,
    address: Option<String>,
}

/// The endpoint cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("`--kv-events-endpoint`: cannot listen on `{address}`: {source}; hint: choose another port")]
pub struct BindError {
    address: String,
    #[source]
    source: ZmqError,
}

impl ZmqPublisher {
    /// Listens, or begins to connect.
    pub async fn start(endpoint: Endpoint, topic: Topic) -> Result<Self, BindError> {
        let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
        let topic = Bytes::from(topic.as_str().to_owned());
        let mut address = None;
        match endpoint {
            Endpoint::Bind(to) => {
                let mut socket = PubSocket::new();
                let bound = socket.bind(&to).await.map_err(|source| BindError { address: to, source })?;
                address = Some(bound.to_string());
                tracing::info!(address, "publishing KV events");
                tokio::spawn(publish(socket, topic, received));
            }
            Endpoint::Connect(to) => {
                tokio::spawn(publish_to(to, topic, received));
            }
        }
        Ok(Self { batches, next: AtomicU64::new(0), address })
    }

    /// Where it listens, if it does.
    pub fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    /// Publishes what happened. Never waits.
    pub fn publish(&self, unix_seconds: f64, events: &[KvEvent]) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let batch = vllm::encode(unix_seconds, events);
        if self.batches.try_send((number, batch.into())).is_err() {
            tracing::warn!(number, "a batch of KV events was dropped; readers see a gap in the numbers");
        }
    }
}

fn message(topic: &Bytes, number: u64, batch: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(topic.clone());
    message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
    message.push_back(batch);
    message
}

async fn publish(mut socket: PubSocket, topic: Bytes, mut batches: mpsc::Receiver<(u64, Bytes)>) {
    while let Some((number, batch)) = batches.recv().await {
        if let Err(error) = socket.send(message(&topic, number, batch)).await {
            tracing::warn!(%error, number, "a batch of KV events was not published");
        }
    }
}

/// Keeps one connection. What happens while there is none is dropped, as a PUB socket does.
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
                        tracing::warn!(%error, number, "a batch of KV events was not published");
                    }
                }
                state = states.next() => {
                    if matches!(state, None | Some(SocketEvent::Disconnected(_))) {
                        tracing::warn!(address, "the reader of KV events is gone");
                        break;
                    }
                }
            }
        }
    }
}

/// Drops batches until nobody sends any more.
async fn discard(batches: &mut mpsc::Receiver<(u64, Bytes)>) {
    while batches.recv().await.is_some() {}
}
