//! Who waits, and in which order: by class, in it by tenant, and of each tenant by age and what is cached.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{Millis, Priority};
use crate::fairness::{Fairness, TenantKey};
use crate::sequence::SequenceKey;

/// A place among the sequences of one tenant in one class; the lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Arrival in milliseconds, moved back by what is cached: bounded, so age wins in the end.
    pub effective_ms: u64,
    /// Unique.
    pub arrival: u64,
}

/// Where a sequence waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub priority: Priority,
    pub tenant: TenantKey,
    pub place: Place,
    /// Since when it waits in this class.
    pub since: Millis,
}

impl Rank {
    fn age(&self) -> (Millis, u64) {
        (self.since, self.place.arrival)
    }
}

/// What one tenant has waiting in one class.
#[derive(Debug)]
struct Line {
    /// [`Fairness::rank`], as it stands in `Class::order`.
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
        let line = self.lines.get_mut(&rank.tenant).expect("who is ready is in a line");
        let removed = line.ready.remove(&rank.place);
        assert!(removed.is_some(), "the sequence was ready");
        if line.ready.is_empty() {
            self.order.remove(&(line.rank, rank.tenant));
            self.lines.remove(&rank.tenant);
        }
        self.by_age.remove(&rank.age());
    }
}

/// Waiting sequences. Those that wait for another one's prefix are counted but have no place ("parked"). All costs are
/// O(log n).
#[derive(Debug, Default)]
pub struct Queue {
    /// By [`Priority`].
    classes: [Class; Priority::ALL.len()],
    num_ready: usize,
    num_parked: usize,
    /// Those waiting that never started.
    num_new: u32,
    num_uncached_tokens: u64,
}

impl Queue {
    /// Adds a sequence that did not wait; `tenant_rank` is its tenant's.
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

    /// Removes a sequence; no rank: it was parked.
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

    /// Takes a sequence's place but keeps counting it.
    pub fn park(&mut self, rank: Rank) {
        self.class(rank.priority).remove(rank);
        self.num_ready -= 1;
        self.num_parked += 1;
    }

    /// Who goes next: the first of the tenant that has got least in the highest class.
    pub fn first(&mut self, fairness: &mut Fairness) -> Option<SequenceKey> {
        while let Some((tenant, rank)) = fairness.next_stale() {
            self.classes.iter_mut().for_each(|class| class.set_rank(tenant, rank));
        }
        let class = self.classes.iter().find(|class| !class.order.is_empty())?;
        let (_, tenant) = class.order.first()?;
        class.lines[tenant].ready.first_key_value().map(|(_, &key)| key)
    }

    /// Who has waited longest in a class, if it is since `limit` or before.
    pub fn waiting_since(&self, priority: Priority, limit: Millis) -> Option<SequenceKey> {
        let (&(since, _), &key) = self.classes[priority as usize].by_age.first_key_value()?;
        (since <= limit).then_some(key)
    }

    fn class(&mut self, priority: Priority) -> &mut Class {
        &mut self.classes[priority as usize]
    }
    /// All that wait.
    pub fn num_waiting(&self) -> usize {
        self.num_ready + self.num_parked
    }

    /// Those that never started: what the limit counts.
    pub fn num_new(&self) -> u32 {
        self.num_new
    }

    /// Tokens that all that wait have to compute before their next token.
    pub fn num_uncached_tokens(&self) -> u64 {
        self.num_uncached_tokens
    }
}
