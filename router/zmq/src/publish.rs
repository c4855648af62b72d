//! Sends batches to the readers that subscribe to their topic.
//!
//! Only subscriptions that match the topic count, so that a reader's subscriptions need no memory.

use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::Source;
use crate::zmtp::{self, Error, Receiver, Sender};

/// The first byte of a message from a subscriber, which the prefix of a topic follows.
const CANCEL: u8 = 0;
const SUBSCRIBE: u8 = 1;

pub(crate) async fn serve(stream: TcpStream, source: Source) -> Result<(), Error> {
    let (receiver, sender) = zmtp::open(stream, zmtp::PUB).await?;
    serve_subscriber(receiver, sender, source).await
}

/// Returns when the subscriber leaves or does not read.
pub(crate) async fn serve_subscriber(
    receiver: Receiver,
    sender: Sender,
    source: Source,
) -> Result<(), Error> {
    let (count, subscriptions) = watch::channel(0_u64);
    tokio::select! {
        ended = receive_subscriptions(receiver, count, &source.topic) => ended,
        ended = send_batches(sender, subscriptions, source.clone()) => ended,
    }
}

/// Counts the reader's subscriptions that match the topic.
async fn receive_subscriptions(
    mut receiver: Receiver,
    count: watch::Sender<u64>,
    topic: &[u8],
) -> Result<(), Error> {
    loop {
        let message = receiver.message().await?;
        let [frame] = &message[..] else { continue };
        match frame.split_first() {
            Some((&SUBSCRIBE, prefix)) if topic.starts_with(prefix) => count.send_modify(|count| *count += 1),
            Some((&CANCEL, prefix)) if topic.starts_with(prefix) => {
                count.send_modify(|count| *count = count.saturating_sub(1));
            }
            _ => {}
        }
    }
}

/// Sends the batches that are published while the count is above 0.
async fn send_batches(
    mut sender: Sender,
    mut subscriptions: watch::Receiver<u64>,
    mut source: Source,
) -> Result<(), Error> {
    // The other side of either channel lives as long as this connection.
    while subscriptions.wait_for(|&count| count > 0).await.is_ok() {
        let mut next = *source.next.borrow();
        while *subscriptions.borrow_and_update() > 0 {
            if let Some((number, batch)) = source.kept.next(next) {
                if number > next {
                    tracing::warn!(number, num_skipped = number - next, "a reader of KV events is too slow");
                }
                sender.send(&[&source.topic, &number.to_be_bytes(), &batch]).await?;
                next = number + 1;
                continue;
            }
            sender.flush().await?;
            tokio::select! {
                published = source.next.wait_for(|&number| number > next) => if published.is_err() { return Ok(()) },
                changed = subscriptions.changed() => if changed.is_err() { return Ok(()) },
            }
        }
        sender.flush().await?;
    }
    Ok(())
}
