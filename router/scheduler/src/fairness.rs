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
pub(crate) const PROMPT_TOKEN_COST: u64 = 1;
/// What a token of the output costs.
pub(crate) const OUTPUT_TOKEN_COST: u64 = 2;
/// Greatest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1_000_000;
/// Cost 1 at weight 1 on a counter: at least 1 at any weight. 2^44 tokens fit, some years of one busy period.
const COST_SCALE: u64 = 1 << 20;
/// Tenants without a sequence whose counters are still ahead, and remembered.
const MAX_DEBTS: usize = 1024;
/// The name of who has none.
const NOBODY: &str = "";

/// Names a tenant that has sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantKey(u32);

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
pub(crate) struct Backlog {
    pub(crate) num_waiting: u64,
    pub(crate) num_uncached_tokens: u64,
}

/// The counters of all tenants that have sequences, and of those that are still ahead of others. Where nobody has a
/// sequence, all are forgotten: nobody was kept waiting.
#[derive(Debug)]
pub(crate) struct Fairness {
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
    pub(crate) fn new(weights: &[TenantWeight], max_credit_tokens: u32) -> Self {
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
    pub(crate) fn set_weights(&mut self, weights: &[TenantWeight]) {
        self.weights = weights.iter().map(|weight| (weight.tenant.clone(), weight.weight)).collect();
        for index in 0..self.slots.len() {
            let Some(tenant) = &mut self.slots[index] else { continue };
            tenant.weight = weight(&self.weights, &tenant.name);
            self.mark(TenantKey(index as u32));
        }
    }

    /// A tenant has one more sequence.
    pub(crate) fn enter(&mut self, name: Option<&str>) -> TenantKey {
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
    pub(crate) fn leave(&mut self, key: TenantKey) {
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
    pub(crate) fn lift(&mut self, key: TenantKey) {
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
    pub(crate) fn begin_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting += 1;
        tenant.num_new += u32::from(is_new);
        tenant.num_uncached_tokens += u64::from(num_uncached_tokens);
    }

    /// It waits no more.
    pub(crate) fn end_waiting(&mut self, key: TenantKey, is_new: bool, num_uncached_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_waiting -= 1;
        tenant.num_new -= u32::from(is_new);
        tenant.num_uncached_tokens -= u64::from(num_uncached_tokens);
    }

    /// A sequence of it runs that has so many tokens of its prompt to pay for.
    pub(crate) fn begin_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_running += 1;
        tenant.pending += u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        self.mark(key);
    }

    /// It gets no more chunks, and has not paid for so many.
    pub(crate) fn end_running(&mut self, key: TenantKey, num_unpaid_tokens: u32) {
        let tenant = self.tenant_mut(key);
        tenant.num_running -= 1;
        tenant.pending -= u64::from(num_unpaid_tokens) * PROMPT_TOKEN_COST;
        self.mark(key);
    }

    /// So many tokens of a running sequence's prompt were planned.
    pub(crate) fn pay(&mut self, key: TenantKey, num_tokens: u32) {
        let cost = u64::from(num_tokens) * PROMPT_TOKEN_COST;
        self.tenant_mut(key).pending -= cost;
        self.charge(key, cost);
    }

    /// Something else was planned that costs so much.
    pub(crate) fn charge(&mut self, key: TenantKey, cost: u64) {
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
    pub(crate) fn next_stale(&mut self) -> Option<(TenantKey, u64)> {
        while let Some(key) = self.stale.pop() {
            if let Some(tenant) = &mut self.slots[key.0 as usize] {
                tenant.is_stale = false;
                return Some((key, self.rank(key)));
            }
        }
        None
    }

    /// Its place in the queue, the lowest first: what it got and what was admitted for it.
    pub(crate) fn rank(&self, key: TenantKey) -> u64 {
        let tenant = self.tenant(key);
        tenant.counter.saturating_add(tenant.scaled(tenant.pending))
    }

    /// What it got so far.
    pub(crate) fn served(&self, key: TenantKey) -> u64 {
        self.tenant(key).counter
    }

    /// [`trunkline_kv::Salt::tenant`].
    pub(crate) fn name(&self, key: TenantKey) -> Option<&str> {
        let name = &*self.tenant(key).name;
        (name != NOBODY).then_some(name)
    }

    /// Its sequences that get chunks.
    pub(crate) fn num_running(&self, key: TenantKey) -> u32 {
        self.tenant(key).num_running
    }

    /// Its part of something that all active tenants share, by weight; at least 1. O(tenants).
    pub(crate) fn fair_part(&self, key: TenantKey, total: u32) -> u32 {
        let part = u64::from(total) * u64::from(self.tenant(key).weight) / self.active_weight().max(1);
        (part as u32).max(1)
    }

    /// What is ahead of one more sequence of this tenant, given what waits in all: its own, and as much of the others
    /// as their weights let through meanwhile. O(tenants).
    pub(crate) fn backlog_ahead(&self, name: Option<&str>, all: Backlog) -> Backlog {
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
    pub(crate) fn num_new(&self, name: Option<&str>) -> Option<u32> {
        let name = name.filter(|_| self.weights.len() > 1)?;
        Some(self.by_name.get(name).map_or(0, |&key| self.tenant(key).num_new))
    }

    /// Whether there are several tenants.
    pub(crate) fn is_shared(&self) -> bool {
        self.by_name.len() > 1
    }

    /// Whether another tenant has sequences that wait or run. O(tenants).
    pub(crate) fn has_others(&self, key: TenantKey) -> bool {
        self.tenants().any(|(other, tenant)| other != key && tenant.is_active())
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
    pub(crate) fn check(&self, sequences: impl Iterator<Item = (TenantKey, bool, bool, bool, u32)>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn fairness(weights: &[(&str, u32)], max_credit_tokens: u32) -> Fairness {
        let weights: Vec<_> =
            weights.iter().map(|&(tenant, weight)| TenantWeight { tenant: tenant.into(), weight }).collect();
        Fairness::new(&weights, max_credit_tokens)
    }

    fn submit(fairness: &mut Fairness, name: &str) -> TenantKey {
        let key = fairness.enter(Some(name));
        fairness.lift(key);
        fairness.begin_waiting(key, true, 1);
        key
    }

    #[test]
    fn tokens_cost_by_weight() {
        let mut fairness = fairness(&[("a", 2)], 0);
        let (a, b) = (fairness.enter(Some("a")), fairness.enter(Some("b")));
        fairness.begin_running(a, 10);
        fairness.begin_running(b, 5);
        assert_eq!(fairness.rank(a), fairness.rank(b), "10 tokens at weight 2 are 5 at weight 1");
        fairness.pay(a, 4);
        assert_eq!((fairness.served(a), fairness.served(b)), (2 * COST_SCALE, 0));
        assert_eq!(fairness.rank(a), fairness.rank(b), "what is paid was counted before");
        fairness.set_weights(&[TenantWeight { tenant: "a".into(), weight: 1 }]);
        fairness.charge(a, OUTPUT_TOKEN_COST);
        assert_eq!(fairness.served(a), 4 * COST_SCALE);
        assert_eq!((fairness.fair_part(a, 7), fairness.fair_part(b, 1)), (3, 1));
    }

    #[test]
    fn who_comes_back_is_lifted_less_a_credit() {
        let mut fairness = fairness(&[], 100);
        let a = submit(&mut fairness, "a");
        fairness.charge(a, 1000);
        let b = submit(&mut fairness, "b");
        assert_eq!(fairness.served(b), 900 * COST_SCALE);
        let c = submit(&mut fairness, "c");
        assert_eq!(fairness.served(c), 900 * COST_SCALE, "credits do not add up");
        submit(&mut fairness, "b");
        assert_eq!(fairness.served(b), 900 * COST_SCALE);
    }

    #[test]
    fn who_is_ahead_stays_ahead_while_others_are_there() {
        let mut fairness = fairness(&[], 0);
        let (a, b) = (fairness.enter(Some("a")), fairness.enter(Some("b")));
        fairness.begin_waiting(b, true, 1);
        fairness.charge(a, 1000);
        fairness.leave(a);
        let a = fairness.enter(Some("a"));
        assert_eq!(fairness.served(a), 1000 * COST_SCALE, "leaving pays no debt");
        fairness.leave(a);
        fairness.charge(b, 2000);
        let c = submit(&mut fairness, "c");
        fairness.end_waiting(c, true, 1);
        fairness.leave(c);
        assert!(!fairness.by_name.contains_key("a"), "the others have passed it");
        fairness.end_waiting(b, true, 1);
        fairness.leave(b);
        assert!(fairness.by_name.is_empty() && fairness.virtual_time == 0, "nobody is there");
    }

    #[test]
    fn debts_are_bounded() {
        let mut fairness = fairness(&[], 0);
        let waiting = fairness.enter(None);
        fairness.begin_waiting(waiting, true, 1);
        for index in 0..2 * MAX_DEBTS as u64 {
            let key = fairness.enter(Some(&index.to_string()));
            fairness.charge(key, index + 1);
            fairness.leave(key);
        }
        assert_eq!(fairness.debts.len(), MAX_DEBTS);
        assert!(fairness.by_name.contains_key("2047") && !fairness.by_name.contains_key("0"));
    }

    #[test]
    fn who_has_little_waiting_has_little_ahead() {
        let mut fairness = fairness(&[("c", 3)], 0);
        let a = fairness.enter(Some("a"));
        (0..200).for_each(|_| fairness.begin_waiting(a, true, 10));
        let all = Backlog { num_waiting: 200, num_uncached_tokens: 2000 };
        let ahead = |name| fairness.backlog_ahead(Some(name), all);
        assert_eq!(ahead("a"), all);
        assert_eq!(ahead("b"), Backlog { num_waiting: 0, num_uncached_tokens: 0 });
        let c = fairness.enter(Some("c"));
        (0..3).for_each(|_| fairness.begin_waiting(c, true, 9));
        let all = Backlog { num_waiting: 203, num_uncached_tokens: 2027 };
        assert_eq!(
            fairness.backlog_ahead(Some("c"), all),
            Backlog { num_waiting: 4, num_uncached_tokens: 36 }
        );
    }
}
