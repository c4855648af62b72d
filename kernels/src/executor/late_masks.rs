//! Late masks: grammar masks that the router computes while the step that needs them is already running.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

/// Hands masks to the step that waits for them. All methods may be called from any thread.
#[derive(Debug, Default)]
pub struct LateMasks {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Masks by sequence id. An empty mask means that nothing is sampled.
    masks: HashMap<u64, Vec<u8>>,
    is_closed: bool,
}

impl LateMasks {
    /// Sets the mask of a sequence's next sample, in the format of [`Executor::allow`](super::Executor::allow). With an
    /// empty mask nothing is sampled.
    pub fn tell(&self, sequence_id: u64, mask: Vec<u8>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).masks.insert(sequence_id, mask);
        self.has_changed.notify_all();
    }

    /// Ends all waits: no mask follows, and samples that wait for one sample nothing.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_closed = true;
        self.has_changed.notify_all();
    }

    /// Waits for the mask of a sequence and removes it. Returns an empty mask after [`LateMasks::close`].
    pub fn wait(&self, sequence_id: u64) -> Vec<u8> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(mask) = state.masks.remove(&sequence_id) {
                return mask;
            }
            if state.is_closed {
                return Vec::new();
            }
            state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The mask of one sample, received at its first use.
#[derive(Debug)]
pub(super) struct LateMask {
    sequence_id: u64,
    masks: Arc<LateMasks>,
    told: OnceLock<Vec<u8>>,
}

impl LateMask {
    pub(super) fn new(sequence_id: u64, masks: Arc<LateMasks>) -> Self {
        Self { sequence_id, masks, told: OnceLock::new() }
    }

    pub(super) fn wait(&self) -> &[u8] {
        self.told.get_or_init(|| self.masks.wait(self.sequence_id))
    }

    /// The mask, if [`LateMask::wait`] has received it.
    pub(super) fn told(&self) -> Option<&[u8]> {
        self.told.get().map(Vec::as_slice)
    }
}
