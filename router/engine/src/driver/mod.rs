//! The driving task. It owns the scheduler, turns commands and step results into scheduler events, sends plans to the
//! shards and updates to the requests.
//!
//! The driver never waits for a client. Every request has a bounded buffer, and a request whose buffer is full is
//! aborted. A client must not look slow because the router's own threads are busy. Once a buffer is half full, those
//! threads therefore get a turn before the next step is planned.

mod constraints;
mod handle;
pub mod late;
mod plans;
mod route;
pub mod step_log;
mod step_spans;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_scheduler::{
    AdapterUses, Event, LaneId, LaneStats, Millis, Scheduler, SchedulerConfig, SequenceId, Stats,
    TenantUsage, Update,
};

use crate::kv_events::{self, EventFeed, EventSink};
use crate::shard::proto::StepRequest;
use crate::shard::{LinkEvent, ShardStatus};
use trunkline_base::limits::MAX_LOOKS;
use trunkline_base::metrics::ModelMetrics;
use trunkline_base::metrics::usage::UsageLedger;
use trunkline_base::shutdown::Phase;
use trunkline_base::trace::TelemetrySlot;

use constraints::{Constraints, Worked};
use handle::{Client, Command, Question, Submission};
pub use handle::{DriverGone, DriverHandle, NewSequence, Sequence, SequenceUpdate};
use late::LateRestores;
use step_log::StepLog;
use step_spans::StepSpans;

/// The most events handled before the next plan. It bounds a turn under a flood of commands.
const MAX_EVENTS_PER_TURN: usize = 256;
/// The most events of each link that wait for the driver. A shard has at most two results in flight.
const MAX_WAITING_LINK_EVENTS: usize = 16;

/// The state of the driving task; see `run`.
pub struct Driver {
    scheduler: Scheduler,
    commands: mpsc::Receiver<Command>,
    links: mpsc::Receiver<(LaneId, LinkEvent)>,
    /// The ways to the connected shards, by lane.
    plans: Vec<Option<mpsc::Sender<StepRequest>>>,
    clients: HashMap<SequenceId, Client>,
    constraints: Constraints,
    /// Receives masks that other threads computed.
    worked: mpsc::Receiver<Vec<Worked>>,
    updates: Vec<Update>,
    begin: Instant,
    /// The time at which the current event was received.
    turn: Instant,
    shards: watch::Sender<Vec<ShardStatus>>,
    phase: watch::Receiver<Phase>,
    stats: watch::Sender<Stats>,
    lanes: watch::Sender<Vec<LaneStats>>,
    adapters: watch::Sender<AdapterUses>,
    tenants: watch::Sender<Vec<TenantUsage>>,
    usage: Arc<UsageLedger>,
    kv_events: EventSink,
    late_restores: LateRestores,
    metrics: Arc<ModelMetrics>,
    /// The runtime of the requests' tasks.
    readers: Handle,
    /// True if a request reads so slowly that its reader gets a turn before the next step; see `route`.
    is_crowded: bool,
    /// True once this turn has answered a question. A question may take a millisecond, so each turn answers one.
    has_answered: bool,
    next_question: Option<Question>,
    step_spans: StepSpans,
    step_log: Arc<StepLog>,
}

/// The ends of the driver's channels that others hold.
pub struct DriverEnds {
    /// Sends commands; used by requests.
    pub handle: DriverHandle,
    /// Sends the shards' events; used by the links.
    pub links: mpsc::Sender<(LaneId, LinkEvent)>,
    /// The current status of each lane's shard.
    pub shards: watch::Receiver<Vec<ShardStatus>>,
    /// The scheduler's statistics after the last event that a client was told of.
    pub stats: watch::Receiver<Stats>,
    /// The statistics of each lane after the last turn.
    pub lanes: watch::Receiver<Vec<LaneStats>>,
    /// The use of adapters after the last turn.
    pub adapters: watch::Receiver<AdapterUses>,
    /// Each tenant's use of the block pool after the last turn.
    pub tenants: watch::Receiver<Vec<TenantUsage>>,
    /// Each tenant's usage up to the last turn.
    pub usage: Arc<UsageLedger>,
    /// The KV index's events.
    pub kv_events: EventFeed,
    /// The last steps of each lane.
    pub steps: Arc<StepLog>,
}

impl Driver {
    /// Creates a driver for at most `max_requests` open requests, whose tasks run on the current runtime.
    pub fn new(
        config: SchedulerConfig,
        max_requests: usize,
        phase: watch::Receiver<Phase>,
        metrics: Arc<ModelMetrics>,
        telemetry: TelemetrySlot,
    ) -> (Self, DriverEnds) {
        // A live request owns at most two slots, for its submission and its end, and a look at the cache one.
        let (commands, commands_in) = mpsc::channel(2 * max_requests.max(1) + MAX_LOOKS);
        let num_lanes = config.num_lanes.max(1) as usize;
        let (links, links_in) = mpsc::channel(MAX_WAITING_LINK_EVENTS * num_lanes);
        let (shards, shards_out) = watch::channel(vec![ShardStatus::Loading; num_lanes]);
        let (stats, stats_out) = watch::channel(Stats::default());
        let (lanes, lanes_out) = watch::channel(vec![LaneStats::default(); num_lanes]);
        let (adapters, adapters_out) = watch::channel(AdapterUses::default());
        let (tenants, tenants_out) = watch::channel(Vec::new());
        let usage = Arc::<UsageLedger>::default();
        let steps = Arc::new(StepLog::new(num_lanes));
        let (kv_events, kv_events_out) = kv_events::channel(num_lanes);
        let (constraints, worked) = Constraints::new(max_requests, Handle::current());
        let driver = Self {
            scheduler: Scheduler::new(config),
            commands: commands_in,
            links: links_in,
            plans: vec![None; num_lanes],
            clients: HashMap::new(),
            constraints,
            worked,
            updates: Vec::new(),
            begin: Instant::now(),
            turn: Instant::now(),
            shards,
            phase,
            stats,
            lanes,
            adapters,
            tenants,
            usage: usage.clone(),
            kv_events,
            late_restores: LateRestores::default(),
            metrics,
            readers: Handle::current(),
            is_crowded: false,
            has_answered: false,
            next_question: None,
            step_spans: StepSpans::new(telemetry),
            step_log: steps.clone(),
        };
        let handle = DriverHandle::new(commands);
        let (shards, stats, lanes, adapters) = (shards_out, stats_out, lanes_out, adapters_out);
        let (tenants, kv_events) = (tenants_out, kv_events_out);
        let ends =
            DriverEnds { handle, links, shards, stats, lanes, adapters, tenants, usage, kv_events, steps };
        (driver, ends)
    }

    /// Runs until all handles, or all links, are gone.
    pub async fn run(mut self) {
        loop {
            self.has_answered = false;
            if let Some(question) = self.next_question.take() {
                self.on_command(Command::Ask(question));
            } else if !self.handle_next().await {
                return;
            }
            self.take_waiting();
            let worked = self.constraints.flush();
            if !worked.is_empty() {
                self.on_worked(worked);
            }
            if std::mem::take(&mut self.is_crowded) {
                // The runtime's queue is first in, first out. When this task is done, the tasks that were woken before
                // it had their turn. It fails only if the runtime is shutting down, when no client waits for tokens.
                let _ = self.readers.spawn(async {}).await;
            }
            self.send_plans();
            for lane in self.scheduler.lane_ids() {
                self.kv_events.send(lane, self.scheduler.take_kv_events(lane));
            }
            self.scheduler.record_kv_events(self.kv_events.is_wanted());
            self.tenants.send_modify(|tenants| self.scheduler.tenants(tenants));
            self.publish();
            self.publish_held_bytes();
            if let Some(num_restores) = self.late_restores.take(&self.stats.borrow(), self.turn) {
                tracing::warn!(
                    num_restores,
                    num_blocks = self.stats.borrow().blocks_late,
                    "the KV store does not answer, its blocks are computed; hint: check the disk of `--kv-disk-path`"
                );
            }
            self.lanes.send_modify(|lanes| {
                for (lane, before) in self.scheduler.lane_ids().zip(lanes.iter()) {
                    let num_streams = self.scheduler.lane_stats(lane).escapes - before.escapes;
                    if num_streams > 0 {
                        tracing::warn!(
                            lane = lane.0,
                            num_streams,
                            "the shard's step is late, its streams go on elsewhere"
                        );
                    }
                }
                lanes.clear();
                lanes.extend(self.scheduler.lane_ids().map(|lane| self.scheduler.lane_stats(lane)));
            });
        }
    }

    /// Publishes what has been done.
    fn publish(&mut self) {
        let stats = self.scheduler.stats();
        // Steps that only decode change none of these.
        let of_adapters = |stats: &Stats| {
            let started = (stats.prompt_tokens, stats.num_running, stats.num_waiting);
            (started, stats.adapter_slots, stats.adapter_loads, stats.adapter_slots_loaded)
        };
        if of_adapters(&self.stats.borrow()) != of_adapters(&stats) {
            self.adapters.send_replace(self.scheduler.adapter_uses());
        }
        self.stats.send_replace(stats);
        let mut recording = self.usage.record();
        self.scheduler.take_consumption(|tenant, work| recording.add(tenant, work));
    }

    /// Adds the blocks in use to the tenants' usage.
    fn publish_held_bytes(&mut self) {
        let bytes_per_block = match ShardStatus::of_model(&self.shards.borrow()) {
            ShardStatus::Ready(info) => {
                let stats = self.stats.borrow();
                info.pool_bytes(&stats) as f64 / stats.blocks_total.max(1) as f64
            }
            ShardStatus::Loading | ShardStatus::Lost(_) => 0.0,
        };
        let bytes = |usage: &TenantUsage| f64::from(usage.num_blocks) * bytes_per_block;
        let tenants = self.tenants.borrow();
        self.usage.record().hold(tenants.iter().map(|usage| (usage.tenant.as_deref(), bytes(usage))));
    }

    /// Waits for an event or a deadline and handles it. Returns false if all handles, or all links, are gone.
    async fn handle_next(&mut self) -> bool {
        let wakeup = self.scheduler.next_wakeup();
        let deadline = wakeup.map(|at| self.begin + Duration::from_millis(at.0));
        tokio::select! {
            biased;
            event = self.links.recv() => match event {
                Some((lane, event)) => self.on_link(lane, event),
                None => return false,
            },
            command = self.commands.recv() => match command {
                Some(command) => self.on_command(command),
                None => return false,
            },
            Some(worked) = self.worked.recv() => self.on_worked(worked),
            Ok(()) = self.phase.changed() => {
                self.turn = Instant::now();
                for lane in self.scheduler.lane_ids() {
                    if self.plans[lane.0 as usize].is_none() {
                        self.on_loss(lane);
                    }
                }
            }
            () = until(deadline) => {}
        }
        true
    }

    /// Handles the events that are already waiting, so that the next plan includes them.
    fn take_waiting(&mut self) {
        for _ in 0..MAX_EVENTS_PER_TURN {
            if self.next_question.is_some() {
                return;
            }
            if let Ok((lane, event)) = self.links.try_recv() {
                self.on_link(lane, event);
            } else if let Ok(worked) = self.worked.try_recv() {
                self.on_worked(worked);
            } else if let Ok(command) = self.commands.try_recv() {
                self.on_command(command);
            } else {
                return;
            }
        }
    }

    fn now(&self) -> Millis {
        self.millis(self.turn)
    }

    /// Returns a time as the scheduler has it.
    fn millis(&self, at: Instant) -> Millis {
        let since = at.saturating_duration_since(self.begin);
        Millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Microseconds since the driver began, for traces of steps.
    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn handle(&mut self, event: Event) {
        self.scheduler.handle(self.now(), event, &mut self.updates);
        self.route();
    }

    fn on_link(&mut self, lane: LaneId, event: LinkEvent) {
        self.turn = Instant::now();
        match event {
            LinkEvent::Ready { info, store, plans } => {
                tracing::info!(
                    lane = lane.0,
                    device = %info.device,
                    architecture = %info.architecture,
                    num_blocks = info.num_device_blocks,
                    block_size = info.block_size,
                    max_step_tokens = info.max_step_tokens,
                    "shard is ready"
                );
                self.plans[lane.0 as usize] = Some(plans);
                self.constraints.set_vocab_size(info.vocab_size);
                self.handle(Event::ShardReady(lane, info.limits()));
                if let Some(store) = store {
                    self.handle(Event::StoreReady(lane, store));
                }
                self.shards.send_modify(|shards| shards[lane.0 as usize] = ShardStatus::Ready(info));
            }
            LinkEvent::Result(result) => {
                self.metrics.step_seconds.observe(result.device_time_us as f64 / 1e6);
                let (step_id, device_us) = (result.step_id, result.device_time_us);
                tracing::trace!(
                    lane = lane.0,
                    step_id,
                    device_us,
                    at_us = self.elapsed_us(),
                    "step finished"
                );
                // The scheduler must not have the result yet.
                if let Some(sequences) = self.scheduler.step_in_flight(lane, step_id) {
                    self.step_log.add(lane, &result, sequences.clone(), &self.clients);
                    self.step_spans.add(self.turn, lane, &result, sequences, &self.clients);
                }
                self.handle(Event::StepResult(lane, result));
            }
            LinkEvent::Transfers(transfers) => self.handle(Event::Transfers(lane, transfers)),
            LinkEvent::Lost => {
                self.plans[lane.0 as usize] = None;
                self.shards.send_if_modified(|shards| {
                    let status = &mut shards[lane.0 as usize];
                    let ShardStatus::Ready(info) = status else { return false };
                    *status = ShardStatus::Lost(info.clone());
                    true
                });
                self.on_loss(lane);
            }
        }
    }

    /// Tells the scheduler that a lane has no shard. A server that drains restarts none.
    fn on_loss(&mut self, lane: LaneId) {
        let may_return = *self.phase.borrow() == Phase::Serving;
        self.handle(Event::ShardLost { lane, may_return });
    }

    fn on_worked(&mut self, worked: Vec<Worked>) {
        self.turn = Instant::now();
        for worked in worked {
            self.metrics.mask_seconds.observe(worked.time.as_secs_f64());
            if let Some((id, allowed)) = self.constraints.end(worked) {
                self.handle(Event::Allow { id, allowed });
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        self.turn = Instant::now();
        match command {
            Command::Submit(submission) => self.on_submission(*submission),
            Command::Finish(id) => {
                self.clients.remove(&id);
                self.constraints.forget(id);
                self.handle(Event::Finish(id));
            }
            Command::Abort(id) => {
                // A sequence that has ended has no client, and there is nothing to abort.
                if self.clients.remove(&id).is_some() {
                    self.metrics.aborts.inc();
                    self.constraints.forget(id);
                    self.handle(Event::Abort(id));
                }
            }
            Command::Drain { lane, patience_ms } => self.handle(Event::Drain { lane, patience_ms }),
            Command::Ask(question) if self.has_answered => self.next_question = Some(question),
            Command::Ask(question) => {
                self.has_answered = true;
                let now = self.now();
                question(&mut self.scheduler, now);
            }
        }
    }

    fn on_submission(&mut self, Submission { sequence, client }: Submission) {
        let NewSequence { mut request, constraint, deadline, .. } = sequence;
        let id = request.id;
        self.clients.insert(id, client);
        request.constrained = constraint.is_some();
        if let Some(constraint) = constraint {
            self.constraints.begin(id, constraint, request.sampling.logprobs);
        }
        request.deadline = deadline.map(|at| self.millis(at));
        self.handle(Event::Submit(Box::new(request)));
        self.tell(id, SequenceUpdate::Accepted);
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
