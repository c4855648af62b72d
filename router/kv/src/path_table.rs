//! Paths of a [`crate::ghost`] and their nodes.

use crate::history::PathHash;
use crate::radix::NodeId;

/// Slots that a table begins with.
const MIN_SLOTS: usize = 16;
/// 2^64 by the golden ratio (Knuth, TAOCP 3, 6.4): it spreads any paths, which are hashes already, over the high bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy, Debug)]
struct Entry {
    path: PathHash,
    node: NodeId,
}

/// A hash table with linear probing, at most half full: O(1) expected a call, and nothing depends on its order. Whoever
/// makes paths that collide pays for it with a walk over them, of which there are at most so many as the ghost has.
#[derive(Debug)]
pub(crate) struct PathTable {
    slots: Vec<Option<Entry>>,
    len: usize,
}

impl PathTable {
    pub(crate) fn new() -> Self {
        Self { slots: vec![None; MIN_SLOTS], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, path: PathHash) -> Option<NodeId> {
        self.slots[self.find(path)].map(|entry| entry.node)
    }

    /// The path was not there.
    pub(crate) fn insert(&mut self, path: PathHash, node: NodeId) {
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
    pub(crate) fn remove(&mut self, path: PathHash) {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_has_what_a_map_has_though_paths_collide() {
        let (mut table, mut map) = (PathTable::new(), BTreeMap::new());
        // Sixteen homes of the smallest table's, many paths for each: chains that wrap around and are cut everywhere.
        let inverse = (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(x))));
        assert_eq!(SPREAD.wrapping_mul(inverse), 1);
        let mut random = 9_u64;
        for round in 0..200_000_u32 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (home, number) = ((random >> 33) % 3, (random >> 40) % 40);
            let path = ((((15 + home) % 16) << 60) | (number << 20)).wrapping_mul(inverse);
            if random >> 63 == 0 {
                table.remove(path);
                map.remove(&path);
            } else if let std::collections::btree_map::Entry::Vacant(place) = map.entry(path) {
                table.insert(path, *place.insert(NodeId(round)));
            }
            assert_eq!((table.get(path), table.len()), (map.get(&path).copied(), map.len()));
            if round % 1_000 == 0 {
                assert!(map.iter().all(|(&path, &node)| table.get(path) == Some(node)));
            }
        }
    }
}
