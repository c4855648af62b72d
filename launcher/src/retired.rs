//! Pairs that no longer serve new connections and end beside the one that does.

use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::process::Signal;
use trunkline_settings::Order;

use crate::caller::Caller;
use crate::child::{ChildId, ShardId};
use crate::exit::Exit;
use crate::log::Log;
use crate::pace::Pace;
use crate::pair::Pair;
use crate::plan::Other;
use crate::process::{Event, Process};

/// The children of a pair that was replaced, or that failed to replace another. None of them is restarted.
#[derive(Debug)]
pub(crate) struct Retired {
    pair: Pair,
    processes: Vec<Process>,
    /// The moment at which the remaining processes are killed.
    deadline: Instant,
    /// True once the shards have been told to stop.
    is_stopping: bool,
    /// Waits until the router has closed the listening socket. Before that, it may still answer new connections.
    caller: Option<Caller>,
    /// Process ids of shards that gave their store up for this pair, which failed. They get it back once it has ended.
    gave_store: Vec<u32>,
}

impl Retired {
    /// Lets the router finish what its open connections ask for. The shards stop after it.
    pub(crate) fn replaced(mut pair: Pair, caller: Option<Caller>) -> Self {
        let processes = pair.take_running(|_| true);
        // The router drains if clients keep its connections busy for the first of these times.
        let patience = 2 * pair.plan.config().server.graceful_termination_timeout;
        let deadline = Instant::now() + patience + pair.plan.base.pace.router_grace;
        let mut retired =
            Self { pair, processes, deadline, is_stopping: false, caller, gave_store: Vec::new() };
        retired.routers().for_each(|router| router.signal(Signal::USR2));
        retired.stop_shards_if_alone();
        retired
    }

    /// Ends a pair that never served, and for which these shards gave their store up.
    pub(crate) fn failed(mut pair: Pair, gave_store: Vec<u32>) -> Self {
        let processes = pair.take_running(|_| true);
        processes.iter().for_each(|process| process.signal(Signal::TERM));
        let deadline = Instant::now() + pair.plan.base.pace.abandon_timeout;
        Self { pair, processes, deadline, is_stopping: true, caller: None, gave_store }
    }

    /// Tells the caller that all new connections get to the new pair.
    pub(crate) fn left(&mut self) {
        if let Some(caller) = self.caller.take() {
            caller.answer(Ok(()));
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.pair.drains.deadline().map_or(self.deadline, |at| at.min(self.deadline))
    }

    pub(crate) fn has(&self, pid: u32) -> bool {
        self.processes.iter().any(|process| process.pid() == pid)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.processes.is_empty()
    }

    /// Returns the process ids of the shards that get their store back once this pair has ended.
    pub(crate) fn gave_store(&self) -> &[u32] {
        &self.gave_store
    }

    /// Handles the end of one of the processes.
    pub(crate) fn ended(&mut self, pid: u32, log: &Log) {
        let Some(at) = self.processes.iter().position(|process| process.pid() == pid) else { return };
        let process = self.processes.remove(at);
        let id = process.id();
        let (exit, mut tail) = process.reap();
        if let ChildId::Shard(shard) = id {
            self.pair.drains.ended(shard);
            self.report_ended(shard, exit, log);
        }
        if self.is_stopping && id.is_shard() || exit.is_success() {
            log.debug("stopped", &[("process", &id), ("pid", &pid), ("exit", &exit)]);
        } else {
            tail.release();
            log.warn(
                "exited unexpectedly; it was replaced",
                &[("process", &id), ("pid", &pid), ("exit", &exit)],
            );
        }
        let has_shards = self.processes.iter().any(|process| process.id().is_shard());
        if id.is_shard() && exit != Exit::Code(0) && !has_shards && !self.pair.plan.is_on_demand {
            // The streams cannot go on, and the router need not wait for another shard.
            self.routers().for_each(|router| router.signal(Signal::TERM));
        }
        self.stop_shards_if_alone();
        if self.has_ended() {
            let plan = &self.pair.plan;
            plan.base.runtime_dir.remove_files_of(plan.generation, plan.shards());
        }
    }

    /// Starts the shards of a model that a request on an open connection has asked for.
    pub(crate) fn load(&mut self, model: u32, log: &Log, events: &SyncSender<Event>) {
        let shards: Vec<ShardId> =
            self.pair.plan.shards().filter(|shard| shard.model == model && !self.is_stopping).collect();
        for shard in shards {
            match self.pair.spawn(ChildId::Shard(shard), Other::None, log, events) {
                Ok(process) => self.processes.push(process),
                Err(error) => self.order(&Order::Failed { model, why: error.to_string() }, log),
            }
        }
    }

    /// Stops the shards of a model.
    pub(crate) fn unload(&self, model: u32, log: &Log) {
        let is_its = |process: &&Process| process.id().shard().is_some_and(|shard| shard.model == model);
        let mut shards = self.processes.iter().filter(is_its).peekable();
        if shards.peek().is_none() {
            self.order(&Order::Unloaded { model }, log);
        }
        shards.for_each(|shard| shard.signal(Signal::TERM));
    }

    /// Tells the router that a model has left the memory after the end of this shard, if it was the last one.
    fn report_ended(&self, shard: ShardId, exit: Exit, log: &Log) {
        let model = shard.model;
        if !self.pair.plan.is_on_demand || self.shards().any(|other| other.model == model) {
            return;
        }
        let why = || "its shard ended after the server was reloaded".to_owned();
        let order =
            if exit.is_success() { Order::Unloaded { model } } else { Order::Failed { model, why: why() } };
        self.order(&order, log);
    }

    /// Gives the router an order, if it runs.
    pub(crate) fn order(&self, order: &Order, log: &Log) {
        let router = self.processes.iter().find(|process| !process.id().is_shard());
        if let Some(Err(error)) = router.map(|router| router.order(order)) {
            log.warn("cannot give an order", &[("process", &ChildId::Router), ("error", &error)]);
        }
    }

    /// Returns a shard of this pair that runs on this lane with this store on disk.
    pub(crate) fn holder_of(&self, lane: u32, store: &Path) -> Option<&Process> {
        self.processes.iter().find(|process| {
            let shard = process.id().shard().filter(|shard| shard.lane == lane);
            shard.is_some_and(|shard| self.pair.plan.store_of(shard) == Some(store))
        })
    }

    /// Begins to empty a lane for a shard of the pair that serves. One that is the last stays as it is, because this
    /// router still answers its open connections; so does any other while one is emptied.
    pub(crate) fn drain_one_of(&mut self, wanted: &[u32], log: &Log) {
        let lanes: Vec<ShardId> = self.shards().collect();
        if lanes.len() < 2 || lanes.iter().any(|lane| self.pair.drains.has(*lane)) {
            return;
        }
        let router = self.processes.iter().find(|process| !process.id().is_shard());
        if let Some(lane) = lanes.into_iter().find(|shard| wanted.contains(&shard.lane)) {
            let plan = &self.pair.plan;
            let (socket, patience) = (plan.lane_socket(lane), plan.base.pace.drain_patience);
            self.pair.drains.begin(lane, socket, patience, router, log);
        }
    }

    /// Notes that nothing is left on the shard with this socket.
    pub(crate) fn emptied(&mut self, socket: &Path) {
        if let Some(lane) = self.pair.plan.lane_at(socket) {
            self.pair.drains.emptied(lane);
        }
    }

    /// Stops the shards whose lanes are empty.
    pub(crate) fn stop_drained(&mut self, log: &Log) {
        let Pair { drains, plan, .. } = &mut self.pair;
        drains.stop(self.processes.iter(), plan.base.pace.shard_timeout, log);
    }

    /// Returns the lanes whose shards run.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = u32> {
        self.shards().map(|shard| shard.lane)
    }

    fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.processes.iter().filter_map(|process| process.id().shard())
    }

    /// Kills what has not ended by the deadline.
    pub(crate) fn kill_late(&mut self, now: Instant, pace: &Pace, log: &Log) {
        if now < self.deadline {
            return;
        }
        for process in &self.processes {
            log.warn(
                "did not stop in time and was killed",
                &[("process", &process.id()), ("pid", &process.pid())],
            );
            process.signal(Signal::KILL);
        }
        // Their ends arrive as events.
        self.deadline = now + pace.shard_timeout;
    }

    /// Kills the shard at this socket because its router reports that it hangs.
    pub(crate) fn kill_shard(&self, socket: &Path, seconds: u64, log: &Log) {
        let is_it = |id| matches!(id, ChildId::Shard(shard) if self.pair.plan.socket(shard) == *socket);
        for shard in self.processes.iter().filter(|process| is_it(process.id())) {
            log.warn(
                "hangs; killing it",
                &[("process", &shard.id()), ("pid", &shard.pid()), ("hung_s", &seconds)],
            );
            shard.signal(Signal::KILL);
        }
    }

    /// Returns the remaining processes, which are then somebody else's to stop.
    pub(crate) fn into_processes(self) -> Vec<Process> {
        self.processes
    }

    fn routers(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| !process.id().is_shard())
    }

    fn stop_shards_if_alone(&mut self) {
        if self.routers().next().is_some() {
            return;
        }
        self.left();
        if !self.is_stopping {
            self.is_stopping = true;
            self.processes.iter().for_each(|shard| shard.signal(Signal::TERM));
            self.deadline = Instant::now() + self.pair.plan.base.pace.shard_timeout;
        }
    }
}
