//! The waiting sequences in order: by class, then by tenant, then by the tenant's adapter, then by age, where a cached
//! prefix counts as some age.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Millis, Priority};
use crate::fairness::{Fairness, TenantKey};
use crate::sequence::{Place, Rank, SequenceKey};

/// The waiting sequences of one tenant in one class.
#[derive(Debug)]
struct Line {
    /// The tenant's [`Fairness::rank`], as `Class::order` has it.
    rank: u64,
    adapters: BTreeMap<TenantKey, AdapterLine>,
    order: BTreeSet<(u64, Place, TenantKey)>,
}

/// Those of them that name one adapter.
#[derive(Debug)]
struct AdapterLine {
    /// The adapter's [`Fairness::rank`] among those of the tenant.
    rank: u64,
    ready: BTreeMap<Place, SequenceKey>,
}

impl Line {
    /// Changes the line of an adapter, which is new with this rank if there was none, and keeps the order. Of adapters
    /// that got equally much, the one whose first sequence is older goes first: many of them have one request each.
    fn change(&mut self, adapter: TenantKey, new_rank: u64, change: impl FnOnce(&mut AdapterLine)) {
        let new = || AdapterLine { rank: new_rank, ready: BTreeMap::new() };
        let line = self.adapters.entry(adapter).or_insert_with(new);
        let place =
            |line: &AdapterLine| line.ready.first_key_value().map(|(&place, _)| (line.rank, place, adapter));
        let before = place(line);
        change(line);
        let after = place(line);
        if before != after {
            before.map(|before| self.order.remove(&before));
            self.order.extend(after);
        }
        if after.is_none() {
            self.adapters.remove(&adapter);
        }
    }
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

    fn set_adapter_rank(&mut self, tenant: TenantKey, adapter: TenantKey, rank: u64) {
        if let Some(line) = self.lines.get_mut(&tenant)
            && line.adapters.contains_key(&adapter)
        {
            line.change(adapter, rank, |line| line.rank = rank);
        }
    }

    fn insert(&mut self, rank: Rank, fairness: &Fairness, key: SequenceKey) {
        let tenant_rank = fairness.rank(rank.tenant);
        let line = self.lines.entry(rank.tenant).or_insert_with(|| {
            self.order.insert((tenant_rank, rank.tenant));
            Line { rank: tenant_rank, adapters: BTreeMap::new(), order: BTreeSet::new() }
        });
        let adapter_rank = fairness.adapters(rank.tenant).rank(rank.adapter);
        line.change(rank.adapter, adapter_rank, |line| {
            let previous = line.ready.insert(rank.place, key);
            assert!(previous.is_none(), "places are unique");
        });
        self.by_age.insert(rank.age(), key);
    }

    fn remove(&mut self, rank: Rank) {
        let line = self.lines.get_mut(&rank.tenant).expect("a sequence with a place is in its tenant's line");
        line.change(rank.adapter, 0, |line| {
            let removed = line.ready.remove(&rank.place);
            assert!(removed.is_some(), "the sequence was ready");
        });
        if line.adapters.is_empty() {
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
    /// Adds a sequence.
    pub fn enter(
        &mut self,
        rank: Rank,
        fairness: &Fairness,
        key: SequenceKey,
        is_new: bool,
        num_uncached_tokens: u32,
    ) {
        self.class(rank.priority).insert(rank, fairness, key);
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

    /// Takes over the ranks of tenants and of their adapters that have changed. A change of the latter is one of the
    /// former as well.
    pub fn sort(&mut self, fairness: &mut Fairness) {
        while let Some((tenant, rank)) = fairness.next_stale() {
            self.classes.iter_mut().for_each(|class| class.set_rank(tenant, rank));
            while let Some((adapter, rank)) = fairness.adapters_mut(tenant).next_stale() {
                self.classes.iter_mut().for_each(|class| class.set_adapter_rank(tenant, adapter, rank));
            }
        }
    }

    /// The sequences in order: by class, then by the ranks of their tenants and adapters, then by place.
    /// [`Queue::sort`] comes first.
    pub fn iter(&self) -> impl Iterator<Item = SequenceKey> {
        let lines =
            self.classes.iter().flat_map(|class| class.order.iter().map(|(_, tenant)| &class.lines[tenant]));
        let lines = lines.flat_map(|line| line.order.iter().map(|(_, _, adapter)| &line.adapters[adapter]));
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
