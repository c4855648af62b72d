use std::time::Duration;

use trunkline_engine::kv_events::{
    LINGER, Listener, MAX_HISTORY, MAX_LISTENERS, MAX_WAITING_BATCHES, TooSlow, channel,
};
use trunkline_scheduler::{BlockKey, KvEvent, LaneId, Owner, Tier};

use crate::support::DEADLINE;

mod endpoint;
mod history;
mod vllm;

/// Waits until the listener has more events to read.
async fn changed(listener: &mut Listener) {
    tokio::time::timeout(DEADLINE, listener.changed()).await.expect("events arrive in time");
}

#[tokio::test]
async fn listeners_are_limited() {
    let (_sink, feed) = channel(1);
    let listeners: Vec<_> = (0..MAX_LISTENERS).map(|_| feed.shared().listen(None).unwrap()).collect();
    assert!(feed.shared().listen(None).is_none());
    drop(listeners);
    assert!(feed.shared().listen(None).is_some());
}

#[tokio::test]
async fn recording_continues_for_a_while_after_the_last_listener() {
    let (sink, feed) = channel(1);
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
async fn a_feed_that_falls_behind_reports_that_all_events_are_lost() {
    let (sink, feed) = channel(1);
    let mut listener = feed.shared().listen(None).unwrap();
    let event =
        || KvEvent::BlockRemoved { key: BlockKey::default(), tier: Tier::Device, owner: Owner::Unknown };
    for _ in 0..=MAX_WAITING_BATCHES {
        sink.send(LaneId::FIRST, vec![event()]);
    }
    // The feed starts only now. There is room again when the listener has something to read.
    tokio::spawn(feed.run());
    changed(&mut listener).await;
    sink.send(LaneId::FIRST, Vec::new());
    let mut events = Vec::new();
    while events.len() <= MAX_WAITING_BATCHES {
        changed(&mut listener).await;
        events.extend(listener.take(usize::MAX).unwrap());
    }
    assert_eq!(events.len(), MAX_WAITING_BATCHES + 1);
    assert_eq!(events.last().unwrap().event, KvEvent::AllBlocksCleared);
}

#[tokio::test]
async fn a_listener_that_falls_behind_the_history_is_too_slow() {
    let (sink, feed) = channel(1);
    let shared = feed.shared();
    tokio::spawn(feed.run());
    let mut listener = shared.listen(None).unwrap();
    // A second listener at the newest event shows when the feed has received what was sent.
    let send = async |count| {
        let mut newest = shared.listen(None).unwrap();
        sink.send(LaneId::FIRST, vec![KvEvent::AllBlocksCleared; count]);
        changed(&mut newest).await;
    };
    send(MAX_HISTORY).await;
    assert_eq!(listener.take(1).unwrap().len(), 1);
    send(1).await;
    assert_eq!(listener.take(1).unwrap().len(), 1, "its next one is the oldest that is kept");
    send(2).await;
    assert_eq!(listener.take(1), Err(TooSlow));
}
