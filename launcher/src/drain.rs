//! Stops the children: first the router, so that its streams can finish while the shards run, then the shards.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::child::ChildId;
use crate::error::{EXIT_FAILURE, EXIT_USER_MISTAKE, LauncherError};
use crate::exit::{EXIT_CUT, Exit};
use crate::log::Log;
use crate::pace::Pace;
use crate::process::{Event, Process};

/// A repetition of the same signal within this time counts as the same request: `timeout(1)` and some supervisors
/// signal both the process and its group.
pub const SAME_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// The outcome of stopping a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The process exited by itself.
    Ended(Exit),
    /// The process was killed after its time limit.
    Killed,
    /// The process was killed because this second signal told the launcher to stop at once.
    Interrupted(i32),
}

/// The signal that requested a stop, and when it arrived.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    signal: i32,
    at: Instant,
}

impl Request {
    /// Creates a request by `signal`, which arrived just now.
    pub fn now(signal: i32) -> Self {
        Self::at(signal, Instant::now())
    }

    pub fn at(signal: i32, at: Instant) -> Self {
        Self { signal, at }
    }

    /// Returns true if `signal`, which arrived just now, is a second request rather than a repetition of this one.
    pub fn is_repeated_by(self, signal: i32) -> bool {
        signal != self.signal || self.at.elapsed() >= SAME_SIGNAL_WINDOW
    }
}

/// The treatment of the final `error:` line of a child that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClosingLine {
    /// Pass it through, unless the child ended because of a user's mistake.
    Print,
    /// Drop it: another error is about to be printed, probably about the same mistake.
    Drop,
}

/// Stops a process and its group: SIGTERM, then SIGKILL after `patience` or at a second signal.
pub(crate) fn stop(
    process: Process,
    patience: Duration,
    request: Request,
    closing_line: ClosingLine,
    events: &Receiver<Event>,
) -> Stopped {
    process.signal(Signal::TERM);
    await_end(process, Instant::now() + patience, request, closing_line, events)
}

/// Waits for the end of a process that got SIGTERM; kills it after `deadline` or at a second signal.
fn await_end(
    process: Process,
    deadline: Instant,
    request: Request,
    closing_line: ClosingLine,
    events: &Receiver<Event>,
) -> Stopped {
    while !process.has_ended() {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Signal(signal)) if request.is_repeated_by(signal) => {
                kill(process, closing_line);
                return Stopped::Interrupted(signal);
            }
            // A repetition of the first signal, or the end of a process, which the loop's condition checks.
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if !process.has_ended() {
                    kill(process, closing_line);
                    return Stopped::Killed;
                }
            }
        }
    }
    Stopped::Ended(reap(process, closing_line))
}

fn kill(process: Process, closing_line: ClosingLine) {
    process.signal(Signal::KILL);
    reap(process, closing_line);
}

fn reap(process: Process, closing_line: ClosingLine) -> Exit {
    let (exit, mut tail) = process.reap();
    if closing_line == ClosingLine::Print && exit != Exit::Code(EXIT_USER_MISTAKE) {
        tail.release();
    }
    exit
}

/// Waits until `process` has ended. Returns false after `deadline`, or if the launcher was told to stop.
pub(crate) fn ends_before(deadline: Instant, process: &Process, events: &Receiver<Event>) -> bool {
    while !process.has_ended() {
        match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Signal(_)) | Err(_) => return process.has_ended(),
            Ok(_) => {}
        }
    }
    true
}

/// Drains and stops all children because of `signal`: routers first, then the shards, all at the same time.
///
/// Returns the exit code: 0 if all exited by themselves, 1 if one failed or had to be killed.
///
/// # Errors
///
/// Returns [`LauncherError::Interrupted`] after a second signal; no child runs then, either.
pub(crate) fn drain(
    children: Vec<Process>,
    graceful_termination_timeout: Duration,
    pace: &Pace,
    signal: i32,
    events: &Receiver<Event>,
    log: &Log,
) -> Result<i32, LauncherError> {
    log.info(
        "draining; a second signal stops immediately",
        &[("signal", &signal), ("at_most_s", &graceful_termination_timeout.as_secs())],
    );
    let request = Request::now(signal);
    let (shards, routers): (Vec<_>, Vec<_>) = children.into_iter().partition(|child| child.id().is_shard());
    let mut code = 0;
    for (stage, patience) in
        [(routers, graceful_termination_timeout + pace.router_grace), (shards, pace.shard_timeout)]
    {
        stage.iter().for_each(|process| process.signal(Signal::TERM));
        let deadline = Instant::now() + patience;
        for process in stage {
            let id = process.id();
            let stopped = await_end(process, deadline, request, ClosingLine::Print, events);
            if !stopped_well(id, stopped, patience, log)? {
                code = EXIT_FAILURE;
            } else if code == 0 && stopped == Stopped::Ended(Exit::Code(EXIT_CUT)) {
                code = EXIT_CUT;
            }
        }
    }
    log.info("stopped", &[]);
    Ok(code)
}

/// Logs how a child of a drain stopped, and returns whether it stopped as it should.
fn stopped_well(id: ChildId, stopped: Stopped, patience: Duration, log: &Log) -> Result<bool, LauncherError> {
    match stopped {
        Stopped::Ended(exit) if exit.is_success() => log.debug("stopped", &[("process", &id)]),
        // SIGTERM ends a shard that is still loading and has not installed its handler.
        Stopped::Ended(Exit::Signal(ended_by)) if ended_by == Signal::TERM.as_raw() => {
            log.debug("stopped while it was starting", &[("process", &id)]);
        }
        Stopped::Ended(exit) => {
            log.warn("failed to stop cleanly", &[("process", &id), ("exit", &exit)]);
            return Ok(false);
        }
        Stopped::Killed => {
            log.warn(
                "did not stop in time and was killed",
                &[("process", &id), ("after_s", &patience.as_secs())],
            );
            return Ok(false);
        }
        Stopped::Interrupted(second) => {
            log.warn("stopped immediately by a second signal", &[("signal", &second)]);
            return Err(LauncherError::Interrupted { signal: second });
        }
    }
    Ok(true)
}

/// Stops the remaining children after one failed, without waiting for streams, which cannot continue.
pub(crate) fn abandon(rest: Vec<Process>, pace: &Pace, events: &Receiver<Event>) {
    let request = Request::now(Signal::TERM.as_raw());
    rest.iter().for_each(|process| process.signal(Signal::TERM));
    let deadline = Instant::now() + pace.abandon_timeout;
    for process in rest {
        await_end(process, deadline, request, ClosingLine::Drop, events);
    }
}
