//! Weighted fair queueing between tenants: virtual token counters (Sheng et al., OSDI 2024, algorithm 2).
//!
//! Every tenant has a counter of its cost, divided by its weight, and the tenant with the lowest counter goes first. A
//! token of a prompt costs 1, and one of the output 2. Cached tokens cost nothing, because the device does nothing for
//! them. Tokens that are computed again after a preemption cost nothing either, because no client asked for that.
//!
//! A tenant is charged when results arrive. Until then the cost of its chunks in flight is reserved: it counts as
//! served, but it is released without a charge if the shard is lost. The cost of prompts that were admitted and not
//! planned counts only where tenants are ranked in the queue.
//!
//! A tenant that comes back with an empty queue is lifted to the tenants that waited meanwhile, less a bounded credit.
//! It cannot save up unused time, but if it asks for little it is served at once.
//!
//! What a tenant gets is divided among its adapters in the same way, with equal weights and no credit
//! ([`Fairness::adapters`]). The model alone counts as one of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::TenantWeight;
use crate::consumption::Consumption;

/// The cost of a computed token of a prompt; section 4.1 of the paper.
pub const PROMPT_TOKEN_COST: u64 = 1;
/// The cost of a token of the output.
pub const OUTPUT_TOKEN_COST: u64 = 2;
/// The greatest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1_000_000;
/// The amount that a cost of 1 at weight 1 adds to a counter, so that it adds at least 1 at any weight. 2^44 tokens
/// fit, which is some years of one busy period.
pub const COST_SCALE: u64 = 1 << 20;
/// The most tenants without a sequence whose counters are remembered, because they are still ahead of others.
pub const MAX_DEBTS: usize = 1024;
/// The name of requests without a tenant.
const NO_NAME: &str = "";

/// Names a tenant that has sequences, or an adapter among those of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantKey(u32);

#[derive(Debug)]
struct TenantState {
    name: Box<str>,
    weight: u32,
    /// The cost that it was charged, scaled and divided by its weight.
    counter: u64,
    /// The cost of its chunks in flight.
    reserved: u64,
    /// The cost of its admitted prompts that was not planned yet.
    pending: u64,
    /// All its sequences, including those that wait for their last step.
    num_sequences: u32,
    num_waiting: u32,
    /// The waiting sequences that never ran.
    num_new: u32,
    /// The sequences that get chunks.
    num_running: u32,
    /// The tokens that its waiting sequences have to compute.
    num_uncached_tokens: u64,
    /// The work for it since [`Fairness::take_consumption`].
    consumption: Consumption,
    /// The counters of its adapters, by their names.
    adapters: Fairness,
    /// True if its rank has changed since the queue took it.
    is_stale: bool,
}

impl TenantState {
    fn scaled(&self, cost: u64) -> u64 {
        cost.saturating_mul(COST_SCALE) / u64::from(self.weight)
    }

    fn served(&self) -> u64 {
        self.counter.saturating_add(self.scaled(self.reserved))
    }

    fn is_active(&self) -> bool {
        self.num_waiting + self.num_running > 0
    }
}

/// The contribution of one sequence to its tenant's counts, for [`Fairness::check`].
#[derive(Clone, Copy, Debug)]
pub struct SequenceCounts {
    pub tenant: TenantKey,
    pub adapter: TenantKey,
    pub waits: bool,
    pub is_new: bool,
    pub runs: bool,
    pub num_unpaid_tokens: u32,
    /// The cost of its chunks in flight.
    pub reserved: u64,
}

/// Waiting work, for predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub num_waiting: u64,
    pub num_uncached_tokens: u64,
}

/// The counters of all tenants that have sequences, and of tenants that left while they were ahead of others. When the
/// last sequence leaves, all counters are forgotten, because no tenant waits any more.
#[derive(Debug)]
pub struct Fairness {
    /// The configured weights by tenant. Other tenants have weight 1.
    weights: BTreeMap<Box<str>, u32>,
    max_credit: u64,
    slots: Vec<Option<TenantState>>,
    free: Vec<TenantKey>,
    by_name: BTreeMap<Box<str>, TenantKey>,
    /// The counters of tenants without a sequence.
    debts: BTreeSet<(u64, TenantKey)>,
    num_sequences: u64,
    /// The lowest counter that waiting tenants have reached. It never goes back in a busy period.
    virtual_time: u64,
    stale: Vec<TenantKey>,
    /// The work for forgotten tenants since [`Fairness::take_consumption`].
    of_forgotten: BTreeMap<Box<str>, Consumption>,
}

impl Fairness {
    /// Creates counters under which a returning tenant is at most `max_credit_tokens` of prompt ahead of the tenants
    /// that waited.
    pub fn new(weights: &[TenantWeight], max_credit_tokens: u32) -> Self {
        let mut fairness = Self {
            weights: BTreeMap::new(),
            max_credit: u64::from(max_credit_tokens) * PROMPT_TOKEN_COST,
            slots: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            debts: BTreeSet::new(),
            num_sequences: 0,
            virtual_time: 0,
            stale: Vec::new(),
            of_forgotten: BTreeMap::new(),
        };
        fairness.set_weights(weights);
        fairness
    }

    /// Replaces the weights. Later charges use the new ones.
    pub fn set_weights(&mut self, weights: &[TenantWeight]) {
        self.weights = weights.iter().map(|weight| (weight.tenant.clone(), weight.weight)).collect();
        for index in 0..self.slots.len() {
            let Some(tenant) = &self.slots[index] else { continue };
            let weight = weight(&self.weights, &tenant.name);
            self.update(TenantKey(index as u32), |tenant| tenant.weight = weight);
        }
    }

    /// Counts one more sequence of a tenant.
    pub fn enter(&mut self, name: Option<&str>) -> TenantKey {
        let name = name.unwrap_or(NO_NAME);
        let key = match self.by_name.get(name) {
            Some(&key) => key,
            None => self.insert(name),
        };
        self.num_sequences += 1;
        let tenant = self.tenant_mut(key);
        tenant.num_sequences += 1;
        let debt = (tenant.counter, key);
        self.debts.remove(&debt);
        key
    }

    fn insert(&mut self, name: &str) -> TenantKey {
        let tenant = TenantState {
            name: name.into(),
            weight: weight(&self.weights, name),
            counter: 0,
            reserved: 0,
            pending: 0,
            num_sequences: 0,
            num_waiting: 0,
            num_new: 0,
            num_running: 0,
            num_uncached_tokens: 0,
            consumption: Consumption::default(),
            adapters: Fairness::new(&[], 0),
            is_stale: false,
        };
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            TenantKey((self.slots.len() - 1) as u32)
        });
        self.slots[key.0 as usize] = Some(tenant);
        self.by_name.insert(name.into(), key);
        key
    }

    /// The counters by which a tenant's adapters share what it gets. They count the same sequences and costs.
    pub fn adapters(&self, key: TenantKey) -> &Self {
        &self.tenant(key).adapters
    }

    pub fn adapters_mut(&mut self, key: TenantKey) -> &mut Self {
        &mut self.tenant_mut(key).adapters
    }

    /// Counts one sequence less, because it was removed.
    pub fn leave(&mut self, key: TenantKey) {
        self.num_sequences -= 1;
        let tenant = self.tenant_mut(key);
        tenant.num_sequences -= 1;
        if tenant.num_sequences == 0 {
            let debt = (tenant.counter, key);
            self.debts.insert(debt);
        }
        if self.num_sequences == 0 {
            self.clear();
        }
        while let Some(&(counter, key)) = self.debts.first() {
            let tenant = self.tenant(key);
            let lifted = self.virtual_time.saturating_sub(tenant.scaled(self.max_credit));
            if counter > lifted && self.debts.len() <= MAX_DEBTS {
                break;
            }
            self.debts.pop_first();
            self.forget(key);
        }
    }

    fn clear(&mut self) {
        for tenant in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.keep_consumption(tenant);
        }
        self.free.clear();
        self.by_name.clear();
        self.debts.clear();
        self.stale.clear();
        self.virtual_time = 0;
    }

    fn forget(&mut self, key: TenantKey) {
        let tenant = self.slots[key.0 as usize].take().expect("the key names a tenant");
        self.by_name.remove(&tenant.name);
        self.keep_consumption(tenant);
        self.free.push(key);
    }

    fn keep_consumption(&mut self, tenant: TenantState) {
        if tenant.consumption != Consumption::default() {
            *self.of_forgotten.entry(tenant.name).or_default() += tenant.consumption;
        }
    }

    /// Adds to what was done for a tenant.
    pub fn consume(&mut self, key: TenantKey, consumption: Consumption) {
        self.slots[key.0 as usize].as_mut().expect("the key names a tenant").consumption += consumption;
    }

    /// Passes what was done for each tenant since the last call to `take`. The name is `None` for requests without a
    /// tenant.
    pub fn take_consumption(&mut self, mut take: impl FnMut(Option<&str>, Consumption)) {
        while let Some((name, consumption)) = self.of_forgotten.pop_first() {
            take(named(&name), consumption);
        }
        for tenant in self.slots.iter_mut().flatten() {
            let consumption = std::mem::take(&mut tenant.consumption);
            if consumption != Consumption::default() {
                take(named(&tenant.name), consumption);
            }
        }
    }

    /// Lifts a tenant that is about to have a waiting sequence and has none yet. Its counter is raised to the lowest
    /// one of the tenants that wait, or else of those that run, less its credit. O(tenants).
    pub fn lift(&mut self, key: TenantKey) {
        if self.tenant(key).num_waiting > 0 {
            return;
        }
        let others = || self.tenants().filter(|&(other, tenant)| other != key && tenant.is_active());
        let waiting = others().filter(|(_, tenant)| tenant.num_waiting > 0).map(|(_, t)| t.served()).min();
        let least = waiting.or_else(|| others().map(|(_, tenant)| tenant.served()).min());
        self.virtual_time = self.virtual_time.max(least.unwrap_or(0));
        let (now, max_credit) = (self.virtual_time, self.max_credit);
        self.update(key, |tenant| {
            let reserved = tenant.scaled(tenant.reserved);
            let lifted = now.saturating_sub(tenant.scaled(max_credit)).saturating_sub(reserved);
            tenant.counter = tenant.counter.max(lifted);
        });
    }

    /// Counts a waiting sequence, which is new if it never ran.
    pub fn begin_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting += 1;
        tenant.num_new += u32::from(is_new);
        tenant.num_uncached_tokens += u64::from(num_uncached_tokens);
    }

    /// Counts a waiting sequence less.
    pub fn end_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting -= 1;
        tenant.num_new -= u32::from(is_new);
        tenant.num_uncached_tokens -= u64::from(num_uncached_tokens);
    }

    /// Counts a running sequence. `num_unpaid_tokens` of its prompt will be planned and charged.
    pub fn begin_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        self.update(key, |tenant| {
            tenant.num_running += 1;
            tenant.pending += u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        });
    }

    /// Counts a running sequence less, which will plan none of its `num_unpaid_tokens`.
    pub fn end_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        self.update(key, |tenant| {
            tenant.num_running -= 1;
            tenant.pending -= u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        });
    }

    /// Reserves the cost of a chunk: `num_prompt_tokens` that count as unpaid, and `num_samples`. Returns the cost, for
    /// [`Fairness::release`].
    pub fn reserve(&mut self, key: TenantKey, num_prompt_tokens: u32, num_samples: u32) -> u64 {
        let prompt_cost = u64::from(num_prompt_tokens) * PROMPT_TOKEN_COST;
        let cost = prompt_cost + u64::from(num_samples) * OUTPUT_TOKEN_COST;
        self.update(key, |tenant| {
            tenant.pending -= prompt_cost;
            tenant.reserved += cost;
        });
        cost
    }

    /// Releases the reserved cost of a chunk, whose result has arrived or never will.
    pub fn release(&mut self, key: TenantKey, cost: u64) {
        self.update(key, |tenant| tenant.reserved -= cost);
    }

    /// Adds a cost to a tenant's counter.
    pub fn charge(&mut self, key: TenantKey, cost: u64) {
        self.update(key, |tenant| tenant.counter = tenant.counter.saturating_add(tenant.scaled(cost)));
    }

    /// Changes a tenant's state, and notes that the queue must take its new rank.
    fn update(&mut self, key: TenantKey, change: impl FnOnce(&mut TenantState)) {
        let tenant = self.slots[key.0 as usize].as_mut().expect("the key names a tenant");
        change(tenant);
        if !tenant.is_stale {
            tenant.is_stale = true;
            self.stale.push(key);
        }
    }

    /// Returns a tenant whose rank has changed since the last call that returned it, with its rank.
    pub fn next_stale(&mut self) -> Option<(TenantKey, u64)> {
        while let Some(key) = self.stale.pop() {
            if let Some(tenant) = &mut self.slots[key.0 as usize] {
                tenant.is_stale = false;
                return Some((key, self.rank(key)));
            }
        }
        None
    }

    /// A tenant's place in the queue, the lowest first: its counter with everything that is in flight or admitted.
    pub fn rank(&self, key: TenantKey) -> u64 {
        let tenant = self.tenant(key);
        tenant.counter.saturating_add(tenant.scaled(tenant.reserved + tenant.pending))
    }

    /// A tenant's counter with everything that is in flight.
    pub fn served(&self, key: TenantKey) -> u64 {
        self.tenant(key).served()
    }

    /// A tenant's name, as in [`trunkline_kv::Salt::tenant`].
    pub fn name(&self, key: TenantKey) -> Option<&str> {
        let name = &*self.tenant(key).name;
        (name != NO_NAME).then_some(name)
    }

    /// The number of a tenant's sequences that get chunks.
    pub fn num_running(&self, key: TenantKey) -> u32 {
        self.tenant(key).num_running
    }

    /// A tenant's part by weight of a resource that all active tenants share; at least 1. O(tenants).
    pub fn fair_part(&self, key: TenantKey, total: u32) -> u32 {
        let part = u64::from(total) * u64::from(self.tenant(key).weight) / self.active_weight().max(1);
        (part as u32).max(1)
    }

    /// Returns the work ahead of one more sequence of a tenant: the tenant's own, and as much of the other tenants' as
    /// their weights admit meanwhile. `all` is all waiting work. O(tenants).
    pub fn backlog_ahead(&self, name: Option<&str>, all: Backlog) -> Backlog {
        let name = name.unwrap_or(NO_NAME);
        let known = self.by_name.get(name).map(|&key| self.tenant(key));
        let weight = u64::from(weight(&self.weights, name));
        let is_counted = known.is_some_and(TenantState::is_active);
        let all_weights = self.active_weight() + if is_counted { 0 } else { weight };
        let (num_waiting, num_tokens) =
            known.map_or((0, 0), |tenant| (u64::from(tenant.num_waiting), tenant.num_uncached_tokens));
        let shared = |own: u64| (u128::from(own) * u128::from(all_weights) / u128::from(weight)) as u64;
        Backlog {
            num_waiting: shared(num_waiting).min(all.num_waiting),
            num_uncached_tokens: shared(num_tokens).min(all.num_uncached_tokens),
        }
    }

    /// Returns the number of a tenant's waiting sequences that never ran. None if the tenant need not share the queue,
    /// because weights are configured for at most one.
    pub fn num_new(&self, name: Option<&str>) -> Option<u32> {
        let name = name.filter(|_| self.weights.len() > 1)?;
        Some(self.by_name.get(name).map_or(0, |&key| self.tenant(key).num_new))
    }

    /// Returns true if there are several tenants.
    pub fn is_shared(&self) -> bool {
        self.by_name.len() > 1
    }

    /// Returns true if another tenant has sequences that wait or run. O(tenants).
    pub fn has_others(&self, key: TenantKey) -> bool {
        self.tenants().any(|(other, tenant)| other != key && tenant.is_active())
    }

    /// Returns true if a tenant with this name is remembered.
    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns true if no tenant is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.virtual_time == 0
    }

    /// The number of tenants that left while they were ahead of others.
    pub fn num_debts(&self) -> usize {
        self.debts.len()
    }

    fn active_weight(&self) -> u64 {
        let active = self.tenants().filter(|(_, tenant)| tenant.is_active());
        active.map(|(_, tenant)| u64::from(tenant.weight)).sum()
    }

    fn tenants(&self) -> impl Iterator<Item = (TenantKey, &TenantState)> {
        let keys = (0..).map(TenantKey);
        keys.zip(&self.slots).filter_map(|(key, slot)| slot.as_ref().map(|tenant| (key, tenant)))
    }

    fn tenant(&self, key: TenantKey) -> &TenantState {
        self.slots[key.0 as usize].as_ref().expect("the key names a tenant")
    }

    fn tenant_mut(&mut self, key: TenantKey) -> &mut TenantState {
        self.slots[key.0 as usize].as_mut().expect("the key names a tenant")
    }

    /// Panics unless the counts are those of the given sequences.
    pub fn check(&self, sequences: &[SequenceCounts]) {
        self.check_level(sequences, false);
    }

    fn check_level(&self, sequences: &[SequenceCounts], is_adapter: bool) {
        let mut counted = BTreeMap::new();
        for sequence in sequences {
            let (sequences, waiting, new, running, pending, reserved) =
                counted.entry(sequence.tenant).or_insert((0, 0, 0, 0, 0, 0));
            *sequences += 1;
            *waiting += u32::from(sequence.waits);
            *new += u32::from(sequence.waits && sequence.is_new);
            *running += u32::from(sequence.runs);
            *pending += u64::from(sequence.num_unpaid_tokens) * PROMPT_TOKEN_COST;
            *reserved += sequence.reserved;
        }
        let mut num_debts = 0;
        for (key, tenant) in self.tenants() {
            let TenantState { num_sequences, num_waiting, num_new, num_running, pending, reserved, .. } =
                *tenant;
            let known = (num_sequences, num_waiting, num_new, num_running, pending, reserved);
            assert_eq!(known, counted.remove(&key).unwrap_or_default(), "counts of tenant `{}`", tenant.name);
            num_debts += usize::from(tenant.num_sequences == 0);
            assert_eq!(tenant.num_sequences == 0, self.debts.contains(&(tenant.counter, key)), "debts");
            assert_eq!(self.by_name.get(&tenant.name), Some(&key), "a tenant is found by its name");
            let own = sequences.iter().filter(|sequence| sequence.tenant == key && !is_adapter);
            let by_adapter = own.map(|&counts| SequenceCounts { tenant: counts.adapter, ..counts });
            tenant.adapters.check_level(&by_adapter.collect::<Vec<_>>(), true);
        }
        assert!(counted.is_empty(), "a sequence's tenant is known");
        assert!(num_debts == self.debts.len() && num_debts <= MAX_DEBTS, "debts are bounded");
        assert!(
            self.num_sequences > 0 || self.by_name.is_empty(),
            "without sequences all tenants are forgotten"
        );
    }
}

fn named(name: &str) -> Option<&str> {
    (name != NO_NAME).then_some(name)
}

fn weight(weights: &BTreeMap<Box<str>, u32>, name: &str) -> u32 {
    weights.get(name).copied().unwrap_or(1).clamp(1, MAX_WEIGHT)
}
