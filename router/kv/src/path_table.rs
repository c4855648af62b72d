//! Paths of a [`crate::ghost`] and their nodes.

use crate::history::PathHash;
use crate::radix::NodeId;

/// Slots that a table begins with.
const MIN_SLOTS: usize = 16;
/// 2^64 by the golden ratio (Knuth, TAOCP 3, 6.4): it spreads any paths, which are hashes already, over the high bits.
pub const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: PathHash,
    node: NodeId,
}

/// A hash table with linear probing, at most half full: O(1) expected a call, and nothing depends on its order. Whoever
/// makes paths that collide pays for it with a walk over them, of which there are at most so many as the ghost has.
#[derive(Debug)]
pub struct PathTable {
    slots: Vec<Option<Entry>>,
    len: usize,
}

impl PathTable {
    #[allow(clippy::new_without_default, reason = "public for tests only")]
    pub fn new() -> Self {
        Self { slots: vec![None; MIN_SLOTS], len: 0 }
    }

    #[allow(clippy::len_without_is_empty, reason = "public for tests only")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, path: PathHash) -> Option<NodeId> {
        self.slots[self.find(path)].map(|entry| entry.node)
    }

    /// The path was not there.
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

    /// The path goes if it is there. What stands behind it moves up to where it is found without it.
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
            // From its home to where it stands is at least as far as from the hole.
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = self.slots[slot].take();
                hole = slot;
            }
            slot = self.next(slot);
        }
    }

    /// The path's slot, or the empty one where it belongs.
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
