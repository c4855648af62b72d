//! A bounded set of keys whose entries expire.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use trunkline_contract::BlockKey;

/// A bounded set of keys. An entry expires after its time to live; when the set is full the oldest one is dropped.
#[derive(Debug)]
pub struct KeyMemory {
    max_keys: usize,
    time_to_live: Duration,
    /// The time at which each key was noted last.
    noted: HashMap<BlockKey, Instant>,
    /// All notes in order of time. An entry whose key was noted again later is stale.
    order: VecDeque<(BlockKey, Instant)>,
}

impl KeyMemory {
    /// Creates an empty set of at most `max_keys` keys.
    pub fn new(max_keys: usize, time_to_live: Duration) -> Self {
        Self { max_keys, time_to_live, noted: HashMap::new(), order: VecDeque::new() }
    }

    /// Adds a key, or renews its time to live.
    pub fn note(&mut self, key: BlockKey, now: Instant) {
        self.noted.insert(key, now);
        self.order.push_back((key, now));
        while let Some(&(oldest, at)) = self.order.front() {
            let is_stale = self.noted.get(&oldest) != Some(&at);
            let is_over = now.duration_since(at) >= self.time_to_live;
            if !is_stale && !is_over && self.order.len() <= self.max_keys {
                break;
            }
            self.order.pop_front();
            if !is_stale {
                self.noted.remove(&oldest);
            }
        }
    }

    /// Returns true if the set holds the key.
    pub fn has(&self, key: BlockKey, now: Instant) -> bool {
        self.noted.get(&key).is_some_and(|at| now.duration_since(*at) < self.time_to_live)
    }

    /// Removes a key and returns true if the set held it.
    pub fn forget(&mut self, key: BlockKey, now: Instant) -> bool {
        let was_there = self.has(key, now);
        self.noted.remove(&key);
        was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> BlockKey {
        BlockKey::default().extend(&[n])
    }

    #[test]
    fn keys_are_forgotten_in_time_and_for_want_of_room() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut memory = KeyMemory::new(3, 10 * second);
        for n in 0..4 {
            memory.note(key(n), begin + n * second);
        }
        let now = begin + 4 * second;
        assert_eq!((0..4).map(|n| memory.has(key(n), now)).collect::<Vec<_>>(), [false, true, true, true]);
        memory.note(key(1), now);
        assert!(memory.has(key(1), begin + 12 * second), "noted again");
        assert!(!memory.has(key(2), begin + 12 * second), "its time is over");
        assert!(memory.forget(key(3), now));
        assert!(!memory.forget(key(3), now));
        for n in 0..1000 {
            memory.note(key(n), now);
            memory.note(key(7), now);
        }
        assert!(memory.order.len() <= 3 && memory.noted.len() <= 3);
    }
}
