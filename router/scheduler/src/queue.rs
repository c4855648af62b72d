//! Who waits, and in which order.

use std::collections::BTreeMap;

use crate::event::Priority;
use crate::sequence::SequenceKey;

/// A place in the queue; the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) priority: Priority,
    /// [`crate::fairness::Fairness::rank`].
    pub(crate) fairness: u64,
    /// Arrival in milliseconds, moved back by what is cached: bounded, so age wins in the end.
    pub(crate) effective_ms: u64,
    /// Unique.
    pub(crate) arrival: u64,
}

/// Waiting sequences. Those that wait for another one's prefix are counted but have no place ("parked").
#[derive(Debug, Default)]
pub(crate) struct Queue {
    ready: BTreeMap<Rank, SequenceKey>,
    num_parked: usize,
    /// Those waiting that never started.
    num_new: u32,
    num_uncached_tokens: u64,
}

impl Queue {
    /// Adds a sequence that did not wait.
    pub(crate) fn enter(&mut self, rank: Rank, key: SequenceKey, is_new: bool, num_uncached_tokens: u32) {
        let previous = self.ready.insert(rank, key);
        assert!(previous.is_none(), "ranks are unique");
        self.num_new += u32::from(is_new);
        self.num_uncached_tokens += u64::from(num_uncached_tokens);
    }

    /// Removes a sequence; no rank: it was parked.
    pub(crate) fn leave(&mut self, rank: Option<Rank>, is_new: bool, num_uncached_tokens: u32) {
        match rank {
            Some(rank) => {
                let removed = self.ready.remove(&rank);
                assert!(removed.is_some(), "the sequence was ready");
            }
            None => self.num_parked -= 1,
        }
        self.num_new -= u32::from(is_new);
        self.num_uncached_tokens -= u64::from(num_uncached_tokens);
    }

    /// Takes a sequence's place but keeps counting it.
    pub(crate) fn park(&mut self, rank: Rank) {
        let removed = self.ready.remove(&rank);
        assert!(removed.is_some(), "the sequence was ready");
        self.num_parked += 1;
    }

    /// Who goes next.
    pub(crate) fn first(&self) -> Option<(Rank, SequenceKey)> {
        self.ready.first_key_value().map(|(&rank, &key)| (rank, key))
    }

    /// All that wait.
    pub(crate) fn num_waiting(&self) -> usize {
        self.ready.len() + self.num_parked
    }

    /// Those that never started: what the limit counts.
    pub(crate) fn num_new(&self) -> u32 {
        self.num_new
    }

    /// Tokens that all that wait have to compute before their next token.
    pub(crate) fn num_uncached_tokens(&self) -> u64 {
        self.num_uncached_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Millis, SequenceId, SequenceRequest};
    use crate::plan::SamplingParams;
    use crate::sequence::{Sequence, SequenceMap};

    fn keys(count: u64) -> Vec<SequenceKey> {
        let mut map = SequenceMap::default();
        let request = |id| SequenceRequest {
            id: SequenceId(id),
            token_ids: vec![1],
            max_new_tokens: 1,
            sampling: SamplingParams::default(),
            end_token_ids: Vec::new(),
            ignore_eos: false,
            priority: Priority::Normal,
            deadline: None,
            salt: trunkline_kv::Salt::default(),
            retention: crate::event::Retention::default(),
            constrained: false,
        };
        (0..count).map(|id| map.insert(Sequence::new(request(id), Millis(0), id))).collect()
    }

    #[test]
    fn class_goes_before_arrival_and_parked_sequences_are_passed_over() {
        let keys = keys(3);
        let rank = |priority, effective_ms, arrival| Rank { priority, fairness: 0, effective_ms, arrival };
        let mut queue = Queue::default();
        let (old, new, high) =
            (rank(Priority::Normal, 1, 0), rank(Priority::Normal, 2, 1), rank(Priority::High, 9, 2));
        queue.enter(old, keys[0], true, 5);
        queue.enter(new, keys[1], false, 7);
        queue.enter(high, keys[2], true, 0);
        assert_eq!(queue.first(), Some((high, keys[2])));
        queue.leave(Some(high), true, 0);
        queue.park(old);
        assert_eq!((queue.first(), queue.num_waiting(), queue.num_new()), (Some((new, keys[1])), 2, 1));
        queue.leave(None, true, 5);
        assert_eq!((queue.num_waiting(), queue.num_uncached_tokens(), queue.num_new()), (1, 7, 0));
    }
}
