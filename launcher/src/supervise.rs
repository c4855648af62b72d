//! Supervises the pair of router and shards that serves, restarts its children after a crash, replaces it by another
//! pair at a reload, and stops everything.

mod catalog;
mod lanes;
mod models;
mod reload;
mod reload_models;
mod spare;

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use trunkline_settings::{Answers, Order, Report};

use crate::caller::{Caller, Status};
use crate::child::ChildId;
use crate::control;
use crate::drain;
use crate::error::{EXIT_USER_MISTAKE, LauncherError};
use crate::exit::Exit;
use crate::lanes::Goal;
use crate::log::{Field, Log};
use crate::output::Tail;
use crate::pair::{Pair, Reread};
use crate::plan::{Other, Plan};
use crate::process::{Event, Process};
use crate::ready;
use crate::reload::{Reload, ReloadError, Stage, reason};
use crate::restart::{RestartPolicy, Verdict};
use crate::retired::Retired;
use crate::supervised::State;
use catalog::Catalog;
use reload_models::ModelsReload;

/// Owns the children. Dropping it kills them.
pub struct Supervisor<'a> {
    log: Log,
    events: &'a Receiver<Event>,
    sender: SyncSender<Event>,
    reread: Reread,
    /// The pair that gets new connections.
    serving: Pair,
    /// True once the user has been told that the server is ready.
    was_ready: bool,
    started: Instant,
    reload: Option<Reload>,
    /// Number of reloads that were begun.
    generation: u32,
    retired: Vec<Retired>,
    /// The callers that wait until a lane is drained or serves.
    callers: Vec<(Goal, Caller)>,
    /// The time at which a spare process is started for the next shard.
    spare_at: Option<Instant>,
    catalog: Catalog,
    models_reload: Option<ModelsReload>,
}

impl<'a> Supervisor<'a> {
    /// Starts all children; the router itself waits for the shards' sockets.
    ///
    /// `sender` feeds `events`, which only the supervisor reads from now on.
    pub fn start(
        plan: Plan,
        reread: Reread,
        events: &'a Receiver<Event>,
        sender: SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        let log = plan.config().log();
        control::listen(&plan.base.runtime_dir, sender.clone())?;
        let serving = Pair::start(plan, Other::None, &log, &sender)?;
        let own = Self {
            log,
            events,
            sender,
            reread,
            serving,
            was_ready: false,
            started: Instant::now(),
            reload: None,
            generation: 0,
            retired: Vec::new(),
            callers: Vec::new(),
            spare_at: None,
            catalog: Catalog::default(),
            models_reload: None,
        };
        own.watch_folder();
        Ok(own)
    }

    /// Supervises until a signal requests a stop or a child cannot be kept running. No child is left afterwards.
    ///
    /// `announce` is called once, with the two lines that tell the user that the server is ready. Returns the exit code
    /// of the drain.
    pub fn run(mut self, mut announce: impl FnMut(&str) -> io::Result<()>) -> Result<i32, LauncherError> {
        loop {
            let handled = match self.next_event() {
                Some(Event::Signal(signal)) => return self.drain(signal),
                Some(Event::Ended { child, pid }) => self.ended(child, pid),
                Some(Event::Report { pid, report }) => {
                    self.reported(pid, &report, &mut announce);
                    Ok(())
                }
                Some(Event::Reload(caller)) => {
                    self.begin_reload(caller);
                    Ok(())
                }
                Some(Event::Status(caller)) => {
                    caller.send(&self.status().line());
                    Ok(())
                }
                Some(Event::Lane { word, lane, model, caller }) => {
                    self.ask_lane(word, lane, model.as_deref(), caller);
                    Ok(())
                }
                Some(Event::Resolved { generation, prepared }) => {
                    self.resolved(generation, prepared);
                    Ok(())
                }
                Some(Event::Downloading(progress)) => {
                    self.downloading(progress);
                    Ok(())
                }
                Some(Event::Found { generation, found }) => {
                    if generation == self.serving.plan.generation {
                        self.found(found);
                    }
                    Ok(())
                }
                Some(Event::Deleted { model, outcome }) => {
                    self.deleted(model, outcome);
                    Ok(())
                }
                Some(Event::Folder(folder, models)) => {
                    self.folder_changed(&folder, models);
                    Ok(())
                }
                None => Ok(()),
            };
            if let Err(error) = handled.and_then(|()| self.go_on()) {
                let rest = self.take_all();
                drain::abandon(rest, &self.serving.plan.base.pace, self.events);
                return Err(error);
            }
        }
    }

    /// Does what its time has come for, and what the last event has made possible.
    fn go_on(&mut self) -> Result<(), LauncherError> {
        let now = Instant::now();
        if let Some(reload) = self.reload.as_ref().filter(|reload| reload.deadline <= now) {
            self.fail_reload(&reload.late());
        }
        for retired in &mut self.retired {
            retired.kill_late(now, &self.serving.plan.base.pace, &self.log);
            retired.stop_drained(&self.log);
        }
        self.stop_drained();
        self.serving.kill_late_shards(&self.log);
        self.start_spare();
        self.go_on_with_search();
        self.go_on_with_reload();
        let in_use = self.lanes_in_use();
        // Models that are loaded when they are asked for wait for no shards of pairs that were replaced.
        let is_on_demand = self.serving.plan.is_on_demand;
        let may_start = |lane: u32| is_on_demand || !in_use.contains(&lane);
        let other = if is_on_demand && !in_use.is_empty() { Other::Serves } else { Other::None };
        for (id, why) in self.serving.start_due(may_start, other, &self.log, &self.sender)? {
            self.give_up_model(id, &why);
        }
        self.answer_callers();
        Ok(())
    }

    /// Waits for the next event; returns `None` when it is time to restart or to kill a child.
    fn next_event(&self) -> Option<Event> {
        let times = self.retired.iter().map(Retired::deadline).chain(self.serving.next_restart());
        let times = times.chain(self.reload.as_ref().map(|reload| reload.deadline));
        let times = times.chain(self.serving.drains.deadline());
        let times = times.chain(self.serving.children.iter().filter_map(|child| child.kill_at));
        let times = times.chain(self.spare_at);
        let event = match times.min() {
            None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self.events.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        // The channel cannot be disconnected, since this supervisor holds a sender.
        event.ok()
    }

    /// Handles the end of a child. Returns an error if the server cannot go on without it.
    fn ended(&mut self, id: ChildId, pid: u32) -> Result<(), LauncherError> {
        // A spare process may have become a shard since it was started.
        if let Some(id) = self.serving.id_of(pid) {
            return self.serving_ended(id, pid);
        }
        if let Some(spare) = self.serving.spare.take_if(|spare| spare.pid() == pid) {
            let (exit, mut tail) = spare.reap();
            tail.release();
            self.log.warn("a spare process ended", &[("pid", &pid), ("exit", &exit)]);
            return Ok(());
        }
        if let Some(pair) = self.starting()
            && let Some(process) = pair.take_running(|process| process.pid() == pid).pop()
        {
            let (exit, tail) = process.reap();
            self.fail_reload(&ReloadError::Failed(ended_before_ready(id, exit, tail)));
        } else if let Some(at) = self.retired.iter().position(|retired| retired.has(pid)) {
            self.retired[at].ended(pid, &self.log);
            self.forget_ended();
        }
        Ok(())
    }

    /// Forgets the pairs that have ended. Shards that gave their store up for one of them take it back, unless the next
    /// pair has asked for it already.
    fn forget_ended(&mut self) {
        let asked: &[u32] = self.reload.as_ref().map_or(&[], |reload| &reload.gave_store);
        for retired in self.retired.extract_if(.., |retired| retired.has_ended()) {
            for pid in retired.gave_store().iter().filter(|pid| !asked.contains(pid)) {
                // A shard that was restarted meanwhile has another process id.
                if let Some(shard) = self.serving.running().find(|process| process.pid() == *pid) {
                    self.log.info("takes its store on disk back", &[("process", &shard.id()), ("pid", &pid)]);
                    shard.signal(Signal::USR1);
                }
            }
        }
    }

    fn serving_ended(&mut self, id: ChildId, pid: u32) -> Result<(), LauncherError> {
        let Some(process) = self.serving.take_running(|process| process.pid() == pid).pop() else {
            return Ok(());
        };
        let (exit, mut tail) = process.reap();
        if self.serving.has_unloaded(id, &self.log) {
            tail.release();
            self.plan_spare();
            return Ok(());
        }
        if let ChildId::Shard(shard) = id
            && self.serving.drains.has(shard)
        {
            if !exit.is_success() {
                tail.release();
            }
            self.log.info("stopped", &[("process", &id), ("pid", &pid), ("exit", &exit)]);
            self.serving.stopped(shard, &self.log);
            return Ok(());
        }
        let Some(child) = self.serving.children.iter_mut().find(|child| child.id == id) else {
            return Ok(());
        };
        let now = Instant::now();
        let exit = match child.hung.take() {
            Some(time) => {
                child.restarts.hung(time, now);
                Exit::Hung(time)
            }
            None => exit,
        };
        let is_on_demand = self.serving.plan.is_on_demand && id.is_shard();
        if is_on_demand && !child.has_served {
            child.state = State::Unloaded;
            let error = ended_before_ready(id, exit, tail);
            return if self.give_up_model(id, &reason(&error)) { Ok(()) } else { Err(error) };
        }
        if !self.was_ready {
            return Err(match exit {
                Exit::Code(EXIT_USER_MISTAKE) => self.refused(id, tail),
                _ => ended_before_ready(id, exit, tail),
            });
        }
        match child.restarts.crashed(now) {
            Verdict::RestartAfter(pause) => {
                tail.release();
                child.state = State::Crashed { restart_at: now + pause };
                if id == ChildId::Router {
                    self.router_crashed();
                }
                self.log.warn(
                    "exited unexpectedly; restarting",
                    &[("process", &id), ("pid", &pid), ("exit", &exit), ("after_ms", &pause.as_millis())],
                );
                Ok(())
            }
            Verdict::GiveUp { ends } => {
                let window_s = RestartPolicy::window_s();
                let fields: &[Field<'_>] = &[("crashes", &ends), ("within_s", &window_s), ("exit", &exit)];
                if is_on_demand {
                    tail.release();
                    child.state = State::Unloaded;
                    self.give_up_model(id, &format!("its shard crashed {ends} times within {window_s} s"));
                    return Ok(());
                }
                if self.serving.goes_on_without(id, &self.log, fields) {
                    tail.release();
                    return Ok(());
                }
                let last_line = tail.last_line;
                Err(LauncherError::CrashLoop { child: id, ends, window_s, exit, last_line })
            }
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
            let pace = self.serving.plan.base.pace;
            let deadline = Instant::now() + pace.second_verdict_timeout;
            for shard in self.serving.take_running(|process| process.id().is_shard()) {
                let child = shard.id();
                if !drain::ends_before(deadline, &shard, self.events) {
                    drain::abandon(vec![shard], &pace, self.events);
                } else if let (Exit::Code(EXIT_USER_MISTAKE), tail) = shard.reap() {
                    return LauncherError::ChildRefused { child, verdict: tail.verdict.or(verdict) };
                }
            }
        }
        LauncherError::ChildRefused { child: id, verdict }
    }

    /// Handles what the child with this process id reports.
    fn reported(&mut self, pid: u32, report: &Report, announce: &mut impl FnMut(&str) -> io::Result<()>) {
        let serving = self.serving.id_of(pid);
        let starting = self.starting().and_then(|pair| pair.id_of(pid));
        match (report, serving, starting) {
            (Report::Ready { socket, answers }, Some(_), _) => self.ready(socket, *answers, announce),
            (Report::Ready { socket, .. }, _, Some(ChildId::Router)) => self.new_shard_is_ready(socket),
            (Report::Drained { socket }, ..) => self.lane_is_empty(pid, socket),
            (Report::Load { model }, ..) => self.load(pid, *model),
            (Report::Unload { model }, ..) => self.unload(pid, *model),
            (Report::Find { model, downloads }, Some(_), _) => self.find(model.clone(), *downloads),
            (Report::Delete { model }, Some(_), _) => self.delete(*model),
            (Report::Find { .. } | Report::Delete { .. }, None, None) => self.refuse_replaced(pid, report),
            (Report::Replaced { model, problem }, Some(_), _) => self.replaced(*model, problem.clone()),
            (Report::Left, _, _) => {
                if let Some(retired) = self.retired.iter_mut().find(|retired| retired.has(pid)) {
                    retired.left();
                }
            }
            (Report::Loading { percent }, Some(ChildId::Shard(shard)), _)
                if self.serving.plan.is_on_demand =>
            {
                let order = Order::Loading { model: shard.model, lane: shard.lane, percent: *percent };
                self.serving.order(&order, &self.log);
            }
            (Report::AwaitsStore, _, Some(ChildId::Shard(shard))) => self.hand_over_store(shard),
            (Report::AwaitsStore, Some(ChildId::Shard(shard)), _) => self.ask_replaced_for_store(shard),
            (Report::Excused { socket, num_losses }, Some(_), _) => self.excuse(socket, *num_losses),
            (Report::HungShard { socket, seconds }, Some(_), _) => self.kill_hung(socket, *seconds),
            (Report::HungShard { socket, seconds }, _, Some(_)) => self.fail_hung(socket, *seconds),
            (Report::HungShard { socket, seconds }, None, None) => {
                if let Some(retired) = self.retired.iter().find(|retired| retired.has(pid)) {
                    retired.kill_shard(socket, *seconds, &self.log);
                }
            }
            _ => {}
        }
    }

    /// Returns the pair that a reload has started.
    fn starting(&mut self) -> Option<&mut Pair> {
        match &mut self.reload {
            Some(Reload { stage: Stage::Starting(pair), .. }) => Some(pair),
            _ => None,
        }
    }

    /// Holds the last crashes of a shard against it no more, because requests are to blame for them.
    fn excuse(&mut self, socket: &Path, num_losses: u64) {
        if let Some(child) = self.serving.shard_at(socket) {
            child.restarts.excuse(num_losses, Instant::now());
            let fields: &[Field<'_>] = &[("process", &child.id), ("crashes", &num_losses)];
            self.log.info("requests are to blame for crashes, which do not count", fields);
        }
    }

    /// Kills a shard that hangs. Its end is then handled like that of one that crashed.
    fn kill_hung(&mut self, socket: &Path, seconds: u64) {
        if let Some(child) = self.serving.shard_at(socket)
            && let State::Running(process) = &child.state
        {
            let fields: &[Field<'_>] =
                &[("process", &child.id), ("pid", &process.pid()), ("hung_s", &seconds)];
            self.log.warn("hangs; killing it", fields);
            process.signal(Signal::KILL);
            child.hung = Some(Duration::from_secs(seconds));
        }
    }

    /// Ends a reload whose new shard hangs.
    fn fail_hung(&mut self, socket: &Path, seconds: u64) {
        if let Some(child) = self.starting().and_then(|pair| pair.shard_at(socket)) {
            let exit = Exit::Hung(Duration::from_secs(seconds));
            let hung = LauncherError::EndedBeforeReady { child: child.id, exit, last_line: None };
            self.fail_reload(&ReloadError::Failed(hung));
        }
    }

    /// Notes that the shard at this socket is ready, and announces once that the server is.
    fn ready(&mut self, socket: &Path, answers: Answers, announce: &mut impl FnMut(&str) -> io::Result<()>) {
        self.serving.shard_is_ready(socket);
        if self.serving.plan.is_on_demand
            && let Some(shard) = self.serving.shard_at(socket)
        {
            self.log.info("is ready", &[("process", &shard.id)]);
        }
        self.plan_spare();
        if self.was_ready || !self.serving.is_ready() {
            return;
        }
        self.was_ready = true;
        let plan = &self.serving.plan;
        let banner =
            ready::banner(plan.reach(), plan.served_model_name(), answers, plan.served().count() - 1);
        if let Err(error) = announce(&banner) {
            self.log.warn("cannot write to stdout", &[("error", &error)]);
        }
    }

    fn status(&self) -> Status {
        let (plan, base) = (&self.serving.plan, &self.serving.plan.base);
        let metrics = base.metrics_listener.as_ref();
        let num_shards =
            self.serving.shards().filter(|shard| !matches!(shard.state, State::Unloaded)).count();
        let num_running = self.serving.running().filter(|process| process.id().is_shard()).count();
        Status {
            url: plan.reach().url(),
            metrics_url: metrics.map(|listener| format!("http://{}", listener.local())),
            shards: (num_shards > 0).then_some((num_running, num_shards)),
            uptime_s: self.started.elapsed().as_secs(),
            models: plan
                .served()
                .map(|(number, planned)| planned.served(self.serving.lanes(number)))
                .collect(),
        }
    }

    fn drain(mut self, signal: i32) -> Result<i32, LauncherError> {
        let timeout: Duration = self.serving.plan.config().server.graceful_termination_timeout;
        let children = self.take_all();
        drain::drain(children, timeout, &self.serving.plan.base.pace, signal, self.events, &self.log)
    }

    /// Takes all processes of all pairs, and stops a resolver.
    fn take_all(&mut self) -> Vec<Process> {
        // They have nothing to finish.
        (self.serving.spare, self.catalog) = (None, Catalog::default());
        let mut processes = self.serving.take_running(|_| true);
        if let Some(Reload { stage: Stage::Starting(mut pair), .. }) = self.reload.take() {
            processes.extend(pair.take_running(|_| true));
        }
        processes.extend(self.retired.drain(..).flat_map(Retired::into_processes));
        processes
    }
}

fn ended_before_ready(child: ChildId, exit: Exit, tail: Tail) -> LauncherError {
    match exit {
        Exit::Code(EXIT_USER_MISTAKE) => LauncherError::ChildRefused { child, verdict: tail.verdict },
        _ => LauncherError::EndedBeforeReady { child, exit, last_line: tail.last_line },
    }
}
