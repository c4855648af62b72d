//! Starts the shards and the router, supervises them, restarts them after a crash, and stops them.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use trunkline_settings::RouterSettings;

use crate::args::resolved::ServeConfig;
use crate::child::{ChildId, ShardId};
use crate::drain;
use crate::error::{EXIT_USER_MISTAKE, LauncherError};
use crate::exit::Exit;
use crate::listen::Address;
use crate::log::Log;
use crate::output::Tail;
use crate::pace::Pace;
use crate::process::{Event, Process};
use crate::programs;
use crate::ready::{self, Scheme};
use crate::resolve::ResolvedModel;
use crate::restart::{RestartPolicy, Verdict};
use crate::runtime_dir::RuntimeDir;

/// Everything needed to start the children.
#[derive(Debug)]
pub struct Plan<'a> {
    pub config: &'a ServeConfig,
    /// The interpreter with the server package.
    pub python: PathBuf,
    /// Path of the router binary.
    pub router: PathBuf,
    pub model: ResolvedModel,
    pub shards: Vec<ShardId>,
    pub address: Address,
    /// It outlives every child.
    pub runtime_dir: RuntimeDir,
    pub pace: Pace,
}

impl Plan<'_> {
    fn served_model_name(&self) -> &str {
        self.config.served_model_name.as_deref().unwrap_or(&self.model.model_id)
    }

    fn scheme(&self) -> Scheme {
        if self.config.server.tls_cert.is_some() { Scheme::Https } else { Scheme::Http }
    }

    /// Returns the router's settings, with the port that was found free.
    pub fn router_settings(&self) -> RouterSettings {
        let mut server = self.config.server.clone();
        server.hostname.clone_from(&self.address.hostname);
        server.port = self.address.port;
        RouterSettings {
            shard_socket: self.runtime_dir.socket(ShardId::default()),
            model_path: self.model.path.clone(),
            served_model_name: self.served_model_name().to_owned(),
            server,
            limits: self.config.limits.clone(),
            replies: self.config.replies.clone(),
            cache: self.config.router_cache.clone(),
            logging: self.config.logging.clone(),
        }
    }

    /// Returns the children to keep running, in the order in which they are started.
    fn children(&self) -> impl Iterator<Item = ChildId> {
        self.shards.iter().copied().map(ChildId::Shard).chain([ChildId::Router])
    }

    /// Returns the command that starts a child.
    pub fn command(&self, child: ChildId) -> Command {
        match child {
            ChildId::Resolver => programs::resolver_command(&self.python, &self.config.model),
            ChildId::Shard(shard) => {
                let socket = self.runtime_dir.socket(shard);
                programs::shard_command(&self.python, self.config, &self.model.path, &socket)
            }
            ChildId::Router => programs::router_command(&self.router, &self.runtime_dir.router_settings()),
        }
    }
}

/// A child that should be running, and its current state.
#[derive(Debug)]
struct Supervised {
    id: ChildId,
    state: State,
    restarts: RestartPolicy,
}

#[derive(Debug)]
enum State {
    Running(Process),
    /// The child is started again at this time.
    Crashed {
        restart_at: Instant,
    },
}

/// Owns the children. Dropping it kills them.
#[derive(Debug)]
pub struct Supervisor<'a> {
    plan: &'a Plan<'a>,
    log: Log,
    events: &'a Receiver<Event>,
    sender: SyncSender<Event>,
    children: Vec<Supervised>,
    /// Set once the router has answered 200 and the user has been told.
    was_ready: bool,
}

impl<'a> Supervisor<'a> {
    /// Starts all children; the router itself waits for the shard's socket.
    ///
    /// `sender` feeds `events`, which only the supervisor reads from now on.
    pub fn start(
        plan: &'a Plan<'a>,
        events: &'a Receiver<Event>,
        sender: SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        let mut supervisor =
            Self { plan, log: plan.config.log(), events, sender, children: Vec::new(), was_ready: false };
        supervisor.log.info(
            "starting",
            &[
                ("version", &env!("CARGO_PKG_VERSION")),
                ("model", &plan.model.path.display()),
                ("revision", &plan.model.revision.as_deref().unwrap_or("none")),
                ("port", &plan.address.port),
            ],
        );
        for id in plan.children() {
            let state = State::Running(supervisor.spawn(id)?);
            let restarts = RestartPolicy::new(plan.pace.base_pause);
            supervisor.children.push(Supervised { id, state, restarts });
        }
        ready::watch(plan.address.local(), plan.scheme(), supervisor.sender.clone());
        Ok(supervisor)
    }

    /// Supervises until a signal requests a stop or a child cannot be kept running. No child is left afterwards.
    ///
    /// `announce` is called once, with the two lines that tell the user that the server is ready. Returns the exit code
    /// of the drain.
    pub fn run(mut self, mut announce: impl FnMut(&str) -> io::Result<()>) -> Result<i32, LauncherError> {
        loop {
            match self.next_event() {
                Some(Event::Signal(signal)) => return self.drain(signal),
                Some(Event::Ended { child, pid }) => {
                    if let Err(error) = self.ended(child, pid) {
                        drain::abandon(self.take_running(|_| true), &self.plan.pace, self.events);
                        return Err(error);
                    }
                }
                Some(Event::Ready) => self.ready(&mut announce),
                None => self.restart_due()?,
            }
        }
    }

    /// Waits for the next event; returns `None` when it is time to restart a child.
    fn next_event(&self) -> Option<Event> {
        let restart_at = self.children.iter().filter_map(|child| match child.state {
            State::Crashed { restart_at } => Some(restart_at),
            State::Running(_) => None,
        });
        let event = match restart_at.min() {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self.events.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        // The channel cannot be disconnected, since this supervisor holds a sender.
        event.ok()
    }

    fn spawn(&self, id: ChildId) -> Result<Process, LauncherError> {
        let folder = &self.plan.runtime_dir;
        match id {
            ChildId::Shard(shard) => remove_stale(&folder.socket(shard))?,
            // Written at each start: something that cleans temporary folders may have removed it.
            ChildId::Router => folder
                .write_router_settings(&self.plan.router_settings())
                .map_err(|source| LauncherError::System { what: "write the router's settings", source })?,
            ChildId::Resolver => {}
        }
        let process = Process::spawn(id, self.plan.command(id), &self.sender)?;
        self.log.debug("started", &[("process", &id), ("pid", &process.pid())]);
        Ok(process)
    }

    /// Handles the end of a child. Returns an error if the child must not be restarted.
    fn ended(&mut self, id: ChildId, pid: u32) -> Result<(), LauncherError> {
        let is_it = |process: &Process| process.id() == id && process.pid() == pid;
        let Some(process) = self.take_running(is_it).pop() else { return Ok(()) };
        let (exit, mut tail) = process.reap();
        if !self.was_ready {
            return Err(match exit {
                Exit::Code(EXIT_USER_MISTAKE) => self.refused(id, tail),
                _ => LauncherError::EndedBeforeReady { child: id, exit, last_line: tail.last_line },
            });
        }
        let Some(child) = self.children.iter_mut().find(|child| child.id == id) else { return Ok(()) };
        let now = Instant::now();
        match child.restarts.crashed(now) {
            Verdict::RestartAfter(pause) => {
                tail.release();
                child.state = State::Crashed { restart_at: now + pause };
                self.log.warn(
                    "exited unexpectedly; restarting",
                    &[("process", &id), ("pid", &pid), ("exit", &exit), ("after_ms", &pause.as_millis())],
                );
                Ok(())
            }
            Verdict::GiveUp { ends } => Err(LauncherError::CrashLoop {
                child: id,
                ends,
                window_s: RestartPolicy::window_s(),
                exit,
                last_line: tail.last_line,
            }),
        }
    }

    /// Handles a child that ended because of a user's mistake before the server was ready. Later it is a crash like any
    /// other, because a certificate that has expired or memory that others took may be there again soon.
    ///
    /// A shard checks the model more closely than the router does. If the router refuses the model, the shards get some
    /// time to refuse it too, and the first one's error line is shown instead.
    fn refused(&mut self, id: ChildId, tail: Tail) -> LauncherError {
        let verdict = tail.verdict;
        if id == ChildId::Router {
            let deadline = Instant::now() + self.plan.pace.second_verdict_timeout;
            for shard in self.take_running(|process| process.id().is_shard()) {
                let child = shard.id();
                if !drain::ends_before(deadline, &shard, self.events) {
                    drain::abandon(vec![shard], &self.plan.pace, self.events);
                } else if let (Exit::Code(EXIT_USER_MISTAKE), tail) = shard.reap() {
                    return LauncherError::ChildRefused { child, verdict: tail.verdict.or(verdict) };
                }
            }
        }
        LauncherError::ChildRefused { child: id, verdict }
    }

    fn restart_due(&mut self) -> Result<(), LauncherError> {
        let now = Instant::now();
        for index in 0..self.children.len() {
            let due =
                matches!(self.children[index].state, State::Crashed { restart_at } if restart_at <= now);
            if due {
                let process = self.spawn(self.children[index].id)?;
                self.log.info("restarted", &[("process", &process.id()), ("pid", &process.pid())]);
                self.children[index].state = State::Running(process);
            }
        }
        Ok(())
    }

    /// Announces that the server is ready.
    fn ready(&mut self, announce: &mut impl FnMut(&str) -> io::Result<()>) {
        self.was_ready = true;
        let banner = ready::banner(&self.plan.address, self.plan.scheme(), self.plan.served_model_name());
        if let Err(error) = announce(&banner) {
            self.log.warn("cannot write to stdout", &[("error", &error)]);
        }
    }

    fn drain(mut self, signal: i32) -> Result<i32, LauncherError> {
        let timeout: Duration = self.plan.config.server.graceful_termination_timeout;
        let children = self.take_running(|_| true);
        drain::drain(children, timeout, &self.plan.pace, signal, self.events, &self.log)
    }

    /// Removes and returns the running processes for which `wanted` is true, and marks them as crashed.
    fn take_running(&mut self, wanted: impl Fn(&Process) -> bool) -> Vec<Process> {
        let mut taken = Vec::new();
        for child in &mut self.children {
            if matches!(&child.state, State::Running(process) if wanted(process)) {
                let gone = State::Crashed { restart_at: Instant::now() };
                if let State::Running(process) = std::mem::replace(&mut child.state, gone) {
                    taken.push(process);
                }
            }
        }
        taken
    }
}

/// Removes the socket that a killed shard left behind, so that the router does not try to connect to it.
fn remove_stale(socket: &std::path::Path) -> Result<(), LauncherError> {
    match fs::remove_file(socket) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(LauncherError::System { what: "remove the ended shard's socket", source }),
    }
}
