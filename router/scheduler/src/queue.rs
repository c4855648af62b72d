//! The waiting sequences in order: by class, then by tenant, then by age, where a cached prefix counts as some age.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Millis, Priority};
use crate::fairness::{Fairness, TenantKey};
use crate::sequence::{Place, Rank, SequenceKey};

/// The waiting sequences of one tenant in one class.
#[derive(Debug)]
struct Line {
    /// The tenant's [`Fairness::rank`], as `Class::order` has it.
    rank: u64,
    ready: BTreeMap<Place, SequenceKey>,
}

#[derive(Debug, Default)]
struct Class {
    lines: BTreeMap<TenantKey, Line>,
    order: BTreeSet<(u64, TenantKey)>,
    by_age: BTreeMap<(Millis, u64), SequenceKey>,
}

impl Class {
    fn set_rank(&mut self, tenant: TenantKey, rank: u64) {
        if let Some(line) = self.lines.get_mut(&tenant)
            && line.rank != rank
        {
            self.order.remove(&(line.rank, tenant));
            self.order.insert((rank, tenant));
            line.rank = rank;
        }
    }

    fn insert(&mut self, rank: Rank, tenant_rank: u64, key: SequenceKey) {
        let line = self.lines.entry(rank.tenant).or_insert_with(|| {
            self.order.insert((tenant_rank, rank.tenant));
            Line { rank: tenant_rank, ready: BTreeMap::new() }
        });
        let previous = line.ready.insert(rank.place, key);
        assert!(previous.is_none(), "places are unique");
        self.by_age.insert(rank.age(), key);
    }

    fn remove(&mut self, rank: Rank) {
        let line = self.lines.get_mut(&rank.tenant).expect("a sequence with a place is in its tenant's line");
        let removed = line.ready.remove(&rank.place);
        assert!(removed.is_some(), "the sequence was ready");
        if line.ready.is_empty() {
            self.order.remove(&(line.rank, rank.tenant));
            self.lines.remove(&rank.tenant);
        }
        self.by_age.remove(&rank.age());
    }
}

/// The waiting sequences. A parked sequence, which waits for another one's prefix, is counted but has no place. All
/// operations cost O(log n).
#[derive(Debug, Default)]
pub struct Queue {
    /// The classes, indexed by [`Priority`].
    classes: [Class; Priority::ALL.len()],
    num_ready: usize,
    num_parked: usize,
    /// The waiting sequences that never started.
    num_new: u32,
    num_uncached_tokens: u64,
}

impl Queue {
    /// Adds a sequence. `tenant_rank` is its tenant's [`Fairness::rank`].
    pub fn enter(
        &mut self,
        rank: Rank,
        tenant_rank: u64,
        key: SequenceKey,
        is_new: bool,
        num_uncached_tokens: u32,
    ) {
        self.class(rank.priority).insert(rank, tenant_rank, key);
        self.num_ready += 1;
        self.num_new += u32::from(is_new);
        self.num_uncached_tokens += u64::from(num_uncached_tokens);
    }

    /// Removes a sequence. It was parked if it has no rank.
    pub fn leave(&mut self, rank: Option<Rank>, is_new: bool, num_uncached_tokens: u32) {
        match rank {
            Some(rank) => {
                self.class(rank.priority).remove(rank);
                self.num_ready -= 1;
            }
            None => self.num_parked -= 1,
        }
        self.num_new -= u32::from(is_new);
        self.num_uncached_tokens -= u64::from(num_uncached_tokens);
    }

    /// Removes a sequence from its place but keeps counting it.
    pub fn park(&mut self, rank: Rank) {
        self.class(rank.priority).remove(rank);
        self.num_ready -= 1;
        self.num_parked += 1;
    }

    /// Takes over the ranks of tenants that have changed.
    pub fn sort(&mut self, fairness: &mut Fairness) {
        while let Some((tenant, rank)) = fairness.next_stale() {
            self.classes.iter_mut().for_each(|class| class.set_rank(tenant, rank));
        }
    }

    /// The sequences in order: by class, then by the rank of their tenants, then by place. [`Queue::sort`] comes first.
    pub fn iter(&self) -> impl Iterator<Item = SequenceKey> {
        let lines =
            self.classes.iter().flat_map(|class| class.order.iter().map(|(_, tenant)| &class.lines[tenant]));
        lines.flat_map(|line| line.ready.values().copied())
    }

    /// Returns the sequence that has waited longest in a class, if it began to wait at `limit` or earlier.
    pub fn waiting_since(&self, priority: Priority, limit: Millis) -> Option<SequenceKey> {
        let (&(since, _), &key) = self.classes[priority as usize].by_age.first_key_value()?;
        (since <= limit).then_some(key)
    }

    fn class(&mut self, priority: Priority) -> &mut Class {
        &mut self.classes[priority as usize]
    }

    /// The number of waiting sequences, parked ones included.
    pub fn num_waiting(&self) -> usize {
        self.num_ready + self.num_parked
    }

    /// The number of waiting sequences that never started, to which the queue's limit applies.
    pub fn num_new(&self) -> u32 {
        self.num_new
    }

    /// The tokens that all waiting sequences have to compute before their next token.
    pub fn num_uncached_tokens(&self) -> u64 {
        self.num_uncached_tokens
    }
}
