//! A router with its shards, started from one configuration.

mod models;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use trunkline_settings::Order;

use crate::args::resolved::ServerConfig;
use crate::caller::{Lane, LaneState};
use crate::child::{ChildId, ShardId};
use crate::error::LauncherError;
use crate::lanes::Drains;
use crate::log::{Field, Log};
use crate::plan::{Other, Plan, PlannedModel};
use crate::process::{Event, Process};
use crate::restart::{RestartPolicy, Verdict};
use crate::start_trace::StartTrace;
use crate::supervised::{State, Supervised};

/// Reads the command line, the variables and the configuration file again.
pub type Reread = Box<dyn Fn() -> Result<Box<ServerConfig>, LauncherError>>;

/// A pair that should be running.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) plan: Plan,
    pub(crate) children: Vec<Supervised>,
    pub(crate) drains: Drains,
    /// A process that can become a shard at once.
    pub(crate) spare: Option<Process>,
    /// The trace of the start, of which children are a part until a shard computes.
    trace: StartTrace,
    /// True if the router has reported that a shard computes.
    has_ready_shard: bool,
    /// The models whose shards are told to stop because one of them failed, and why.
    failed: BTreeMap<u32, String>,
}

impl Pair {
    /// Starts all children, or the router alone if another pair serves; the shards then wait. The router itself waits
    /// for the shards' sockets. After an error none is left.
    pub(crate) fn start(
        plan: Plan,
        other: Other,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        log.info(
            "starting",
            &[
                ("version", &env!("CARGO_PKG_VERSION")),
                ("model", &plan.model().path.display()),
                ("revision", &plan.model().revision.as_deref().unwrap_or("none")),
                ("port", &plan.base.listener.port),
            ],
        );
        let mut pair = Self {
            trace: StartTrace::begin(plan.resolved),
            plan,
            children: Vec::new(),
            drains: Drains::default(),
            spare: None,
            has_ready_shard: false,
            failed: BTreeMap::new(),
        };
        let ids: Vec<ChildId> = pair.plan.children().collect();
        for id in ids {
            let state = match other {
                _ if id.is_shard() && pair.plan.is_on_demand => State::Unloaded,
                Other::Serves if id.is_shard() => State::Waiting,
                _ => State::Running(pair.spawn(id, other, log, events)?),
            };
            pair.supervise(id, state);
        }
        Ok(pair)
    }

    fn supervise(&mut self, id: ChildId, state: State) {
        let restarts = RestartPolicy::new(self.plan.base.pace.base_pause);
        let (is_ready, has_served, hung, kill_at) = (false, false, None, None);
        self.children.push(Supervised { id, state, restarts, is_ready, has_served, hung, kill_at });
    }

    /// Adds a model whose shards do not run yet, and tells the router.
    pub(crate) fn add_model(
        &mut self,
        planned: PlannedModel,
        found_as: Option<&str>,
        log: &Log,
    ) -> Result<(), LauncherError> {
        let replaces = planned.replaces;
        let number = self.plan.add(planned);
        if let Err(error) = self.write_settings() {
            self.plan.forget(number);
            return Err(error);
        }
        let shards: Vec<ChildId> =
            self.plan.shards().filter(|shard| shard.model == number).map(ChildId::Shard).collect();
        shards.into_iter().for_each(|shard| self.supervise(shard, State::Unloaded));
        self.tell_added(number, found_as, replaces, log);
        Ok(())
    }

    /// Tells the router of a model that is there.
    pub(crate) fn tell_added(&self, number: u32, found_as: Option<&str>, replaces: Option<u32>, log: &Log) {
        let settings = self.plan.base.runtime_dir.settings(number, self.plan.generation);
        let found_as = found_as.map(str::to_owned);
        self.order(&Order::Added { settings, found_as, replaces }, log);
    }

    /// Forgets the models that are no longer served and whose shards have ended.
    pub(crate) fn forget_removed(&mut self) {
        let removed: Vec<u32> = self.plan.removed().collect();
        for number in removed {
            let is_its = |child: &Supervised| child.model() == Some(number);
            if !self.children.iter().any(|child| is_its(child) && child.is_held()) {
                self.children.retain(|child| !is_its(child));
                self.plan.forget(number);
            }
        }
    }

    /// Writes the settings of all models for their shards and the router.
    fn write_settings(&self) -> Result<(), LauncherError> {
        let folder = &self.plan.base.runtime_dir;
        for settings in self.plan.settings() {
            folder
                .write_settings(settings.model_number, self.plan.generation, &settings)
                .map_err(|source| LauncherError::System { what: "write the settings", source })?;
        }
        Ok(())
    }

    /// Starts the shards that wait and whose lanes `may_start` selects, beside those of `other`.
    pub(crate) fn start_waiting(
        &mut self,
        may_start: impl Fn(u32) -> bool,
        other: Other,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<(), LauncherError> {
        for index in 0..self.children.len() {
            if self.children[index].waits().is_some_and(&may_start) {
                let process = self.spawn(self.children[index].id, other, log, events)?;
                self.children[index].state = State::Running(process);
            }
        }
        Ok(())
    }

    pub(crate) fn spawn(
        &mut self,
        id: ChildId,
        other: Other,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<Process, LauncherError> {
        // Written at each start: something that cleans temporary folders may have removed it.
        self.write_settings()?;
        if let ChildId::Shard(shard) = id {
            remove_stale(&self.plan.socket(shard))?;
        }
        if let Some(process) = self.take_spare(id, other) {
            log.debug("a spare process takes over", &[("process", &id), ("pid", &process.pid())]);
            return Ok(process);
        }
        let mut command = self.plan.command(id, other);
        if !self.has_ready_shard {
            self.trace.pass_to(id, &mut command);
        }
        if id == ChildId::Router {
            self.first_loads().into_iter().for_each(|model| {
                command.args(["--load", &model.to_string()]);
            });
        }
        let process = Process::spawn(id, command, events)?;
        log.debug("started", &[("process", &id), ("pid", &process.pid())]);
        Ok(process)
    }

    /// Returns the models that a router loads from the start: those that are in memory, as a router that was started
    /// again has to know, or else the first one and those that stay.
    fn first_loads(&self) -> BTreeSet<u32> {
        if !self.plan.is_on_demand {
            return BTreeSet::new();
        }
        let is_there =
            |shard: &&Supervised| !matches!(shard.state, State::Unloaded) && shard.kill_at.is_none();
        let in_memory = self.shards().filter(is_there);
        let in_memory = in_memory.filter_map(Supervised::model);
        let in_memory: BTreeSet<u32> =
            in_memory.filter(|number| self.plan.served_as(*number).is_some()).collect();
        if !in_memory.is_empty() {
            return in_memory;
        }
        let stay =
            self.plan.served().filter(|(number, planned)| *number == 0 || planned.config.residency.pin);
        stay.map(|(number, _)| number).collect()
    }

    /// Makes the spare process the shard with this id, if there is one that may become it.
    fn take_spare(&mut self, id: ChildId, other: Other) -> Option<Process> {
        let ChildId::Shard(shard) = id else { return None };
        let arguments = self.plan.shard_arguments(shard, other);
        // JSON has no form for a path that is not Unicode.
        let arguments: Vec<&str> = arguments.iter().map(|word| word.to_str()).collect::<Option<_>>()?;
        let mut spare = self.spare.take_if(|_| self.plan.takes_spare(shard))?;
        spare.become_shard(id, &arguments).ok()?;
        Some(spare)
    }

    /// Starts a process that can become a shard. Without one, shards start more slowly.
    pub(crate) fn start_spare(&mut self, log: &Log, events: &SyncSender<Event>) {
        match Process::spawn(ChildId::Spare, self.plan.command(ChildId::Spare, Other::None), events) {
            Ok(process) => self.spare = Some(process),
            Err(error) => log.warn("cannot start a spare process", &[("error", &error)]),
        }
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Process> {
        self.children.iter().filter_map(Supervised::process)
    }

    /// Returns the id of the running process with this process id.
    pub(crate) fn id_of(&self, pid: u32) -> Option<ChildId> {
        self.running().find(|process| process.pid() == pid).map(Process::id)
    }

    /// Returns the shard whose socket has this path.
    pub(crate) fn shard_at(&mut self, socket: &Path) -> Option<&mut Supervised> {
        let plan = &self.plan;
        let is_it = |id| matches!(id, ChildId::Shard(shard) if plan.socket(shard) == *socket);
        self.children.iter_mut().find(|child| is_it(child.id))
    }

    /// Returns the children that are shards.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Supervised> {
        self.children.iter().filter(|child| child.id.is_shard())
    }

    fn shard_mut(&mut self, lane: ShardId) -> Option<&mut Supervised> {
        self.children.iter_mut().find(|child| child.id == ChildId::Shard(lane))
    }

    /// Notes that the shard at this socket computes.
    pub(crate) fn shard_is_ready(&mut self, socket: &Path) {
        self.has_ready_shard = true;
        if let Some(child) = self.shard_at(socket) {
            (child.is_ready, child.has_served) = (true, true);
        }
    }

    /// Returns true if a shard computes, and all do that this launcher has started.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_ready_shard && self.shards().all(|child| child.is_ready || !child.is_expected())
    }

    /// Begins to empty a lane, whose shard then stops and is not started again.
    pub(crate) fn drain(&mut self, lane: ShardId, log: &Log) {
        let router = router(&self.children);
        let (socket, patience) = (self.plan.lane_socket(lane), self.plan.base.pace.drain_patience);
        self.drains.begin(lane, socket, patience, router, log);
        if let Some(child) = self.shard_mut(lane)
            && let State::Crashed { .. } | State::Waiting = child.state
        {
            child.state = State::Gone;
        }
    }

    /// Uses a lane again whose shard was drained or given up.
    pub(crate) fn add(&mut self, lane: ShardId, log: &Log) {
        let router = router(&self.children);
        let may_start = self.drains.end(lane, router, log);
        let base_pause = self.plan.base.pace.base_pause;
        let is_its = |child: &&Supervised| child.model() == Some(lane.model);
        let is_loaded = !self.plan.is_on_demand
            || self.shards().filter(is_its).any(|shard| shard.is_held() && shard.kill_at.is_none());
        if let Some(child) = self.shard_mut(lane)
            && may_start
            && let State::Gone = child.state
        {
            child.restarts = RestartPolicy::new(base_pause);
            child.state = if is_loaded { State::Waiting } else { State::Unloaded };
        }
    }

    /// Handles the end of the shard of a lane that drains.
    pub(crate) fn stopped(&mut self, lane: ShardId, log: &Log) {
        if self.drains.ended(lane) {
            self.add(lane, log);
        }
    }

    /// Returns the state of each lane of a model.
    pub(crate) fn lanes(&self, model: u32) -> Vec<Lane> {
        let lane = |place| {
            let shard = self.shards().find(|child| child.id == ChildId::Shard(place));
            let process = shard.and_then(Supervised::process);
            let state = match (shard, self.drains.has(place)) {
                (_, true) if process.is_none() && self.drains.is_empty(place) => LaneState::Drained,
                (_, true) => LaneState::Drains,
                (None, false) => LaneState::Elsewhere,
                (Some(child), false) => child.lane_state(),
            };
            Lane { state, pid: process.map(Process::pid) }
        };
        self.plan.lanes_of(model).map(|(place, _)| lane(place)).collect()
    }

    /// Returns true if the server goes on without a child that has crashed too often and is gone, which it does without
    /// a shard as long as there is another one.
    pub(crate) fn goes_on_without(&self, id: ChildId, log: &Log, fields: &[Field<'_>]) -> bool {
        let is_left = |child: &&Supervised| child.id.is_shard() && !matches!(child.state, State::Gone);
        let num_left = self.children.iter().filter(is_left).count();
        if !id.is_shard() || num_left == 0 {
            return false;
        }
        let own_fields: &[Field<'_>] = &[("process", &id), ("shards_left", &num_left)];
        let fields = [own_fields, fields].concat();
        log.warn("crashed too often and is given up; the server goes on with the others", &fields);
        true
    }

    /// Returns the time at which the next crashed child is restarted.
    pub(crate) fn next_restart(&self) -> Option<Instant> {
        let times = self.children.iter().filter_map(|child| match child.state {
            State::Crashed { restart_at } => Some(restart_at),
            State::Running(_) | State::Waiting | State::Unloaded | State::Gone => None,
        });
        times.min()
    }

    /// Starts the children whose time has come: those that crashed, and the shards that wait and whose lanes
    /// `may_start` selects, beside those of `other`. A start that fails is a crash: memory, processes or
    /// room for the settings may be short for a moment.
    ///
    /// Returns the shards that could not be started of models that are loaded when they are asked for, and why.
    pub(crate) fn start_due(
        &mut self,
        may_start: impl Fn(u32) -> bool,
        other: Other,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<Vec<(ChildId, String)>, LauncherError> {
        let now = Instant::now();
        let mut failed = Vec::new();
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            let id = child.id;
            let done = match child.state {
                State::Crashed { restart_at } if restart_at <= now => "restarted",
                State::Waiting if child.lane().is_some_and(&may_start) => "started",
                _ => continue,
            };
            child.is_ready = false;
            // A disk that broke after the start must not end the server.
            self.plan.allow_no_store();
            let other = if id.is_shard() { other } else { Other::None };
            let started = self.spawn(id, other, log, events);
            let child = &mut self.children[index];
            match started {
                Ok(process) => {
                    log.info(done, &[("process", &id), ("pid", &process.pid())]);
                    if !id.is_shard() {
                        self.drains.repeat(&process, log);
                    }
                    child.state = State::Running(process);
                }
                Err(error) if id.is_shard() && self.plan.is_on_demand => {
                    child.state = State::Unloaded;
                    failed.push((id, error.to_string()));
                }
                Err(error) => match child.restarts.crashed(now) {
                    Verdict::RestartAfter(pause) => {
                        log.warn(
                            "failed to restart; trying again",
                            &[("process", &id), ("error", &error), ("after_ms", &pause.as_millis())],
                        );
                        child.state = State::Crashed { restart_at: now + pause };
                    }
                    Verdict::GiveUp { .. } => {
                        child.state = State::Gone;
                        if !self.goes_on_without(id, log, &[("error", &error)]) {
                            return Err(error);
                        }
                    }
                },
            }
        }
        Ok(failed)
    }

    /// Gives the router an order, if it runs.
    pub(crate) fn order(&self, order: &Order, log: &Log) {
        if let Some(router) = router(&self.children)
            && let Err(error) = router.order(order)
        {
            log.warn("cannot give an order", &[("process", &router.id()), ("error", &error)]);
        }
    }

    /// Takes the running processes that `which` selects out of this pair's care.
    pub(crate) fn take_running(&mut self, mut which: impl FnMut(&Process) -> bool) -> Vec<Process> {
        let mut taken = Vec::new();
        for child in &mut self.children {
            if matches!(&child.state, State::Running(process) if which(process))
                && let State::Running(process) = std::mem::replace(&mut child.state, State::Gone)
            {
                taken.push(process);
            }
        }
        taken
    }
}

/// Returns the process of the router, if it runs.
fn router(children: &[Supervised]) -> Option<&Process> {
    children.iter().filter_map(Supervised::process).find(|process| !process.id().is_shard())
}

/// Removes the socket that a killed shard left behind, so that the router does not try to connect to it.
fn remove_stale(socket: &Path) -> Result<(), LauncherError> {
    match fs::remove_file(socket) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(LauncherError::System { what: "remove the ended shard's socket", source }),
    }
}
