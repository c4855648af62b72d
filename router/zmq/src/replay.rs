//! Sends batches again to readers that missed them, on a ROUTER socket, in the form of vLLM 0.26
//! (`vllm/distributed/kv_events.py`, with the topic of its pull request 45177).
//!
//! ```text
//! reader (DEALER)   ["", first number]                    8 bytes, big-endian
//! answers           ["", topic, number, batch]            for each kept batch from that number on
//!                   ["", "", ff ff ff ff ff ff ff ff, ""] after the last one
//! ```
//!
//! A reader's next request is read when the one before is answered.

use tokio::net::TcpStream;

use crate::Source;
use crate::zmtp::{self, Error, Sender};

/// The number that ends an answer.
const END: u64 = u64::MAX;

/// Returns when the reader leaves or does not read.
pub(crate) async fn serve(stream: TcpStream, source: Source) -> Result<(), Error> {
    let (mut receiver, mut sender) = zmtp::open(stream, zmtp::ROUTER).await?;
    loop {
        let request = receiver.message().await?;
        match first_number(&request) {
            Some(first) => answer(&mut sender, first, &source).await?,
            None => tracing::debug!(num_frames = request.len(), "not a request for KV events"),
        }
    }
}

fn first_number(request: &[Vec<u8>]) -> Option<u64> {
    let [delimiter, number] = request else { return None };
    let number = number.as_slice().try_into().ok()?;
    delimiter.is_empty().then(|| u64::from_be_bytes(number))
}

/// Sends the batches up to the newest one, then the end.
async fn answer(sender: &mut Sender, first: u64, source: &Source) -> Result<(), Error> {
    let mut next = first;
    while let Some((number, batch)) = source.kept.next(next) {
        sender.send(&[b"", &source.topic, &number.to_be_bytes(), &batch]).await?;
        next = number + 1;
    }
    sender.send(&[b"", b"", &END.to_be_bytes(), b""]).await?;
    sender.flush().await
}
