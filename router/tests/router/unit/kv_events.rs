use std::time::Duration;

use trunkline_router::kv_events::{
    LINGER, Listener, MAX_HISTORY, MAX_LISTENERS, MAX_WAITING_BATCHES, TooSlow, channel,
};
use trunkline_scheduler::{BlockKey, KvEvent, Owner, Tier};

use crate::support::DEADLINE;

mod endpoint;
mod history;
mod vllm;

/// Waits until the listener can take more.
async fn changed(listener: &mut Listener) {
    tokio::time::timeout(DEADLINE, listener.changed()).await.expect("waited in vain for events");
}

#[tokio::test]
async fn there_are_so_many_places() {
    let (_sink, feed) = channel();
    let listeners: Vec<_> = (0..MAX_LISTENERS).map(|_| feed.shared().listen(None).unwrap()).collect();
    assert!(feed.shared().listen(None).is_none());
    drop(listeners);
    assert!(feed.shared().listen(None).is_some());
}

#[tokio::test]
async fn recording_outlives_the_last_listener_by_a_while() {
    let (sink, feed) = channel();
    assert!(!sink.is_wanted());
    let first = feed.shared().listen(None).unwrap();
    let second = feed.shared().listen(None).unwrap();
    drop(first);
    let is_wanted_in = |pause| feed.shared().is_wanted_in(pause);
    assert!(is_wanted_in(2 * LINGER));
    drop(second);
    assert!(sink.is_wanted() && is_wanted_in(LINGER - Duration::from_secs(9)));
    assert!(!is_wanted_in(LINGER));
}

#[tokio::test]
async fn a_feed_that_does_not_keep_up_loses_everything_and_says_so() {
    let (sink, feed) = channel();
    let mut listener = feed.shared().listen(None).unwrap();
    let event =
        || KvEvent::BlockRemoved { key: BlockKey::default(), tier: Tier::Device, owner: Owner::Unknown };
    for _ in 0..=MAX_WAITING_BATCHES {
        sink.send(vec![event()]);
    }
    // The feed begins only now, and there is room again when the listener has something to take.
    tokio::spawn(feed.run());
    changed(&mut listener).await;
    sink.send(Vec::new());
    let mut events = Vec::new();
    while events.len() <= MAX_WAITING_BATCHES {
        changed(&mut listener).await;
        events.extend(listener.take(usize::MAX).unwrap());
    }
    assert_eq!(events.len(), MAX_WAITING_BATCHES + 1);
    assert_eq!(events.last().unwrap().event, KvEvent::AllBlocksCleared);
}

#[tokio::test]
async fn who_falls_behind_the_history_is_too_slow() {
    let (sink, feed) = channel();
    let shared = feed.shared();
    tokio::spawn(feed.run());
    let mut listener = shared.listen(None).unwrap();
    // A second listener, which is at the newest event, tells when the feed took what was sent.
    let send = async |count| {
        let mut newest = shared.listen(None).unwrap();
        sink.send(vec![KvEvent::AllBlocksCleared; count]);
        changed(&mut newest).await;
    };
    send(MAX_HISTORY).await;
    assert_eq!(listener.take(1).unwrap().len(), 1);
    send(1).await;
    assert_eq!(listener.take(1).unwrap().len(), 1, "its next one is the oldest that is kept");
    send(2).await;
    assert_eq!(listener.take(1), Err(TooSlow));
}
