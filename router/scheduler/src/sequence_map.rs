//! All sequences by their keys and ids.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use crate::event::SequenceId;
use crate::sequence::{Sequence, SequenceKey};

/// All sequences. Access by key costs O(1), by id O(log n).
#[derive(Debug, Default)]
pub struct SequenceMap {
    slots: Vec<Option<Sequence>>,
    free: Vec<SequenceKey>,
    by_id: BTreeMap<SequenceId, SequenceKey>,
}

impl SequenceMap {
    /// Panics if the sequence's id is in use.
    pub fn insert(&mut self, sequence: Sequence) -> SequenceKey {
        let id = sequence.request.id;
        let key = match self.free.pop() {
            Some(key) => {
                self.slots[key.0 as usize] = Some(sequence);
                key
            }
            None => {
                self.slots.push(Some(sequence));
                SequenceKey((self.slots.len() - 1) as u32)
            }
        };
        let known = self.by_id.insert(id, key);
        assert!(known.is_none(), "a sequence id is used once: {}", id.0);
        key
    }

    pub fn remove(&mut self, key: SequenceKey) -> Sequence {
        let sequence = self.slots[key.0 as usize].take().expect("the key names a sequence");
        self.by_id.remove(&sequence.request.id);
        self.free.push(key);
        sequence
    }

    pub fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.slots[key.0 as usize].as_ref()
    }

    pub fn key(&self, id: SequenceId) -> Option<SequenceKey> {
        self.by_id.get(&id).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| slot.as_ref().map(|sequence| (SequenceKey(index as u32), sequence)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().flatten()
    }

    #[allow(clippy::len_without_is_empty, reason = "the number is all that is asked for")]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Keys in the order of submission.
    pub fn keys_by_arrival(&self) -> Vec<SequenceKey> {
        let mut keys: Vec<_> = self.iter().map(|(key, sequence)| (sequence.arrival, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }
}

impl Index<SequenceKey> for SequenceMap {
    type Output = Sequence;

    fn index(&self, key: SequenceKey) -> &Sequence {
        self.slots[key.0 as usize].as_ref().expect("the key names a sequence")
    }
}

impl IndexMut<SequenceKey> for SequenceMap {
    fn index_mut(&mut self, key: SequenceKey) -> &mut Sequence {
        self.slots[key.0 as usize].as_mut().expect("the key names a sequence")
    }
}
