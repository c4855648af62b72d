//! Sends batches again to readers that missed them, on a ROUTER socket, in the form of vLLM 0.26
//! (`vllm/distributed/kv_events.py`, with the topic of its pull request 45177).
//!
//! ```text
//! reader (DEALER)   ["", first number]                    8 bytes, big-endian
//! answers           ["", topic, number, batch]            for each kept batch from that number on
//!                   ["", "", ff ff ff ff ff ff ff ff, ""] after the last one
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use zeromq::{RouterRecvHalf, RouterSendHalf, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use crate::{BindError, number_frame};

/// The bytes of batches that are kept. Some 10,000 blocks of 64 tokens take 3 MiB.
pub const MAX_KEPT_BYTES: usize = 64 << 20;
/// The batches that are kept, which bounds the memory for small ones.
pub const MAX_KEPT_BATCHES: usize = 1 << 16;
/// The readers that are answered at once. A further request is ignored, and its reader asks again.
pub const MAX_READERS: usize = 8;
/// The longest that a reader may take for one message.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The number that ends an answer.
const END: u64 = u64::MAX;

/// The last batches.
#[derive(Debug, Default)]
pub struct Kept(Mutex<Batches>);

#[derive(Debug, Default)]
struct Batches {
    batches: VecDeque<(u64, Bytes)>,
    num_bytes: usize,
}

impl Kept {
    /// Keeps a batch, and drops the oldest ones that exceed the limits. The numbers of batches grow.
    pub fn push(&self, number: u64, batch: Bytes) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.num_bytes += batch.len();
        kept.batches.push_back((number, batch));
        while kept.num_bytes > MAX_KEPT_BYTES || kept.batches.len() > MAX_KEPT_BATCHES {
            let Some((_, oldest)) = kept.batches.pop_front() else { return };
            kept.num_bytes -= oldest.len();
        }
    }

    /// Returns the first kept batch whose number is at least `number`.
    pub fn next(&self, number: u64) -> Option<(u64, Bytes)> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let index = kept.batches.partition_point(|(kept, _)| *kept < number);
        kept.batches.get(index).cloned()
    }
}

/// Listens for readers. Returns the address with the port that the system chose for port 0.
pub(crate) async fn listen(address: String, topic: &str, kept: Arc<Kept>) -> Result<String, BindError> {
    let mut socket = RouterSocket::new();
    let flag = "--kv-events-replay-endpoint";
    let bound = socket.bind(&address).await.map_err(|source| BindError { flag, address, source })?;
    let address = bound.to_string();
    tracing::info!(address, "sending KV events again on request");
    let (sender, requests) = socket.split();
    tokio::spawn(serve(sender, requests, Bytes::from(topic.to_owned()), kept));
    Ok(address)
}

async fn serve(sender: RouterSendHalf, mut requests: RouterRecvHalf, topic: Bytes, kept: Arc<Kept>) {
    let places = Arc::new(Semaphore::new(MAX_READERS));
    while let Ok(request) = requests.recv().await {
        let Some((reader, first)) = parse(&request) else {
            tracing::debug!(num_frames = request.len(), "not a request for KV events");
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!(limit = MAX_READERS, "too many readers ask for KV events; one is ignored");
            continue;
        };
        let (sender, topic, kept) = (sender.clone(), topic.clone(), kept.clone());
        tokio::spawn(async move {
            answer(sender, &reader, first, topic, &kept).await;
            drop(place);
        });
    }
}

/// Returns the reader and the first number that it wants.
fn parse(request: &ZmqMessage) -> Option<(Bytes, u64)> {
    let (reader, delimiter, number) = (request.get(0)?, request.get(1)?, request.get(2)?);
    let number = u64::from_be_bytes(number.as_ref().try_into().ok()?);
    (request.len() == 3 && delimiter.is_empty()).then(|| (reader.clone(), number))
}

/// Sends the batches up to the newest one, then the end. It stops if the reader leaves or does not read.
async fn answer(mut sender: RouterSendHalf, reader: &Bytes, first: u64, topic: Bytes, kept: &Kept) {
    let mut next = first;
    loop {
        let batch = kept.next(next);
        let is_end = batch.is_none();
        let (number, frames) = match batch {
            Some((number, batch)) => (number, [topic.clone(), number_frame(number), batch]),
            None => (END, [Bytes::new(), number_frame(END), Bytes::new()]),
        };
        let mut message = ZmqMessage::from(reader.clone());
        message.push_back(Bytes::new());
        frames.into_iter().for_each(|frame| message.push_back(frame));
        match tokio::time::timeout(READ_TIMEOUT, sender.send(message)).await {
            Ok(Ok(())) if !is_end => next = number + 1,
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                tracing::debug!(%error, number, "a reader of KV events is gone");
                return;
            }
            Err(_) => {
                tracing::warn!(number, "a reader of KV events does not read; it must ask again");
                return;
            }
        }
    }
}
