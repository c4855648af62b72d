//! The list of the sequences that run on a lane.

use crate::sequence::SequenceKey;
use crate::sequences::Sequences;

/// The running and preempting sequences of a lane in running order: by class, then by age.
#[derive(Debug, Default)]
pub(crate) struct Running {
    keys: Vec<SequenceKey>,
    /// Sequences that end or are preempted and still have steps in flight. Their blocks come back soon, so no other
    /// sequence is preempted meanwhile.
    num_leaving: usize,
}

impl Running {
    pub(crate) fn keys(&self) -> &[SequenceKey] {
        &self.keys
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn num_leaving(&self) -> usize {
        self.num_leaving
    }

    /// Inserts a sequence at its place in running order. O(n).
    pub(crate) fn insert(&mut self, key: SequenceKey, sequences: &Sequences) {
        let order = sequences[key].order();
        let place = self.keys.partition_point(|&other| sequences[other].order() < order);
        self.keys.insert(place, key);
    }

    pub(crate) fn remove(&mut self, key: SequenceKey) {
        self.keys.retain(|&other| other != key);
    }

    /// Counts a sequence that gets no more chunks but may still have steps in flight.
    pub(crate) fn begin_leaving(&mut self) {
        self.num_leaving += 1;
    }

    /// Counts one leaving sequence less, because it has given up its blocks.
    pub(crate) fn end_leaving(&mut self) {
        self.num_leaving -= 1;
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
