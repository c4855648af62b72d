//! Events of the KV cache, from the step loop to whoever listens.
//!
//! ```text
//! driver ──EventSink──▶ EventFeed ──▶ history ──▶ any number of Listeners (`/v1/kv/events`)
//!   never waits          (a task)  └─▶ Publish, in vLLM's format (`--kv-events-endpoint`)
//! ```
//!
//! Nobody has a buffer of its own: listeners read the one history, and who falls behind its oldest event is cut off.
//! While nobody listens, and for a little while after, nothing is recorded.

mod endpoint;
#[doc(hidden)]
pub mod history;
#[doc(hidden)]
pub mod vllm;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;
use trunkline_scheduler::KvEvent;

pub use endpoint::{Endpoint, EndpointError, Topic};
use history::History;
pub use history::{LoggedEvent, Resume};

/// Sends a batch of events, encoded as vLLM does, to readers outside. Must not block.
pub type Publish = Box<dyn Fn(Vec<u8>) + Send + Sync>;

/// Events kept for who comes back or reads slowly.
pub const MAX_HISTORY: usize = 1 << 14;
/// Most listeners at once.
pub const MAX_LISTENERS: usize = 64;
/// How long recording goes on after the last listener left: it may come back for what it missed.
pub const LINGER: Duration = Duration::from_secs(60);
/// Turns of the step loop that may wait to be taken into the history.
pub const MAX_WAITING_BATCHES: usize = 256;

/// What listeners share.
pub struct KvEvents {
    history: Mutex<History>,
    /// The number of the next event.
    next: watch::Sender<u64>,
    places: Arc<Semaphore>,
    begin: Instant,
    /// Milliseconds since `begin` until which what happens is recorded without a listener.
    linger_until_ms: AtomicU64,
    publisher: OnceLock<Publish>,
}

/// The driver's end.
pub struct EventSink {
    batches: mpsc::Sender<Vec<KvEvent>>,
    shared: Arc<KvEvents>,
    /// A batch found no room.
    has_lost: AtomicBool,
}

/// Takes the driver's events into the history, and publishes them.
pub struct EventFeed {
    batches: mpsc::Receiver<Vec<KvEvent>>,
    shared: Arc<KvEvents>,
}

/// Both ends, with nobody listening yet.
pub fn channel() -> (EventSink, EventFeed) {
    let (batches, received) = mpsc::channel(MAX_WAITING_BATCHES);
    let shared = Arc::new(KvEvents {
        history: Mutex::new(History::new(crate::random::id(), MAX_HISTORY)),
        next: watch::channel(0).0,
        places: Arc::new(Semaphore::new(MAX_LISTENERS)),
        begin: Instant::now(),
        linger_until_ms: AtomicU64::new(0),
        publisher: OnceLock::new(),
    });
    let sink = EventSink { batches, shared: shared.clone(), has_lost: AtomicBool::new(false) };
    (sink, EventFeed { batches: received, shared })
}

impl EventSink {
    /// Whether anybody listens.
    pub fn is_wanted(&self) -> bool {
        self.shared.is_wanted_in(Duration::ZERO)
    }

    /// Hands on what happened in a turn. Never waits: if the feed does not keep up, listeners are told to begin anew.
    pub fn send(&self, mut events: Vec<KvEvent>) {
        if self.has_lost.load(Ordering::Relaxed) {
            events = vec![KvEvent::AllBlocksCleared];
        }
        if !events.is_empty() {
            self.has_lost.store(self.batches.try_send(events).is_err(), Ordering::Relaxed);
        }
    }
}

impl EventFeed {
    /// What listeners share.
    pub fn shared(&self) -> Arc<KvEvents> {
        self.shared.clone()
    }

    /// Runs until the driver ends.
    pub async fn run(mut self) {
        while let Some(events) = self.batches.recv().await {
            let now = crate::clock::unix_seconds();
            if let Some(publisher) = self.shared.publisher.get() {
                publisher(vllm::encode(now, &events));
            }
            let next = self.shared.history().append(now, events);
            self.shared.next.send_replace(next);
        }
    }
}

impl KvEvents {
    /// Publishes everything from now on. The first publisher stays.
    pub fn publish_to(&self, publisher: Publish) {
        if self.publisher.set(publisher).is_err() {
            tracing::error!("KV events are published already");
        }
    }

    /// Begins to listen: after the event `last_id`, or from now on. None: all places are taken.
    pub fn listen(self: &Arc<Self>, last_id: Option<&str>) -> Option<Listener> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        let changed = self.next.subscribe();
        let resume = self.history().resume(last_id);
        Some(Listener { next: resume.next, shared: self.clone(), changed, _place: place, resume })
    }

    /// Whether what happens so much later is recorded, if nobody comes or goes until then.
    #[doc(hidden)]
    pub fn is_wanted_in(&self, pause: Duration) -> bool {
        let elapsed = self.begin.elapsed() + pause;
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        self.publisher.get().is_some()
            || self.places.available_permits() < MAX_LISTENERS
            || elapsed_ms < self.linger_until_ms.load(Ordering::Relaxed)
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // Nothing in there panics half-way.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who listens. Dropping it frees its place.
pub struct Listener {
    shared: Arc<KvEvents>,
    changed: watch::Receiver<u64>,
    next: u64,
    /// How it began.
    pub resume: Resume,
    _place: OwnedSemaphorePermit,
}

/// The listener read so slowly that events which it did not see are gone.
#[derive(Debug, PartialEq, Eq)]
pub struct TooSlow;

impl Listener {
    /// The next events, at most `limit` of them; none if there are none yet.
    pub fn take(&mut self, limit: usize) -> Result<Vec<Arc<LoggedEvent>>, TooSlow> {
        let events = self.shared.history().read(self.next, limit).ok_or(TooSlow)?;
        self.next += events.len() as u64;
        Ok(events)
    }

    /// Ready when there may be more to take. Never if the driver is gone.
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
