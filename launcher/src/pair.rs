//! A router with its shards, started from one configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use trunkline_settings::{Backend, KEY_VARIABLE, ServeSettings};

use crate::args::resolved::ServeConfig;
use crate::caller::{Lane, LaneState};
use crate::child::{ChildId, ShardId};
use crate::devices;
use crate::error::LauncherError;
use crate::lanes::Drains;
use crate::listen::Listener;
use crate::log::{Field, Log};
use crate::model::ResolvedModel;
use crate::pace::Pace;
use crate::process::{Event, Process};
use crate::programs;
use crate::ready::Reach;
use crate::restart::{RestartPolicy, Verdict};
use crate::runtime_dir::RuntimeDir;

/// The parts that all pairs of a launcher share.
#[derive(Debug)]
pub struct Base {
    pub listener: Listener,
    pub metrics_listener: Option<Listener>,
    pub runtime_dir: RuntimeDir,
    pub pace: Pace,
}

/// Everything needed to start a pair.
#[derive(Debug)]
pub struct Plan {
    pub config: Box<ServeConfig>,
    /// The interpreter with the server package.
    pub python: PathBuf,
    /// Path of the router binary.
    pub router: PathBuf,
    pub model: ResolvedModel,
    /// Number of reloads before this pair; it keeps the files of two pairs apart.
    pub generation: u32,
    pub base: Arc<Base>,
}

impl Plan {
    pub(crate) fn served_model_name(&self) -> &str {
        self.config.served_model_name.as_deref().unwrap_or(&self.model.model_id)
    }

    /// Returns what a client needs to reach the server.
    pub(crate) fn reach(&self) -> Reach<'_> {
        let server = &self.config.server;
        let key = if std::env::var_os(KEY_VARIABLE).is_some_and(|key| !key.is_empty()) {
            Some("$TRUNKLINE_API_KEY")
        } else {
            server.api_keys.as_ref().map(|_| "YOUR_KEY")
        };
        Reach { listener: &self.base.listener, tls_cert: server.tls_cert.as_deref(), key }
    }

    /// Returns the path of a shard's socket.
    pub fn socket(&self, shard: ShardId) -> PathBuf {
        self.base.runtime_dir.socket(shard, self.generation)
    }

    /// Returns the sockets of all lanes' shards, in order.
    fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        let own_shards = self.config.shards().into_iter().map(|shard| self.socket(shard));
        self.config.foreign_shards.iter().cloned().chain(own_shards)
    }

    pub(crate) fn num_lanes(&self) -> usize {
        self.sockets().count()
    }

    /// Returns the socket of the shard of a lane, or an empty path if there is no such lane.
    pub(crate) fn lane_socket(&self, lane: u32) -> PathBuf {
        self.sockets().nth(lane as usize).unwrap_or_default()
    }

    /// Returns the lane whose shard has this socket.
    pub(crate) fn lane_at(&self, socket: &Path) -> Option<u32> {
        (0..).zip(self.sockets()).find(|(_, own)| own == socket).map(|(lane, _)| lane)
    }

    /// Returns the settings of router and shards, with the port on which the launcher listens.
    pub fn settings(&self) -> ServeSettings {
        let mut server = self.config.server.clone();
        server.hostname.clone_from(&self.base.listener.hostname);
        server.port = self.base.listener.port;
        ServeSettings {
            shard_sockets: self.sockets().collect(),
            model_path: self.model.path.clone(),
            served_model_name: self.served_model_name().to_owned(),
            server,
            limits: self.config.limits.clone(),
            replies: self.config.replies.clone(),
            cache: self.config.router_cache.clone(),
            compute: self.config.compute.clone(),
            step_limits: self.config.step_limits.clone(),
            shard_cache: self.config.shard_cache.clone(),
            adapters: self.config.adapters.clone(),
            adapter_slots: self.config.adapter_slots.clone(),
            logging: self.config.logging.clone(),
        }
    }

    /// Returns the children to keep running, in the order in which they are started.
    fn children(&self) -> impl Iterator<Item = ChildId> {
        self.config.shards().into_iter().map(ChildId::Shard).chain([ChildId::Router])
    }

    /// Returns the command that starts a child beside those of `other`, if another pair serves until this one can.
    pub fn command(&self, child: ChildId, other: Other) -> Command {
        let settings = self.base.runtime_dir.settings(self.generation);
        match child {
            ChildId::Resolver => programs::resolver_command(&self.python, &self.config.model),
            ChildId::Shard(shard) => {
                let mut command =
                    programs::shard_command(&self.python, &settings, &self.socket(shard), shard.lane);
                if self.config.compute.backend == Backend::Cuda && self.config.compute.replicas > 1 {
                    command.envs(devices::variable(shard.lane));
                }
                if other == Other::Serves && self.config.shard_cache.kv_disk_path.is_some() {
                    command.arg("--await-store");
                }
                command
            }
            ChildId::Router => {
                let mut command = programs::router_command(&self.router, &settings);
                self.base.listener.pass_to(&mut command);
                if let Some(metrics) = &self.base.metrics_listener {
                    metrics.pass_to(&mut command);
                }
                if other == Other::Serves {
                    command.arg("--accept-when-ready");
                }
                command
            }
        }
    }
}

/// Reads the command line, the variables and the configuration file again.
pub type Reread = Box<dyn Fn() -> Result<Box<ServeConfig>, LauncherError>>;

/// The state of the other pair while a child starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Other {
    None,
    Serves,
}

/// A pair that should be running.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) plan: Plan,
    pub(crate) children: Vec<Supervised>,
    pub(crate) drains: Drains,
    /// True if the router has reported that a shard computes.
    has_ready_shard: bool,
}

/// A child that should be running, and its current state.
#[derive(Debug)]
pub(crate) struct Supervised {
    pub(crate) id: ChildId,
    pub(crate) state: State,
    pub(crate) restarts: RestartPolicy,
    /// True if the router has reported that this shard computes since it was started.
    is_ready: bool,
    /// Set when the running process is killed because it has hung for this long.
    pub(crate) hung: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum State {
    Running(Process),
    /// The child is started again at this time.
    Crashed {
        restart_at: Instant,
    },
    /// The shard is started once no shard of another pair has its lane's place.
    Waiting,
    /// The child has ended, or is somebody else's to stop, and is not started again.
    Gone,
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
                ("model", &plan.model.path.display()),
                ("revision", &plan.model.revision.as_deref().unwrap_or("none")),
                ("port", &plan.base.listener.port),
            ],
        );
        let mut pair = Self { plan, children: Vec::new(), drains: Drains::default(), has_ready_shard: false };
        let ids: Vec<ChildId> = pair.plan.children().collect();
        for id in ids {
            let state = match other {
                Other::Serves if id.is_shard() => State::Waiting,
                _ => State::Running(pair.spawn(id, other, log, events)?),
            };
            let restarts = RestartPolicy::new(pair.plan.base.pace.base_pause);
            pair.children.push(Supervised { id, state, restarts, is_ready: false, hung: None });
        }
        Ok(pair)
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

    fn spawn(
        &self,
        id: ChildId,
        other: Other,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<Process, LauncherError> {
        // Written at each start: something that cleans temporary folders may have removed it.
        let folder = &self.plan.base.runtime_dir;
        folder
            .write_settings(self.plan.generation, &self.plan.settings())
            .map_err(|source| LauncherError::System { what: "write the settings", source })?;
        if let ChildId::Shard(shard) = id {
            remove_stale(&self.plan.socket(shard))?;
        }
        let process = Process::spawn(id, self.plan.command(id, other), events)?;
        log.debug("started", &[("process", &id), ("pid", &process.pid())]);
        Ok(process)
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

    fn shard_mut(&mut self, lane: u32) -> Option<&mut Supervised> {
        self.children.iter_mut().find(|child| child.lane() == Some(lane))
    }

    /// Notes that the shard at this socket computes.
    pub(crate) fn shard_is_ready(&mut self, socket: &Path) {
        self.has_ready_shard = true;
        if let Some(child) = self.shard_at(socket) {
            child.is_ready = true;
        }
    }

    /// Returns true if a shard computes, and all do that this launcher has started.
    pub(crate) fn is_ready(&self) -> bool {
        self.has_ready_shard && self.shards().all(|child| child.is_ready || !child.is_expected())
    }

    /// Begins to empty a lane, whose shard then stops and is not started again.
    pub(crate) fn drain(&mut self, lane: u32, log: &Log) {
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
    pub(crate) fn add(&mut self, lane: u32, log: &Log) {
        let router = router(&self.children);
        let may_start = self.drains.end(lane, router, log);
        let base_pause = self.plan.base.pace.base_pause;
        if let Some(child) = self.shard_mut(lane)
            && may_start
            && let State::Gone = child.state
        {
            (child.state, child.restarts) = (State::Waiting, RestartPolicy::new(base_pause));
        }
    }

    /// Handles the end of the shard of a lane that drains.
    pub(crate) fn stopped(&mut self, lane: u32, log: &Log) {
        if self.drains.ended(lane) {
            self.add(lane, log);
        }
    }

    /// Returns the state of each lane.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        let lane = |number| {
            let shard = self.shards().find(|child| child.lane() == Some(number));
            let process = shard.and_then(Supervised::process);
            let state = match (shard, self.drains.has(number)) {
                (_, true) if process.is_none() && self.drains.is_empty(number) => LaneState::Drained,
                (_, true) => LaneState::Drains,
                (None, false) => LaneState::Elsewhere,
                (Some(child), false) => child.lane_state(),
            };
            Lane { state, pid: process.map(Process::pid) }
        };
        (0..).take(self.plan.num_lanes()).map(lane).collect()
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
            State::Running(_) | State::Waiting | State::Gone => None,
        });
        times.min()
    }

    /// Starts the children whose time has come: those that crashed, and the shards that wait and whose lanes
    /// `may_start` selects. A start that fails is a crash: memory, processes or room for the settings may be short for
    /// a moment.
    pub(crate) fn start_due(
        &mut self,
        may_start: impl Fn(u32) -> bool,
        log: &Log,
        events: &SyncSender<Event>,
    ) -> Result<(), LauncherError> {
        let now = Instant::now();
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
            self.plan.config.shard_cache.kv_disk_optional = true;
            let started = self.spawn(id, Other::None, log, events);
            let child = &mut self.children[index];
            match started {
                Ok(process) => {
                    log.info(done, &[("process", &id), ("pid", &process.pid())]);
                    if !id.is_shard() {
                        self.drains.repeat(&process, log);
                    }
                    child.state = State::Running(process);
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
        Ok(())
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

impl Supervised {
    /// Returns the lane of a shard.
    pub(crate) fn lane(&self) -> Option<u32> {
        match self.id {
            ChildId::Shard(shard) => Some(shard.lane),
            ChildId::Resolver | ChildId::Router => None,
        }
    }

    pub(crate) fn process(&self) -> Option<&Process> {
        if let State::Running(process) = &self.state { Some(process) } else { None }
    }

    /// Returns the lane of a shard that waits.
    pub(crate) fn waits(&self) -> Option<u32> {
        self.lane().filter(|_| matches!(self.state, State::Waiting))
    }

    /// Returns true if the child was started and is not given up.
    pub(crate) fn is_expected(&self) -> bool {
        !matches!(self.state, State::Waiting | State::Gone)
    }

    /// Returns the state of the lane of a shard, which does not drain.
    fn lane_state(&self) -> LaneState {
        match self.state {
            State::Running(_) if self.is_ready => LaneState::Serves,
            State::Running(_) => LaneState::Starts,
            State::Crashed { .. } => LaneState::Restarts,
            State::Waiting => LaneState::Waits,
            State::Gone => LaneState::GivenUp,
        }
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
