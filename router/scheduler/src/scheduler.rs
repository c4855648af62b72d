//! The scheduler: its state, and what each event does. Planning is in `planner.rs` and `admit.rs`, results are in
//! `results.rs`, ends and preemptions in `lifecycle.rs`.

use std::collections::{BTreeSet, VecDeque};

use trunkline_contract::SlotId;
use trunkline_kv::{KvCache, StoreIndex, StorePins};

use crate::config::SchedulerConfig;
use crate::estimate::Throughput;
use crate::event::{
    EndReason, Event, Millis, RejectReason, SequenceId, SequenceRequest, ShardLimits, StoreContents, Update,
    Usage,
};
use crate::fairness::Fairness;
use crate::kv_events::KvEventState;
use crate::late::Restoring;
use crate::plan::{LateMask, Restore, StepPlan};
use crate::queue::{Place, Queue, Rank};
use crate::sequence::{Phase, Sequence, SequenceKey, SequenceMap};
use crate::stats::Stats;

/// Plans that may be out at once: while one is computed the next is there already.
pub const RUN_AHEAD: usize = 2;

/// For so long after a request came while another tenant had some, steps are kept short.
const SHARED_FOR_MS: u64 = 10_000;

/// Queue, token budget and KV index of one shard. One task owns it; it never waits, reads no clock and does no I/O.
///
/// ```
/// use trunkline_scheduler::*;
///
/// let mut scheduler = Scheduler::new(SchedulerConfig::default());
/// let mut updates = Vec::new();
/// scheduler.handle(Millis(0), Event::ShardReady(ShardLimits {
///     block_size: 16, num_blocks: 8, max_step_tokens: 64, max_step_sequences: 4, vocab_size: 100,
///     windows: None,
/// }), &mut updates);
/// scheduler.handle(Millis(1), Event::Submit(Box::new(SequenceRequest {
///     id: SequenceId(7), token_ids: vec![1, 2, 3], max_new_tokens: 1, sampling: SamplingParams::default(),
///     end_token_ids: vec![], ignore_eos: false, priority: Priority::Normal, deadline: None, salt: Salt::default(),
///     retention: Retention::default(), constrained: false,
/// })), &mut updates);
/// let plan = scheduler.plan(Millis(1), &mut updates).unwrap();
/// assert_eq!((plan.chunks[0].num_tokens, plan.chunks[0].sample), (3, true));
/// let token = SampledToken { token_id: 4, ..Default::default() };
/// scheduler.handle(Millis(2), Event::StepResult(StepResult {
///     step_id: plan.step_id,
///     sequences: vec![SequenceResult {
///         sequence_id: plan.chunks[0].sequence_id, outcome: SequenceOutcome::Token(token.clone()),
///         scores: Vec::new(),
///     }],
///     device_time_us: 900,
/// }), &mut updates);
/// assert_eq!(updates[0], Update::Started { id: SequenceId(7), cached_tokens: 0, queued_ms: 0 });
/// assert_eq!(updates[1], Update::Token { id: SequenceId(7), token });
/// assert!(matches!(updates[2], Update::Ended { reason: EndReason::Length, .. }));
/// ```
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    /// Of the call that is being answered.
    pub(crate) now: Millis,
    pub(crate) shard: Option<Shard>,
    pub(crate) sequences: SequenceMap,
    pub(crate) queue: Queue,
    /// Running and preempting sequences, in running order: class, then age.
    pub(crate) running: Vec<SequenceKey>,
    /// Sequences that gave up their blocks, or will with the steps in flight: nobody else need be preempted yet.
    pub(crate) num_leaving: usize,
    pub(crate) deadlines: BTreeSet<(Millis, SequenceKey)>,
    pub(crate) fairness: Fairness,
    /// Until then other tenants are likely to come.
    pub(crate) shared_until: Millis,
    pub(crate) throughput: Throughput,
    /// Rejected for a full queue and told to come back, less those that the queue has let through since.
    pub(crate) num_told_to_retry: u64,
    pub(crate) next_arrival: u64,
    pub(crate) next_wire_id: u64,
    pub(crate) counters: Stats,
    pub(crate) kv_events: KvEventState,
    /// What is pinned in the store, while there is none.
    pub(crate) store_pins: StorePins,
}

/// What goes with a shard.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) limits: ShardLimits,
    pub(crate) kv: KvCache,
    /// Oldest first.
    pub(crate) in_flight: VecDeque<StepInFlight>,
    /// Emptied chunks of steps that are over: the next ones need not allocate. At most [`RUN_AHEAD`].
    pub(crate) spare_chunks: Vec<Vec<PlannedChunk>>,
    /// Wire ids to be named in the next plan's `ends`.
    pub(crate) ends: Vec<u64>,
    pub(crate) last_step_id: u64,
    /// Restores for the next plan.
    pub(crate) restores: Vec<Restore>,
    /// Restores that are out.
    pub(crate) restoring: Restoring,
    /// Slots of the store for the next plan's `discards`.
    pub(crate) discards: Vec<SlotId>,
    /// What steps in flight may sample, for the shard.
    pub(crate) late_masks: Vec<LateMask>,
}

/// A plan whose result is out.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    pub(crate) step_id: u64,
    pub(crate) chunks: Vec<PlannedChunk>,
    pub(crate) num_prefill_tokens: u32,
}

/// What has to be known of a chunk when its result comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedChunk {
    pub(crate) key: SequenceKey,
    pub(crate) wire_id: u64,
    /// One past its last position.
    pub(crate) end: u32,
    pub(crate) sample: bool,
    /// Its first position, if it is scored.
    pub(crate) scored_from: Option<u32>,
}

impl Scheduler {
    /// A scheduler without a shard: requests wait until [`Event::ShardReady`].
    pub fn new(config: SchedulerConfig) -> Self {
        let fairness = Fairness::new(&config.weights, config.max_credit_tokens);
        Self {
            config,
            now: Millis(0),
            shard: None,
            sequences: SequenceMap::default(),
            queue: Queue::default(),
            running: Vec::new(),
            num_leaving: 0,
            deadlines: BTreeSet::new(),
            fairness,
            shared_until: Millis(0),
            throughput: Throughput::default(),
            num_told_to_retry: 0,
            next_arrival: 0,
            next_wire_id: 1,
            counters: Stats::default(),
            kv_events: KvEventState::default(),
            store_pins: StorePins::default(),
        }
    }

    /// Takes one event at time `now` and appends the answers to `updates`.
    ///
    /// Panics if a `Submit` uses the id of a sequence that has not ended: that is a bug of the caller.
    pub fn handle(&mut self, now: Millis, event: Event, updates: &mut Vec<Update>) {
        self.set_now(now);
        match event {
            Event::ShardReady(limits) => self.shard_ready(limits, updates),
            Event::StoreReady(contents) => self.store_ready(contents),
            Event::Submit(request) => self.submit(now, *request, updates),
            Event::Allow { id, allowed } => self.allow(now, id, allowed, updates),
            Event::Finish(id) => self.end_by_id(id, EndReason::Finished, updates),
            Event::Abort(id) => self.end_by_id(id, EndReason::Aborted, updates),
            Event::StepResult(result) => self.take_result(now, result, updates),
            Event::Transfers(transfers) => self.take_transfers(&transfers),
            Event::Shares(shares) => {
                if let Some(shard) = &mut self.shard {
                    shard.kv.set_shares(&shares);
                }
                self.config.shares = shares;
            }
            Event::Weights(weights) => {
                self.fairness.set_weights(&weights);
                self.config.weights = weights;
            }
            Event::ShardLost => self.shard_lost(updates),
        }
        self.settle();
    }

    /// The next plan, or none when run-ahead is full or there is nothing to do. Call until it says none, after every
    /// event and at [`Scheduler::next_wakeup`].
    pub fn plan(&mut self, now: Millis, updates: &mut Vec<Update>) -> Option<StepPlan> {
        self.set_now(now);
        self.expire(now, updates);
        self.give_up_restores(now);
        let plan = self.make_plan(now, updates);
        self.settle();
        plan
    }

    /// The earliest deadline: call [`Scheduler::plan`] then, even if no event came.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let of_restores = self.shard.as_ref().and_then(|shard| shard.restoring.next_deadline());
        self.deadlines.first().map(|&(deadline, _)| deadline).into_iter().chain(of_restores).min()
    }

    /// The KV index, to look at; none while there is no shard.
    pub fn kv(&self) -> Option<&KvCache> {
        self.shard.as_ref().map(|shard| &shard.kv)
    }

    /// Gauges and counters. O(1).
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters;
        stats.num_waiting = self.queue.num_waiting() as u64;
        stats.num_running = self.running.len() as u64;
        stats.run_ms = self.throughput.mean_run_ms();
        if let Some(shard) = &self.shard {
            let counts = shard.kv.counts();
            stats.steps_in_flight = shard.in_flight.len() as u64;
            stats.blocks_free = counts.free.into();
            stats.blocks_held = counts.held.into();
            stats.blocks_cached = counts.cached.into();
            stats.blocks_total = counts.total.into();
            stats.evicted_blocks += shard.kv.num_evicted();
            let pins = shard.kv.pin_counts();
            stats.blocks_pinned = pins.num_blocks.into();
            stats.pins_granted += pins.granted;
            stats.pins_refused += pins.refused;
            stats.pins_dropped += pins.dropped;
            let windows = shard.kv.window_counts().unwrap_or_default();
            stats.window_parts_free = windows.free.into();
            stats.window_parts_needed = windows.needed.into();
            stats.window_parts_total = windows.total.into();
            stats.dropped_window_parts += windows.dropped;
            let store = shard.kv.store_counts().unwrap_or_default();
            stats.store_blocks = store.stored.into();
            stats.store_blocks_pinned = shard.kv.num_store_pinned().into();
            stats.store_slots = store.total.into();
            stats.store_evicted_blocks += store.evicted;
            stats.blocks_late = shard.restoring.late_blocks().count() as u64;
            stats.offered_blocks = store.offered.into();
            stats.unoffered_blocks += store.unoffered;
        }
        stats
    }

    fn set_now(&mut self, now: Millis) {
        self.now = now;
        if let Some(shard) = &mut self.shard {
            shard.kv.set_now(now.0);
            shard.kv.expire_pins();
        }
    }

    fn settle(&mut self) {
        if let Some(shard) = &mut self.shard {
            shard.kv.settle();
        }
    }

    fn submit(&mut self, now: Millis, request: SequenceRequest, updates: &mut Vec<Update>) {
        let id = request.id;
        assert!(self.sequences.key(id).is_none(), "a sequence id is used once: {}", id.0);
        if let Some(reason) = self.refusal(now, &request) {
            self.reject(id, reason, updates);
            return;
        }
        let is_scored = request.sampling.prompt_logprobs.is_some() && request.token_ids.len() > 1;
        if request.max_new_tokens == 0 && !is_scored {
            let usage = Usage { prompt_tokens: request.token_ids.len() as u32, ..Usage::default() };
            updates.push(Update::Ended { id, reason: EndReason::Length, usage });
            return;
        }
        let tenant = self.fairness.enter(request.salt.tenant());
        let sequence = Sequence::new(request, tenant, now, self.next_arrival);
        self.next_arrival += 1;
        let deadline = sequence.deadline;
        let key = self.sequences.insert(sequence);
        self.deadlines.extend(deadline.map(|deadline| (deadline, key)));
        self.fairness.lift(tenant);
        if self.fairness.has_others(tenant) {
            self.shared_until = now.plus(SHARED_FOR_MS);
        }
        self.enter_queue(key);
    }

    /// Most sequences that may run at once: each wants a chunk and a token of every step.
    pub(crate) fn max_running(&self) -> usize {
        let Some(shard) = &self.shard else { return 0 };
        let limits = &shard.limits;
        limits.max_step_sequences.min(self.max_step_tokens()).min(self.config.max_running_sequences).max(1)
            as usize
    }

    /// Tokens of one step.
    pub(crate) fn max_step_tokens(&self) -> u32 {
        let of_shard = self.shard.as_ref().map_or(0, |shard| shard.limits.max_step_tokens);
        of_shard.min(self.config.max_step_tokens).max(1)
    }

    fn expire(&mut self, now: Millis, updates: &mut Vec<Update>) {
        while let Some(&(deadline, key)) = self.deadlines.first()
            && deadline <= now
        {
            self.end(key, EndReason::DeadlineExceeded, updates);
        }
    }

    fn end_by_id(&mut self, id: SequenceId, reason: EndReason, updates: &mut Vec<Update>) {
        if let Some(key) = self.sequences.key(id)
            && !self.sequences[key].run.as_ref().is_some_and(|run| run.phase == Phase::Ending)
        {
            self.end(key, reason, updates);
        }
    }

    fn shard_ready(&mut self, limits: ShardLimits, updates: &mut Vec<Update>) {
        self.shard_lost(updates);
        let limits = ShardLimits {
            block_size: limits.block_size.max(1),
            max_step_tokens: limits.max_step_tokens.max(1),
            max_step_sequences: limits.max_step_sequences.max(1),
            ..limits
        };
        let policy = self.config.eviction.build(limits.num_blocks);
        let mut kv = KvCache::with_policy(limits.block_size, limits.num_blocks, policy);
        kv.record_events(self.kv_events.is_on);
        if let Some(windows) = limits.windows {
            kv.set_windows(windows);
        }
        kv.set_shares(&self.config.shares);
        kv.set_max_pinned_blocks(self.config.max_pinned_blocks(limits.num_blocks));
        let shard = Shard {
            kv,
            limits,
            in_flight: VecDeque::new(),
            spare_chunks: Vec::new(),
            ends: Vec::new(),
            last_step_id: 0,
            restores: Vec::new(),
            restoring: Restoring::default(),
            discards: Vec::new(),
            late_masks: Vec::new(),
        };
        for key in self.sequences.keys_by_arrival() {
            let sequence = &self.sequences[key];
            let num_prompt_tokens = sequence.num_prompt_tokens as usize;
            if let Some(reason) = shard.misfit(&sequence.tokens, num_prompt_tokens, sequence.max_new_tokens) {
                self.leave_queue(key);
                let sequence = self.forget(key);
                self.reject(sequence.id, reason, updates);
            }
        }
        self.shard = Some(shard);
    }

    fn store_ready(&mut self, contents: StoreContents) {
        let Some(shard) = &mut self.shard else { return };
        let (mut store, lost) = StoreIndex::new(contents.num_slots, contents.blocks);
        store.set_in_memory(contents.is_in_memory);
        store.offer_at_most(self.config.max_offered_blocks);
        let max_pinned = self.config.max_pinned_blocks(contents.num_slots);
        store.set_pins(std::mem::take(&mut self.store_pins), max_pinned);
        shard.kv.set_store(store);
        shard.discards = lost;
        // Who waits may have a longer prefix now.
        let keys = self.sequences.keys_by_arrival();
        for key in keys.into_iter().filter(|&key| self.sequences[key].run.is_none()).collect::<Vec<_>>() {
            self.leave_queue(key);
            self.enter_queue(key);
        }
    }

    fn shard_lost(&mut self, updates: &mut Vec<Update>) {
        let Some(mut shard) = self.shard.take() else { return };
        self.kv_events.was_cleared = self.kv_events.is_on;
        if shard.kv.store_counts().is_some() {
            self.store_pins = shard.kv.take_store_pins();
        }
        self.counters.evicted_blocks += shard.kv.num_evicted();
        self.counters.dropped_window_parts += shard.kv.window_counts().unwrap_or_default().dropped;
        let pins = shard.kv.pin_counts();
        self.counters.pins_granted += pins.granted;
        self.counters.pins_refused += pins.refused;
        self.counters.pins_dropped += pins.dropped;
        let store = shard.kv.store_counts().unwrap_or_default();
        self.counters.store_evicted_blocks += store.evicted;
        self.counters.unoffered_blocks += store.unoffered;
        self.running.clear();
        self.num_leaving = 0;
        let keys = self.sequences.keys_by_arrival();
        // All leave the queue before any goes: a parked sequence names the one that it waits for.
        for &key in &keys {
            if self.sequences[key].run.is_none() {
                self.leave_queue(key);
            }
        }
        for key in keys {
            let sequence = &mut self.sequences[key];
            let run = sequence.run.take();
            if run.as_ref().is_some_and(|run| run.phase == Phase::Running) {
                self.fairness.end_running(sequence.tenant, sequence.num_unpaid());
            }
            let has_ended = run.is_some_and(|run| run.phase == Phase::Ending);
            if !has_ended && sequence.first_start.is_none() {
                self.enter_queue(key);
                continue;
            }
            let sequence = self.forget(key);
            if !has_ended {
                let usage = sequence.usage();
                updates.push(Update::Ended { id: sequence.id, reason: EndReason::ShardLost, usage });
            }
        }
    }

    /// A sequence's place by what the KV index has of it now, and how many tokens it has to compute.
    pub(crate) fn rank(&self, key: SequenceKey) -> (Rank, u32) {
        let sequence = &self.sequences[key];
        let num_tokens = sequence.num_tokens();
        let hit = self.shard.as_ref().map(|shard| shard.kv.lookup(&sequence.salt, sequence.shareable()));
        let num_cached =
            hit.map_or(0, |hit| hit.num_tokens().max(hit.num_block_tokens() + hit.num_stored_tokens()));
        let window_ms = self.config.cached_first_window_ms;
        let credit_ms = u128::from(window_ms) * u128::from(num_cached) / u128::from(num_tokens);
        let place = Place {
            effective_ms: sequence.submitted_at.0.saturating_add(window_ms - credit_ms as u64),
            arrival: sequence.arrival,
        };
        let rank = Rank {
            priority: sequence.priority,
            tenant: sequence.tenant,
            place,
            since: sequence.waiting_since,
        };
        (rank, num_tokens - num_cached)
    }
}

impl Shard {
    /// Blocks for so many positions.
    pub(crate) fn blocks_for(&self, num_positions: u32) -> u32 {
        num_positions.div_ceil(self.limits.block_size)
    }

    /// Why tokens can never run on this shard, if they cannot. The last output token is never computed.
    pub(crate) fn misfit(
        &self,
        tokens: &[u32],
        num_prompt_tokens: usize,
        max_new_tokens: u32,
    ) -> Option<RejectReason> {
        let max_total_tokens = u64::from(self.limits.num_blocks) * u64::from(self.limits.block_size) + 1;
        if num_prompt_tokens as u64 + u64::from(max_new_tokens.max(1)) > max_total_tokens {
            return Some(RejectReason::TooLong {
                prompt_tokens: num_prompt_tokens as u32,
                max_new_tokens,
                max_total_tokens,
            });
        }
        let vocab_size = self.limits.vocab_size;
        tokens.iter().any(|&token_id| token_id >= vocab_size).then(|| RejectReason::Invalid {
            message: format!("the prompt has a token that is not below the vocabulary of {vocab_size}"),
        })
    }
}
