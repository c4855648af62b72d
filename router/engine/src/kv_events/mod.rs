//! Events of the KV cache, from the step loop to their listeners.
//!
//! ```text
//! driver ──EventSink──▶ EventFeed ──▶ history ──▶ any number of Listeners (`/v1/kv/events`)
//!   never waits          (a task)  └─▶ Publish, in vLLM's format (`--kv-events-endpoint`)
//! ```
//!
//! Listeners have no buffers of their own. They read one shared history, and a listener that falls behind its oldest
//! event is disconnected. Events are recorded only while there are listeners and for some time after the last has left.

mod endpoint;
pub mod history;
pub mod vllm;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use trunkline_scheduler::{KvEvent, LaneId};

pub use endpoint::{Endpoint, PublishedEvents, Topic};
use history::History;
pub use history::{LoggedEvent, Resume};

/// Sends a batch of events in vLLM's encoding to external readers. It must not block.
pub type Publish = Box<dyn Fn(Vec<u8>) + Send + Sync>;

/// The number of events kept for listeners that reconnect or read slowly.
pub const MAX_HISTORY: usize = 1 << 14;
pub const MAX_LISTENERS: usize = 64;
/// The time for which events are recorded after the last listener has left, because it may reconnect and ask for them.
pub const LINGER: Duration = Duration::from_secs(60);
/// The most turns of the step loop whose events wait for the history.
pub const MAX_WAITING_BATCHES: usize = 256;

/// The history and the places that all listeners share.
pub struct KvEvents {
    history: Mutex<History>,
    /// The number of the next event.
    next: watch::Sender<u64>,
    places: Arc<Semaphore>,
    begin: Instant,
    /// The time until which events are recorded without a listener, in milliseconds since `begin`.
    linger_until_ms: AtomicU64,
    publisher: OnceLock<Publish>,
}

/// The driver's end of the channel, which sends events.
pub struct EventSink {
    batches: mpsc::Sender<(LaneId, Vec<KvEvent>)>,
    shared: Arc<KvEvents>,
    /// For each lane, true if its last batch was dropped because the channel was full.
    has_lost: Vec<AtomicBool>,
}

/// The other end, which appends the driver's events to the history and publishes them.
pub struct EventFeed {
    batches: mpsc::Receiver<(LaneId, Vec<KvEvent>)>,
    shared: Arc<KvEvents>,
}

/// Creates both ends of a channel without listeners.
pub fn channel(num_lanes: usize) -> (EventSink, EventFeed) {
    let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
    let shared = Arc::new(KvEvents {
        history: Mutex::new(History::new(trunkline_base::random::id(), MAX_HISTORY)),
        next: watch::channel(0).0,
        places: Arc::new(Semaphore::new(MAX_LISTENERS)),
        begin: Instant::now(),
        linger_until_ms: AtomicU64::new(0),
        publisher: OnceLock::new(),
    });
    let has_lost = (0..num_lanes).map(|_| AtomicBool::new(false)).collect();
    let sink = EventSink { batches, shared: shared.clone(), has_lost };
    (sink, EventFeed { batches: received, shared })
}

impl EventSink {
    /// Returns true if events are to be recorded now.
    pub fn is_wanted(&self) -> bool {
        self.shared.is_wanted_in(Duration::ZERO)
    }

    /// Sends a lane's events of a turn without waiting. If the feed does not keep up, listeners receive
    /// [`KvEvent::AllBlocksCleared`] and start over with this lane.
    pub fn send(&self, lane: LaneId, mut events: Vec<KvEvent>) {
        let has_lost = &self.has_lost[lane.0 as usize];
        if has_lost.load(Ordering::Relaxed) {
            events = vec![KvEvent::AllBlocksCleared];
        }
        if !events.is_empty() {
            has_lost.store(self.batches.try_send((lane, events)).is_err(), Ordering::Relaxed);
        }
    }
}

impl EventFeed {
    pub fn shared(&self) -> Arc<KvEvents> {
        self.shared.clone()
    }

    /// Runs until the driver ends.
    pub async fn run(mut self) {
        while let Some((lane, events)) = self.batches.recv().await {
            let now = trunkline_base::clock::unix_seconds();
            if let Some(publisher) = self.shared.publisher.get() {
                publisher(vllm::encode(now, lane, &events));
            }
            let next = self.shared.history().append(now, lane, events);
            self.shared.next.send_replace(next);
        }
    }
}

impl KvEvents {
    /// Publishes all events from now on. Only the first publisher is used.
    pub fn publish_to(&self, publisher: Publish) {
        if self.publisher.set(publisher).is_err() {
            tracing::error!("KV events already have a publisher");
        }
    }

    /// Adds a listener that receives the events after `last_id`, or from now on. Returns `None` if all places are
    /// taken.
    pub fn listen(self: &Arc<Self>, last_id: Option<&str>) -> Option<Listener> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let changed = self.next.subscribe();
        let resume = self.history().resume(last_id);
        Some(Listener { next: resume.next, shared: self.clone(), changed, _place: place, resume })
    }

    /// Returns the number of listeners that may still be added.
    pub fn num_free(&self) -> usize {
        self.places.available_permits()
    }

    /// Returns true if events are recorded after `pause`, provided that no listener arrives or leaves until then.
    pub fn is_wanted_in(&self, pause: Duration) -> bool {
        let elapsed = self.begin.elapsed() + pause;
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.publisher.get().is_some()
            || self.places.available_permits() < MAX_LISTENERS
            || elapsed_ms < self.linger_until_ms.load(Ordering::Relaxed)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // No panic can leave the history half changed.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener. Dropping it frees its place.
pub struct Listener {
    shared: Arc<KvEvents>,
    changed: watch::Receiver<u64>,
    next: u64,
    pub resume: Resume,
    _place: OwnedSemaphorePermit,
}

/// The error for a listener that missed events because it read too slowly.
#[derive(Debug, PartialEq, Eq)]
pub struct TooSlow;

impl Listener {
    /// Returns at most `limit` of the next events, or none if there are none yet.
    pub fn take(&mut self, limit: usize) -> Result<Vec<Arc<LoggedEvent>>, TooSlow> {
        let events = self.shared.history().read(self.next, limit).ok_or(TooSlow)?;
        self.next += events.len() as u64;
        Ok(events)
    }

    /// Resolves when there may be more events; never resolves if the driver is gone.
    pub async fn changed(&mut self) {
        if self.changed.wait_for(|&next| next > self.next).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let until = self.shared.begin.elapsed() + LINGER;
        let until_ms = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.shared.linger_until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }
}
