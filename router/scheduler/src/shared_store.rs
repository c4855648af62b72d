//! A lane's view of its own store and of those of the other lanes.

use std::collections::BTreeMap;
use std::sync::Arc;

use trunkline_kv::StoreIndex;

use crate::event::LaneId;

/// A store is not read by a lane any more after so many failures in a row, until a shard opens it anew.
const MAX_FAILURES: u32 = 3;

/// A store that a sequence of another lane is restored from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSource {
    pub lane: LaneId,
    /// The opening in which the blocks were found. In a later one, the slots may hold others.
    pub(crate) opening: u64,
}

/// A lane's store, as the other lanes see it, and their stores, as this one does.
#[derive(Debug, Default)]
pub(crate) struct SharedStore {
    /// The folder from which the shards of other lanes read; none if they cannot.
    pub(crate) folder: Option<Arc<str>>,
    /// True if the lane's shard reads the stores of others.
    reads_others: bool,
    /// Counts the shards that have opened the store.
    pub(crate) opening: u64,
    /// The index while the lane has no shard.
    pub(crate) lost: Option<StoreIndex>,
    /// The failures in a row of reads from other stores.
    failures: BTreeMap<LaneId, (StoreSource, u32)>,
}

impl SharedStore {
    /// Notes that a shard has opened the store.
    pub(crate) fn open(&mut self, folder: Option<Arc<str>>, reads_others: bool) {
        self.close();
        (self.folder, self.reads_others) = (folder, reads_others);
    }

    /// Notes that another shard is connected, which has not opened the store yet.
    pub(crate) fn close(&mut self) {
        *self = Self { opening: self.opening + 1, ..Self::default() };
    }

    /// Keeps the index of a shard that is lost.
    pub(crate) fn lose(&mut self, store: Option<StoreIndex>) {
        self.lost = store.filter(|_| self.folder.is_some());
    }

    pub(crate) fn reads_others(&self) -> bool {
        self.reads_others
    }

    pub(crate) fn is_readable(&self, source: StoreSource) -> bool {
        let failures = self.failures.get(&source.lane).filter(|(failed, _)| *failed == source);
        self.reads_others && failures.is_none_or(|(_, count)| *count < MAX_FAILURES)
    }

    pub(crate) fn note_read(&mut self, source: StoreSource, has_failed: bool) {
        let (failed, count) = self.failures.entry(source.lane).or_insert((source, 0));
        *count = if has_failed && *failed == source { *count + 1 } else { has_failed.into() };
        *failed = source;
    }
}
