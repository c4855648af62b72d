//! Weighted fair queueing between tenants: virtual token counters (Sheng et al., OSDI 2024, algorithm 2).
//!
//! Every tenant has a counter of what was planned for it, divided by its weight; whoever has the least goes first. A
//! token of a prompt costs 1, one of the output 2. What is cached costs nothing, as the device does nothing for it, and
//! neither does what has to be computed again after a preemption, which nobody asks for. Prompts are charged as their
//! chunks are planned; what was admitted and not planned yet counts where tenants are ranked in the queue.
//!
//! A tenant that comes back with an empty queue is lifted to those that waited meanwhile, less a bounded credit: what
//! it left unused is not saved up, but a tenant that asks for little is served at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::TenantWeight;

/// What a computed token of a prompt costs. Section 4.1 of the paper.
pub const PROMPT_TOKEN_COST: u64 = 1;
/// What a token of the output costs.
pub const OUTPUT_TOKEN_COST: u64 = 2;
/// Greatest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1_000_000;
/// Cost 1 at weight 1 on a counter: at least 1 at any weight. 2^44 tokens fit, some years of one busy period.
pub const COST_SCALE: u64 = 1 << 20;
/// Tenants without a sequence whose counters are still ahead, and remembered.
pub const MAX_DEBTS: usize = 1024;
/// The name of who has none.
const NOBODY: &str = "";

/// Names a tenant that has sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantKey(u32);

#[derive(Debug)]
struct TenantState {
    name: Box<str>,
    weight: u32,
    /// Cost of what was planned for it, scaled, by weight.
    counter: u64,
    /// Cost of what was admitted and not planned yet.
    pending: u64,
    /// Its sequences, those included that wait for their last step.
    num_sequences: u32,
    num_waiting: u32,
    /// Those of the waiting that never ran.
    num_new: u32,
    /// Those that get chunks.
    num_running: u32,
    /// Tokens that its waiting sequences have to compute.
    num_uncached_tokens: u64,
    /// The queue does not know its rank yet.
    is_stale: bool,
}

impl TenantState {
    fn scaled(&self, cost: u64) -> u64 {
        cost.saturating_mul(COST_SCALE) / u64::from(self.weight)
    }

    fn is_active(&self) -> bool {
        self.num_waiting + self.num_running > 0
    }
}

/// What a tenant has waiting, for predictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub num_waiting: u64,
    pub num_uncached_tokens: u64,
}

/// The counters of all tenants that have sequences, and of those that are still ahead of others. Where nobody has a
/// sequence, all are forgotten: nobody was kept waiting.
#[derive(Debug)]
pub struct Fairness {
    /// By name; 1 for who is not named.
    weights: BTreeMap<Box<str>, u32>,
    max_credit: u64,
    slots: Vec<Option<TenantState>>,
    free: Vec<TenantKey>,
    by_name: BTreeMap<Box<str>, TenantKey>,
    /// Counters of tenants without a sequence.
    debts: BTreeSet<(u64, TenantKey)>,
    num_sequences: u64,
    /// Where those who wait have got to. Never goes back in a busy period.
    virtual_time: u64,
    stale: Vec<TenantKey>,
}

impl Fairness {
    /// No tenant may be ahead of those that waited by more than `max_credit_tokens` of prompt.
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
        };
        fairness.set_weights(weights);
        fairness
    }

    /// From now on tokens cost by these weights.
    pub fn set_weights(&mut self, weights: &[TenantWeight]) {
        self.weights = weights.iter().map(|weight| (weight.tenant.clone(), weight.weight)).collect();
        for index in 0..self.slots.len() {
            let Some(tenant) = &mut self.slots[index] else { continue };
            tenant.weight = weight(&self.weights, &tenant.name);
            self.mark(TenantKey(index as u32));
        }
    }

    /// A tenant has one more sequence.
    pub fn enter(&mut self, name: Option<&str>) -> TenantKey {
        let name = name.unwrap_or(NOBODY);
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
            pending: 0,
            num_sequences: 0,
            num_waiting: 0,
            num_new: 0,
            num_running: 0,
            num_uncached_tokens: 0,
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

    /// One of its sequences is gone.
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
        self.slots.clear();
        self.free.clear();
        self.by_name.clear();
        self.debts.clear();
        self.stale.clear();
        self.virtual_time = 0;
    }

    fn forget(&mut self, key: TenantKey) {
        let tenant = self.slots[key.0 as usize].take().expect("the key names a tenant");
        self.by_name.remove(&tenant.name);
        self.free.push(key);
    }

    /// A new sequence of it is about to wait. If none did, it is lifted: to the least of those that wait, or else of
    /// those that run, less its credit. O(tenants).
    pub fn lift(&mut self, key: TenantKey) {
        if self.tenant(key).num_waiting > 0 {
            return;
        }
        let others = || self.tenants().filter(|&(other, tenant)| other != key && tenant.is_active());
        let waiting = others().filter(|(_, tenant)| tenant.num_waiting > 0).map(|(_, t)| t.counter).min();
        let least = waiting.or_else(|| others().map(|(_, tenant)| tenant.counter).min());
        self.virtual_time = self.virtual_time.max(least.unwrap_or(0));
        let (now, max_credit) = (self.virtual_time, self.max_credit);
        let tenant = self.tenant_mut(key);
        tenant.counter = tenant.counter.max(now.saturating_sub(tenant.scaled(max_credit)));
        self.mark(key);
    }

    /// A sequence of it waits; a new one never ran.
    pub fn begin_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting += 1;
        tenant.num_new += u32::from(is_new);
        tenant.num_uncached_tokens += u64::from(num_uncached_tokens);
    }

    /// It waits no more.
    pub fn end_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting -= 1;
        tenant.num_new -= u32::from(is_new);
        tenant.num_uncached_tokens -= u64::from(num_uncached_tokens);
    }

    /// A sequence of it runs that has so many tokens of its prompt to pay for.
    pub fn begin_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_running += 1;
        tenant.pending += u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        self.mark(key);
    }

    /// It gets no more chunks, and has not paid for so many.
    pub fn end_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_running -= 1;
        tenant.pending -= u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        self.mark(key);
    }

    /// So many tokens of a running sequence's prompt were planned.
    pub fn pay(&mut self, key: TenantKey, num_tokens: u32) {
        let cost = u64::from(num_tokens) * PROMPT_TOKEN_COST;
        self.tenant_mut(key).pending -= cost;
        self.charge(key, cost);
    }

    /// Something else was planned that costs so much.
    pub fn charge(&mut self, key: TenantKey, cost: u64) {
        let tenant = self.tenant_mut(key);
        tenant.counter = tenant.counter.saturating_add(tenant.scaled(cost));
        self.mark(key);
    }

    fn mark(&mut self, key: TenantKey) {
        let tenant = self.tenant_mut(key);
        if !tenant.is_stale {
            tenant.is_stale = true;
            self.stale.push(key);
        }
    }

    /// A tenant whose rank has changed since it was told, with its rank; each once.
    pub fn next_stale(&mut self) -> Option<(TenantKey, u64)> {
        while let Some(key) = self.stale.pop() {
            if let Some(tenant) = &mut self.slots[key.0 as usize] {
                tenant.is_stale = false;
                return Some((key, self.rank(key)));
            }
        }
        None
    }

    /// Its place in the queue, the lowest first: what it got and what was admitted for it.
    pub fn rank(&self, key: TenantKey) -> u64 {
        let tenant = self.tenant(key);
        tenant.counter.saturating_add(tenant.scaled(tenant.pending))
    }

    /// What it got so far.
    pub fn served(&self, key: TenantKey) -> u64 {
        self.tenant(key).counter
    }

    /// [`trunkline_kv::Salt::tenant`].
    pub fn name(&self, key: TenantKey) -> Option<&str> {
        let name = &*self.tenant(key).name;
        (name != NOBODY).then_some(name)
    }

    /// Its sequences that get chunks.
    pub fn num_running(&self, key: TenantKey) -> u32 {
        self.tenant(key).num_running
    }

    /// Its part of something that all active tenants share, by weight; at least 1. O(tenants).
    pub fn fair_part(&self, key: TenantKey, total: u32) -> u32 {
        let part = u64::from(total) * u64::from(self.tenant(key).weight) / self.active_weight().max(1);
        (part as u32).max(1)
    }

    /// What is ahead of one more sequence of this tenant, given what waits in all: its own, and as much of the others
    /// as their weights let through meanwhile. O(tenants).
    pub fn backlog_ahead(&self, name: Option<&str>, all: Backlog) -> Backlog {
        let name = name.unwrap_or(NOBODY);
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

    /// How many sequences of a tenant wait that never ran, where there are keys of several; none if it need not share
    /// the queue.
    pub fn num_new(&self, name: Option<&str>) -> Option<u32> {
        let name = name.filter(|_| self.weights.len() > 1)?;
        Some(self.by_name.get(name).map_or(0, |&key| self.tenant(key).num_new))
    }

    /// Whether there are several tenants.
    pub fn is_shared(&self) -> bool {
        self.by_name.len() > 1
    }

    /// Whether another tenant has sequences that wait or run. O(tenants).
    pub fn has_others(&self, key: TenantKey) -> bool {
        self.tenants().any(|(other, tenant)| other != key && tenant.is_active())
    }

    /// True if it keeps anything of a tenant with this name.
    pub fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// True if nothing is kept of anybody.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.virtual_time == 0
    }

    /// Tenants that left and are ahead of others.
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

    /// Panics unless counts are those of the sequences, given for each as (tenant, waits, waits and never ran,
    /// runs, unpaid tokens).
    pub fn check(&self, sequences: impl Iterator<Item = (TenantKey, bool, bool, bool, u32)>) {
        let mut counted = BTreeMap::new();
        for (key, waits, is_new, runs, num_unpaid) in sequences {
            let (sequences, waiting, new, running, pending) = counted.entry(key).or_insert((0, 0, 0, 0, 0));
            *sequences += 1;
            *waiting += u32::from(waits);
            *new += u32::from(is_new);
            *running += u32::from(runs);
            *pending += u64::from(num_unpaid) * PROMPT_TOKEN_COST;
        }
        let mut num_debts = 0;
        for (key, tenant) in self.tenants() {
            let TenantState { num_sequences, num_waiting, num_new, num_running, pending, .. } = *tenant;
            let known = (num_sequences, num_waiting, num_new, num_running, pending);
            assert_eq!(known, counted.remove(&key).unwrap_or_default(), "what tenant `{}` has", tenant.name);
            num_debts += usize::from(tenant.num_sequences == 0);
            assert_eq!(tenant.num_sequences == 0, self.debts.contains(&(tenant.counter, key)), "debts");
            assert_eq!(self.by_name.get(&tenant.name), Some(&key), "a tenant is found by its name");
        }
        assert!(counted.is_empty(), "a sequence's tenant is known");
        assert!(num_debts == self.debts.len() && num_debts <= MAX_DEBTS, "debts are bounded");
        assert!(self.num_sequences > 0 || self.by_name.is_empty(), "when nobody is there all is forgotten");
    }
}

fn weight(weights: &BTreeMap<Box<str>, u32>, name: &str) -> u32 {
    weights.get(name).copied().unwrap_or(1).clamp(1, MAX_WEIGHT)
}
