//! The scheduler's interface: it composes the parts and hands each event to the module that handles it.

use trunkline_kv::{KvCache, KvEvent, TenantUsage};

use crate::config::SchedulerConfig;
use crate::event::{
    EndReason, Event, LaneId, Millis, SequenceId, SequenceRequest, ShardLimits, Update, Usage,
};
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::lower_tier::LowerTier;
use crate::output::allow;
use crate::pins::Nodes;
use crate::plan::{LateMask, StepPlan};
use crate::planner::make_plan;
use crate::refusal::{refusal, reject};
use crate::results::take_result;
use crate::sequences::Sequences;
use crate::stats::Stats;
use crate::transfers::{abandon_overdue_restores, take_transfers};
use crate::{invariants, shard::Shard};

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
    config: SchedulerConfig,
    sequences: Sequences,
    lane: Lane,
    counters: Stats,
    records_kv_events: bool,
    /// A shard was lost with its KV index, and [`Scheduler::take_kv_events`] has not reported it yet.
    was_cleared: bool,
}

impl Scheduler {
    /// Creates a scheduler without a shard. Requests wait until [`Event::ShardReady`].
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            sequences: Sequences::new(&config),
            config,
            lane: Lane::new(LaneId::default()),
            counters: Stats::default(),
            records_kv_events: false,
            was_cleared: false,
        }
    }

    /// Takes one event at time `now` and appends the answers to `updates`.
    ///
    /// # Panics
    ///
    /// Panics if a `Submit` uses the id of a sequence that has not ended, which is a bug of the caller.
    pub fn handle(&mut self, now: Millis, event: Event, updates: &mut Vec<Update>) {
        self.set_now(now);
        match event {
            Event::ShardReady(limits) => self.shard_ready(now, limits, updates),
            Event::ShardLost => self.shard_lost(now, updates),
            Event::StoreReady(contents) => {
                if self.lane.open_store(contents, &self.config) {
                    self.parts(now, updates).requeue_all();
                }
            }
            Event::Submit(request) => submit(&mut self.parts(now, updates), *request),
            Event::Allow { id, allowed } => allow(&mut self.parts(now, updates), id, allowed),
            Event::Finish(id) => end_by_id(&mut self.parts(now, updates), id, EndReason::Finished),
            Event::Abort(id) => end_by_id(&mut self.parts(now, updates), id, EndReason::Aborted),
            Event::StepResult(result) => take_result(&mut self.parts(now, updates), result),
            Event::Transfers(transfers) => take_transfers(&mut self.parts(now, updates), &transfers),
            Event::Shares(shares) => {
                if let Some(shard) = &mut self.lane.shard {
                    shard.kv.set_shares(&shares);
                }
                self.config.shares = shares;
            }
            Event::Weights(weights) => {
                self.sequences.set_weights(&weights);
                self.config.weights = weights;
            }
        }
        self.settle();
    }

    /// Returns the next plan, or none if run-ahead is full or there is nothing to do. Call it until it returns none:
    /// after every event, and at [`Scheduler::next_wakeup`].
    pub fn plan(&mut self, now: Millis, updates: &mut Vec<Update>) -> Option<StepPlan> {
        self.set_now(now);
        let parts = &mut self.parts(now, updates);
        while let Some(key) = parts.sequences.first_expired(now) {
            parts.end(key, EndReason::DeadlineExceeded);
        }
        abandon_overdue_restores(parts);
        let plan = make_plan(parts);
        self.settle();
        plan
    }

    /// Returns the masks that steps in flight wait for, to be sent to the shard at once. Call it after every event and
    /// every plan.
    pub fn take_late_masks(&mut self) -> Vec<LateMask> {
        self.lane.shard.as_mut().map(|shard| shard.outbox.take_late_masks()).unwrap_or_default()
    }

    /// The earliest deadline. Call [`Scheduler::plan`] then, even if no event came.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let of_restores = self.lane.shard.as_ref().and_then(|shard| shard.restores.next_deadline());
        self.sequences.next_deadline().into_iter().chain(of_restores).min()
    }

    /// The KV index, for reading; none while there is no shard.
    pub fn kv(&self) -> Option<&KvCache> {
        self.lane.kv()
    }

    /// Each tenant's use of the pool, in the order in which the tenants came; nothing while there is no shard.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantUsage> {
        self.kv().into_iter().flat_map(KvCache::tenants)
    }

    /// The nodes of the KV index, for users who pin or remove them.
    pub fn nodes(&mut self) -> Nodes<'_> {
        Nodes::new(self.lane.shard.as_mut())
    }

    /// The store, for the tier below it.
    pub fn lower_tier(&mut self) -> LowerTier<'_> {
        LowerTier::new(self.lane.shard.as_mut(), &self.lane.throughput)
    }

    /// Gauges and counters. O(1).
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters;
        stats.num_waiting = self.sequences.queue().num_waiting() as u64;
        stats.num_running = self.lane.running.len() as u64;
        stats.run_ms = self.lane.throughput.mean_run_ms();
        if let Some(shard) = &self.lane.shard {
            shard.set_gauges(&mut stats);
            shard.add_counters(&mut stats);
        }
        stats
    }

    /// Sets whether events are recorded for [`Scheduler::take_kv_events`]. Unrecorded events cost nothing.
    pub fn record_kv_events(&mut self, is_on: bool) {
        self.records_kv_events = is_on;
        self.was_cleared &= is_on;
        if let Some(shard) = &mut self.lane.shard {
            shard.kv.record_events(is_on);
        }
    }

    /// Returns the events of the KV index since the last call. Call it after every event and plan.
    pub fn take_kv_events(&mut self) -> Vec<KvEvent> {
        let was_cleared = std::mem::take(&mut self.was_cleared);
        let mut events = if was_cleared { vec![KvEvent::AllBlocksCleared] } else { Vec::new() };
        if let Some(shard) = &mut self.lane.shard {
            events.append(&mut shard.kv.take_events());
        }
        events
    }

    /// Panics where counts, lists and the KV index disagree. For tests; costs O(everything).
    pub fn check_invariants(&self) {
        invariants::check(&self.config, &self.sequences, &self.lane);
    }

    fn parts<'a>(&'a mut self, now: Millis, updates: &'a mut Vec<Update>) -> Lifecycle<'a> {
        Lifecycle {
            config: &self.config,
            now,
            sequences: &mut self.sequences,
            lane: &mut self.lane,
            counters: &mut self.counters,
            updates,
        }
    }

    fn set_now(&mut self, now: Millis) {
        if let Some(shard) = &mut self.lane.shard {
            shard.kv.set_now(now.0);
            shard.kv.expire_pins();
        }
    }

    fn settle(&mut self) {
        if let Some(shard) = &mut self.lane.shard {
            shard.kv.settle();
        }
    }

    fn shard_ready(&mut self, now: Millis, limits: ShardLimits, updates: &mut Vec<Update>) {
        self.shard_lost(now, updates);
        let shard = Shard::new(limits, &self.config, self.records_kv_events);
        let mut parts = self.parts(now, updates);
        for key in parts.sequences.keys_by_arrival() {
            let sequence = &parts.sequences[key];
            let num_prompt_tokens = sequence.num_prompt_tokens as usize;
            if let Some(reason) = shard.misfit(&sequence.tokens, num_prompt_tokens, sequence.max_new_tokens) {
                let id = parts.remove_waiting(key);
                reject(&mut parts, id, reason);
            }
        }
        self.lane.shard = Some(shard);
    }

    fn shard_lost(&mut self, now: Millis, updates: &mut Vec<Update>) {
        if self.lane.disconnect(&mut self.counters) {
            self.was_cleared = self.records_kv_events;
            self.parts(now, updates).restart_after_loss();
        }
    }
}

fn submit(parts: &mut Lifecycle<'_>, request: SequenceRequest) {
    let id = request.id;
    assert!(parts.sequences.key(id).is_none(), "a sequence id is used once: {}", id.0);
    if let Some(reason) = refusal(parts, &request) {
        reject(parts, id, reason);
        return;
    }
    let is_scored = request.sampling.prompt_logprobs.is_some() && request.token_ids.len() > 1;
    if request.max_new_tokens == 0 && !is_scored {
        let usage = Usage { prompt_tokens: request.token_ids.len() as u32, ..Usage::default() };
        parts.updates.push(Update::Ended { id, reason: EndReason::Length, usage });
        return;
    }
    let key = parts.sequences.insert(request, parts.now);
    parts.enter_queue(key);
}

fn end_by_id(parts: &mut Lifecycle<'_>, id: SequenceId, reason: EndReason) {
    if let Some(key) = parts.sequences.key(id)
        && !parts.sequences[key].is_ending()
    {
        parts.end(key, reason);
    }
}
