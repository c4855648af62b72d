//! The object tier: a store of KV blocks that servers share, below the stores on disk of their lanes.
//!
//! ```text
//! download  fetches the missing blocks of a prompt before its request is submitted
//! flight    one download, which several requests may wait for
//! upload    uploads blocks in the background after they were stored on disk
//! removal   removes blocks on request
//! counts    counters for metrics
//! ```
//!
//! The scheduler offers blocks for upload and adopts downloaded ones. All I/O happens here, concurrently with steps.
//! A failure of the object store never fails a request, because blocks that do not arrive in time are computed. See
//! docs/decisions/0016-object-tier.md.

mod counts;
pub mod download;
mod flight;
mod removal;
mod upload;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::{RwLock, Semaphore, watch};
use trunkline_object::{Breaker, KeyMemory, Rates, Remote, RemoteError};
use trunkline_scheduler::{BlockKey, LaneId};

use crate::driver::DriverHandle;
use crate::shard::StoreGate;
use flight::Flight;

pub use counts::ObjectCounts;
pub use removal::Removal;

/// The most stored blocks that wait for their upload.
pub const MAX_OFFERED_BLOCKS: usize = 1024;
/// The most concurrent downloads of all requests. It bounds the memory for blocks, except for some that have arrived.
const MAX_GETS: usize = 32;
/// The time for which a key is not requested again after the object store did not have it.
const MISS_TIME: Duration = Duration::from_secs(10);
const MAX_MISSES: usize = 4096;
/// The time for which a damaged object is remembered. If its block is uploaded in this time, it replaces the object.
const BROKEN_TIME: Duration = Duration::from_secs(3600);
const MAX_BROKEN: usize = 4096;

/// The object tier, shared by the requests, the link and the upload task.
#[derive(Debug)]
pub struct ObjectTier {
    remote: Remote,
    driver: DriverHandle,
    /// Give access to the stores on disk of the lanes' shards.
    gates: Vec<Arc<StoreGate>>,
    state: Mutex<State>,
    counts: watch::Sender<ObjectCounts>,
    gets: Semaphore,
    /// The number of removals so far. One in progress holds it for writing, uploads and adoptions for reading.
    removals: RwLock<u64>,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    rates: Rates,
    misses: KeyMemory,
    broken: KeyMemory,
    /// The blocks being downloaded, each with its flight and its index in the flight.
    flights: HashMap<BlockKey, (Arc<Flight>, usize)>,
}

impl ObjectTier {
    /// Creates a tier over `remote`, below the stores of this many lanes.
    pub fn new(remote: Remote, driver: DriverHandle, num_lanes: usize) -> Self {
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
            gates: (0..num_lanes).map(|_| Arc::default()).collect(),
            state: Mutex::new(state),
            counts: watch::Sender::default(),
            gets: Semaphore::new(MAX_GETS),
            removals: RwLock::default(),
        }
    }

    /// Returns a receiver of the counters.
    pub fn counts(&self) -> watch::Receiver<ObjectCounts> {
        self.counts.subscribe()
    }

    /// Returns the gate that a lane's link closes while a shard opens its store.
    pub fn store_gate(&self, lane: LaneId) -> Arc<StoreGate> {
        self.gate(lane).clone()
    }

    fn gate(&self, lane: LaneId) -> &Arc<StoreGate> {
        &self.gates[lane.0 as usize]
    }

    fn lanes(&self) -> impl Iterator<Item = LaneId> {
        (0..self.gates.len() as u32).map(LaneId)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is held")
    }

    fn count(&self, change: impl FnOnce(&mut ObjectCounts)) {
        self.counts.send_modify(change);
    }

    /// Records a failed download or upload, or an unusable object.
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
            tracing::warn!("{line}; requests are served without the object store");
        }
    }

    fn paused_until(&self) -> Option<Instant> {
        self.state().breaker.paused_until(Instant::now())
    }
}
