//! All sequences, with the queue of those that wait and the tenants that they belong to.
//!
//! Each sequence waits in the queue, holds blocks on a lane, or is being moved between the two by `lifecycle.rs`. The
//! tenants' counts follow from that.

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

use trunkline_draft::Draft;

use crate::config::{SchedulerConfig, TenantWeight};
use crate::consumption::Consumption;
use crate::event::{Millis, Priority, SequenceId, SequenceRequest};
use crate::fairness::{Fairness, PROMPT_TOKEN_COST, TenantKey};
use crate::queue::Queue;
use crate::recents::Recents;
use crate::sequence::{Place, Rank, Sequence, SequenceKey, Wait, Waiter};
use crate::sequence_map::SequenceMap;

/// After a request arrives while another tenant has sequences, steps are kept short for this long.
const SHARED_FOR_MS: u64 = 10_000;

/// The sequences with their queue, tenants and deadlines, which always change together.
#[derive(Debug)]
pub(crate) struct Sequences {
    map: SequenceMap,
    queue: Queue,
    tenants: Fairness,
    deadlines: BTreeSet<(Millis, SequenceKey)>,
    /// The suspects with a place in the queue, in running order.
    suspects: BTreeSet<(Priority, u64, SequenceKey)>,
    next_arrival: u64,
    /// Until this moment requests of other tenants are expected.
    shared_until: Millis,
    /// Clients that were rejected for a full queue and should retry, less the sequences admitted since.
    num_retries_expected: u64,
    /// The outputs of ended sequences, for drafts.
    recents: Recents,
}

impl Sequences {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        Self {
            map: SequenceMap::default(),
            queue: Queue::default(),
            tenants: Fairness::new(&config.weights, config.max_credit_tokens),
            deadlines: BTreeSet::new(),
            suspects: BTreeSet::new(),
            next_arrival: 0,
            shared_until: Millis(0),
            num_retries_expected: 0,
            recents: Recents::default(),
        }
    }

    /// Adds a sequence, which does not wait yet: see [`Sequences::enter_queue`].
    pub(crate) fn insert(&mut self, request: SequenceRequest, now: Millis) -> SequenceKey {
        let tenant = self.tenants.enter(request.salt.tenant());
        let adapters = self.tenants.adapters_mut(tenant);
        let adapter = adapters.enter(request.adapter.as_ref().map(|adapter| &*adapter.name));
        let sequence = Sequence::new(request, [tenant, adapter], now, self.next_arrival);
        self.next_arrival += 1;
        let deadline = sequence.request.deadline;
        let key = self.map.insert(sequence);
        self.deadlines.extend(deadline.map(|deadline| (deadline, key)));
        self.count(key, Fairness::lift);
        if self.tenants.has_others(tenant) {
            self.shared_until = now.plus(SHARED_FOR_MS);
        }
        key
    }

    /// Removes a sequence that neither waits nor runs.
    pub(crate) fn remove(&mut self, key: SequenceKey) -> Sequence {
        let sequence = self.map.remove(key);
        self.tenants.adapters_mut(sequence.tenant).leave(sequence.adapter);
        self.tenants.leave(sequence.tenant);
        if let Some(deadline) = sequence.request.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        sequence
    }

    /// Puts a sequence that has no run in the queue. A prefix hit would spare `cached_tokens` of its tokens on each
    /// lane. The most of them move it ahead by up to `window_ms`.
    pub(crate) fn enter_queue(&mut self, key: SequenceKey, cached_tokens: Vec<u32>, window_ms: u64) {
        let sequence = &mut self.map[key];
        let num_cached = cached_tokens.iter().copied().max().unwrap_or(0);
        let num_tokens = sequence.num_tokens();
        let credit_ms = u128::from(window_ms) * u128::from(num_cached) / u128::from(num_tokens);
        let place = Place {
            effective_ms: sequence.submitted_at.0.saturating_add(window_ms - credit_ms as u64),
            arrival: sequence.arrival,
        };
        let Sequence { tenant, adapter, waiting_since: since, .. } = *sequence;
        let priority = sequence.request.priority;
        let rank = Rank { priority, tenant, adapter, place, since };
        let num_uncached_tokens = num_tokens - num_cached;
        let Wait { passed_at, slot_since, .. } = sequence.wait;
        sequence.wait = Wait {
            rank: Some(rank),
            num_uncached_tokens,
            cached_tokens,
            passed_at,
            slot_since,
            ..Wait::default()
        };
        if sequence.suspected.is_some() && !sequence.awaits_late_step() {
            self.suspects.insert((priority, sequence.arrival, key));
        }
        let is_new = sequence.first_start.is_none();
        self.count(key, |of, part| of.begin_waiting(part, is_new, num_uncached_tokens));
        self.queue.enter(rank, &self.tenants, key, is_new, num_uncached_tokens);
    }

    /// Takes a waiting sequence out of the queue.
    pub(crate) fn leave_queue(&mut self, key: SequenceKey) {
        let sequence = &mut self.map[key];
        self.suspects.remove(&(sequence.request.priority, sequence.arrival, key));
        let wait = std::mem::take(&mut sequence.wait);
        (sequence.wait.passed_at, sequence.wait.slot_since) = (wait.passed_at, wait.slot_since);
        let is_new = sequence.first_start.is_none();
        self.count(key, |of, part| of.end_waiting(part, is_new, wait.num_uncached_tokens));
        self.queue.leave(wait.rank, is_new, wait.num_uncached_tokens);
        if let Some(other) = wait.parked_on
            && let Some(run) = &mut self.map[other].run
        {
            run.waiters.retain(|waiter| waiter.key != key);
        }
    }

    /// Parks a waiting sequence until `computed_by` has `num_blocks` blocks of their shared prefix in the KV index.
    pub(crate) fn park(&mut self, key: SequenceKey, computed_by: SequenceKey, num_blocks: usize) {
        let sequence = &mut self.map[key];
        self.suspects.remove(&(sequence.request.priority, sequence.arrival, key));
        let wait = &mut sequence.wait;
        let rank = wait.rank.take().expect("a sequence that is tried has a place");
        wait.parked_on = Some(computed_by);
        self.queue.park(rank);
        self.map[computed_by].run_mut().waiters.push(Waiter { key, num_blocks });
    }

    /// Brings the order of the queue up to date, for [`Sequences::waiting`].
    pub(crate) fn sort_waiting(&mut self) {
        self.queue.sort(&mut self.tenants);
    }

    /// The waiting sequences that are not parked, in the order in which they should be admitted.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = SequenceKey> {
        self.queue.iter()
    }

    /// The suspects that may be admitted, in running order.
    pub(crate) fn suspects(&self) -> impl Iterator<Item = SequenceKey> {
        self.suspects.iter().map(|&(_, _, key)| key)
    }

    /// Lets all sequences share their steps again.
    pub(crate) fn join_cells(&mut self) {
        for sequence in self.map.iter_mut() {
            (sequence.cell, sequence.num_separations) = (0, 0);
        }
    }

    /// Counts a sequence as running, for its tenant and for the clients that should retry.
    pub(crate) fn begin_running(&mut self, key: SequenceKey) {
        self.num_retries_expected = self.num_retries_expected.saturating_sub(1);
        let num_unpaid = self.map[key].num_unpaid();
        self.count(key, |of, part| of.begin_running(part, num_unpaid));
    }

    /// Counts a sequence as running no more, because it gets no more chunks.
    pub(crate) fn end_running(&mut self, key: SequenceKey) {
        let num_unpaid = self.map[key].num_unpaid();
        self.count(key, |of, part| of.end_running(part, num_unpaid));
    }

    /// Reserves the cost of a chunk that is about to be planned up to `end`. Returns the cost, for
    /// [`Sequences::release_cost`].
    pub(crate) fn reserve_cost(&mut self, key: SequenceKey, end: u32, num_samples: u32) -> u64 {
        let sequence = &self.map[key];
        let num_unpaid = sequence.num_unpaid();
        let num_left = sequence.num_prompt_tokens.saturating_sub(end).min(num_unpaid);
        self.count(key, |of, part| of.reserve(part, num_unpaid - num_left, num_samples))
    }

    /// Releases the reserved cost of a chunk.
    pub(crate) fn release_cost(&mut self, key: SequenceKey, cost: u64) {
        self.count(key, |of, part| of.release(part, cost));
    }

    /// Charges a sequence's tenant for its computed prompt up to `end`, except for the tokens that are paid for
    /// already.
    pub(crate) fn pay_prompt(&mut self, key: SequenceKey, end: u32) {
        let sequence = &mut self.map[key];
        let num_paid = end.min(sequence.num_prompt_tokens);
        if num_paid > sequence.num_paid {
            let cost = u64::from(num_paid - sequence.num_paid) * PROMPT_TOKEN_COST;
            sequence.num_paid = num_paid;
            self.charge(key, cost);
        }
    }

    /// Charges a sequence's tenant.
    pub(crate) fn charge(&mut self, key: SequenceKey, cost: u64) {
        self.count(key, |of, part| of.charge(part, cost));
    }

    /// Counts something for a sequence's tenant, and for the adapter among those of the tenant.
    fn count<T>(&mut self, key: SequenceKey, count: impl Fn(&mut Fairness, TenantKey) -> T) -> T {
        let Sequence { tenant, adapter, .. } = self.map[key];
        count(self.tenants.adapters_mut(tenant), adapter);
        count(&mut self.tenants, tenant)
    }

    /// Tells a sequence's drafter of a token of the output.
    pub(crate) fn extend_drafter(&mut self, key: SequenceKey, token_id: u32) {
        let sequence = &mut self.map[key];
        if let Some(drafter) = &mut sequence.request.drafter {
            drafter.extend(&[token_id], self.recents.get(&sequence.request.salt));
        }
    }

    /// Returns the likely next tokens of a sequence, at most `max`.
    pub(crate) fn drafts(&self, key: SequenceKey, max: usize) -> Vec<Draft> {
        let (sequence, mut drafts) = (&self.map[key], Vec::new());
        if let Some(drafter) = &sequence.request.drafter {
            drafter.propose(max, self.recents.get(&sequence.request.salt), &mut drafts);
        }
        drafts
    }

    /// Keeps the output of a sequence that ends, for the drafts of others with its salt.
    pub(crate) fn keep_output(&mut self, key: SequenceKey) {
        let sequence = &self.map[key];
        if sequence.request.drafter.is_some() && sequence.num_output_tokens() > 0 {
            let output = &sequence.tokens[sequence.num_prompt_tokens as usize..];
            self.recents.push(&sequence.request.salt, output);
        }
    }

    /// Adds to what was done for a sequence's tenant.
    pub(crate) fn consume(&mut self, key: SequenceKey, consumption: Consumption) {
        self.tenants.consume(self.map[key].tenant, consumption);
    }

    pub(crate) fn take_consumption(&mut self, take: impl FnMut(Option<&str>, Consumption)) {
        self.tenants.take_consumption(take);
    }

    /// A sequence whose deadline has come.
    pub(crate) fn first_expired(&self, now: Millis) -> Option<SequenceKey> {
        self.deadlines.first().filter(|&&(deadline, _)| deadline <= now).map(|&(_, key)| key)
    }

    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Forgets the deadline of a sequence that has ended.
    pub(crate) fn clear_deadline(&mut self, key: SequenceKey) {
        if let Some(deadline) = self.map[key].request.deadline.take() {
            self.deadlines.remove(&(deadline, key));
        }
    }

    /// Returns true if requests of another tenant are expected soon.
    pub(crate) fn expects_other_tenants(&self, now: Millis) -> bool {
        now < self.shared_until
    }

    /// Counts a client that was rejected and should retry. Returns the number of such clients.
    pub(crate) fn count_retry(&mut self) -> u64 {
        self.num_retries_expected += 1;
        self.num_retries_expected
    }

    pub(crate) fn set_weights(&mut self, weights: &[TenantWeight]) {
        self.tenants.set_weights(weights);
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn tenants(&self) -> &Fairness {
        &self.tenants
    }

    pub(crate) fn get(&self, key: SequenceKey) -> Option<&Sequence> {
        self.map.get(key)
    }

    pub(crate) fn key(&self, id: SequenceId) -> Option<SequenceKey> {
        self.map.key(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SequenceKey, &Sequence)> {
        self.map.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn keys_by_arrival(&self) -> Vec<SequenceKey> {
        self.map.keys_by_arrival()
    }
}

impl Index<SequenceKey> for Sequences {
    type Output = Sequence;

    fn index(&self, key: SequenceKey) -> &Sequence {
        &self.map[key]
    }
}

impl IndexMut<SequenceKey> for Sequences {
    fn index_mut(&mut self, key: SequenceKey) -> &mut Sequence {
        &mut self.map[key]
    }
}
