//! The object tier: KV blocks in a store that replicas share, below the one on disk.
//!
//! ```text
//! local     the shard's store on this machine, as the tier uses it
//! download  before a request is submitted: what it lacks and the others have
//! flight    one download, which several requests may wait for
//! upload    after a block was stored: up with it, some time
//! counts    what was done, for metrics
//! ```
//!
//! The scheduler knows nothing of it but blocks that are offered and blocks that are adopted; all I/O is here, beside
//! the steps. Nothing here fails a request: what does not come in time is computed. See
//! docs/decisions/0016-object-tier.md.

mod counts;
#[doc(hidden)]
pub mod download;
mod flight;
mod upload;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use trunkline_object::{Breaker, KeyMemory, Rates, Remote, RemoteError};
use trunkline_scheduler::BlockKey;

use crate::engine::driver::DriverHandle;
use crate::engine::shard::StoreGate;
use flight::Flight;

pub use counts::ObjectCounts;

/// Most stored blocks that wait for their upload.
pub const MAX_OFFERED_BLOCKS: usize = 1024;
/// Most objects that are got at once, over all requests: so many blocks are in memory, and some more that arrived.
const MAX_GETS: usize = 32;
/// A key that the object store did not have is not asked for again so soon.
const MISS_TIME: Duration = Duration::from_secs(10);
const MAX_MISSES: usize = 4096;
/// A broken object is replaced when its block is uploaded in this time.
const BROKEN_TIME: Duration = Duration::from_secs(3600);
const MAX_BROKEN: usize = 4096;

/// The tier. Shared by requests, the link and the upload.
#[derive(Debug)]
pub struct ObjectTier {
    remote: Remote,
    driver: DriverHandle,
    /// The way to the shard's store.
    gate: Arc<StoreGate>,
    state: Mutex<State>,
    counts: watch::Sender<ObjectCounts>,
    gets: Semaphore,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    rates: Rates,
    misses: KeyMemory,
    broken: KeyMemory,
    /// Blocks that are under way: in which flight, and their place in it.
    flights: HashMap<BlockKey, (Arc<Flight>, usize)>,
}

impl ObjectTier {
    /// A tier over the blocks of one place.
    pub fn new(remote: Remote, driver: DriverHandle) -> Self {
        let state = State {
            breaker: Breaker::default(),
            rates: Rates::default(),
            misses: KeyMemory::new(MAX_MISSES, MISS_TIME),
            broken: KeyMemory::new(MAX_BROKEN, BROKEN_TIME),
            flights: HashMap::new(),
        };
        Self {
            remote,
            driver,
            gate: Arc::default(),
            state: Mutex::new(state),
            counts: watch::Sender::default(),
            gets: Semaphore::new(MAX_GETS),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> watch::Receiver<ObjectCounts> {
        self.counts.subscribe()
    }

    /// Returns the gate that the link closes while a shard opens its store.
    pub fn store_gate(&self) -> Arc<StoreGate> {
        self.gate.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    fn count(&self, change: impl FnOnce(&mut ObjectCounts)) {
        self.counts.send_modify(change);
    }

    /// A get or put failed, or gave something that cannot be used.
    fn note_failure(&self, failure: &RemoteError) {
        self.count(|counts| counts.failures += 1);
        let now = Instant::now();
        let mut state = self.state();
        if failure.is_of_store() {
            state.breaker.failed(failure, now);
        } else {
            state.breaker.note(failure);
        }
        if let RemoteError::Content { key, .. } = failure {
            state.broken.note(*key, now);
            state.misses.note(*key, now);
        }
        if let Some(line) = state.breaker.take_line(now) {
            tracing::warn!("{line}; hint: requests are served without it");
        }
    }

    fn paused_until(&self) -> Option<Instant> {
        self.state().breaker.paused_until(Instant::now())
    }
}
