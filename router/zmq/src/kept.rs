//! The last batches, which all readers share.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// The bytes of batches that are kept. Some 10,000 blocks of 64 tokens take 3 MiB.
pub const MAX_KEPT_BYTES: usize = 64 << 20;
/// The batches that are kept for readers that ask for them, which bounds the memory for small ones.
pub const MAX_KEPT_BATCHES: usize = 1 << 16;
/// The batches that are kept without such readers, for subscribers that fall behind.
pub const MAX_UNREAD_BATCHES: usize = 1024;

/// The last batches, oldest first, within both limits.
#[derive(Debug)]
pub struct Kept(Mutex<Batches>);

#[derive(Debug)]
struct Batches {
    batches: VecDeque<(u64, Bytes)>,
    num_bytes: usize,
    max_batches: usize,
}

impl Default for Kept {
    fn default() -> Self {
        let batches = VecDeque::new();
        Self(Mutex::new(Batches { batches, num_bytes: 0, max_batches: MAX_UNREAD_BATCHES }))
    }
}

impl Kept {
    /// Applies from the next batch on.
    pub fn set_max_batches(&self, max_batches: usize) {
        self.lock().max_batches = max_batches;
    }

    /// Keeps a batch, and drops the oldest ones that exceed the limits. The numbers of batches grow.
    pub fn push(&self, number: u64, batch: Bytes) {
        let mut kept = self.lock();
        kept.num_bytes += batch.len();
        kept.batches.push_back((number, batch));
        while kept.num_bytes > MAX_KEPT_BYTES || kept.batches.len() > kept.max_batches {
            let Some((_, oldest)) = kept.batches.pop_front() else { return };
            kept.num_bytes -= oldest.len();
        }
    }

    /// Returns the first kept batch whose number is at least `number`.
    pub fn next(&self, number: u64) -> Option<(u64, Bytes)> {
        let kept = self.lock();
        let index = kept.batches.partition_point(|(kept, _)| *kept < number);
        kept.batches.get(index).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        // No panic can leave the batches half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
