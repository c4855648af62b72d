//! The nodes of a [`super::ghost::Ghost`] by path.

use super::history::PathHash;
use crate::index::NodeId;

/// The number of slots of an empty table.
const MIN_SLOTS: usize = 16;
/// 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4). It spreads paths, which are hashes already, over the high
/// bits.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: PathHash,
    node: NodeId,
}

/// A hash table with linear probing that is at most half full.
///
/// A call costs O(1) expected, and no result depends on the order of entries. Paths made to collide cost a walk over
/// them, but a ghost has a bounded number of paths.
#[derive(Debug)]
pub struct PathTable {
    slots: Vec<Option<Entry>>,
    len: usize,
}

impl PathTable {
    #[allow(clippy::new_without_default, reason = "public only for tests")]
    pub fn new() -> Self {
        Self { slots: vec![None; MIN_SLOTS], len: 0 }
    }

    #[allow(clippy::len_without_is_empty, reason = "public only for tests")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, path: PathHash) -> Option<NodeId> {
        self.slots[self.find(path)].map(|entry| entry.node)
    }

    /// Adds a path that the table does not have.
    pub fn insert(&mut self, path: PathHash, node: NodeId) {
        if self.len * 2 >= self.slots.len() {
            let larger = vec![None; self.slots.len() * 2];
            for entry in std::mem::replace(&mut self.slots, larger).into_iter().flatten() {
                let slot = self.find(entry.path);
                self.slots[slot] = Some(entry);
            }
        }
        let slot = self.find(path);
        assert!(self.slots[slot].is_none(), "a path has one node");
        self.slots[slot] = Some(Entry { path, node });
        self.len += 1;
    }

    /// Removes a path, if it is there, and moves the entries behind it up to where a search finds them.
    pub fn remove(&mut self, path: PathHash) {
        let mut hole = self.find(path);
        if self.slots[hole].take().is_none() {
            return;
        }
        self.len -= 1;
        let mut slot = self.next(hole);
        while let Some(entry) = self.slots[slot] {
            let mask = self.slots.len() - 1;
            let home = self.home(entry.path);
            // The hole is between the entry's home and its slot.
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot].take();
                hole = slot;
            }
            slot = self.next(slot);
        }
    }

    /// Returns the path's slot, or the empty slot where it would be inserted.
    fn find(&self, path: PathHash) -> usize {
        let mut slot = self.home(path);
        while self.slots[slot].is_some_and(|entry| entry.path != path) {
            slot = self.next(slot);
        }
        slot
    }

    fn home(&self, path: PathHash) -> usize {
        (path.wrapping_mul(SPREAD) >> (u64::BITS - self.slots.len().ilog2())) as usize
    }

    fn next(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }
}
