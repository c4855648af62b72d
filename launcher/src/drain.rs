//! Stops the children: first the router, so that its streams can finish while the shard runs, then the shard.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{EXIT_FAILURE, EXIT_USER_MISTAKE, LauncherError};
use crate::exit::Exit;
use crate::log::Log;
use crate::pace::Pace;
use crate::process::{Event, Process};

/// A repetition of the same signal within this time counts as the same request: `timeout(1)` and some supervisors
/// signal both the process and its group.
pub const SAME_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// The outcome of stopping a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
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

    /// Creates a request by `signal`, which arrived at `at`.
    pub fn at(signal: i32, at: Instant) -> Self {
        Self { signal, at }
    }

    /// Returns whether `signal`, which arrived just now, is a second request rather than a repetition of this one.
    pub fn is_repeated_by(self, signal: i32) -> bool {
        signal != self.signal || self.at.elapsed() >= SAME_SIGNAL_WINDOW
    }
}

/// The treatment of the final `error:` line of a child that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosingLine {
    /// Pass it through, unless the child ended because of a user's mistake.
    Print,
    /// Drop it: another error is about to be printed, probably about the same mistake.
    Drop,
}

/// Stops a process and its group: SIGTERM, then SIGKILL after `patience` or at a second signal.
pub fn stop(
    process: Process,
    patience: Duration,
    request: Request,
    closing_line: ClosingLine,
    events: &Receiver<Event>,
) -> Stopped {
    let begin = Instant::now();
    process.signal(Signal::TERM);
    while !process.has_ended() {
        let left = patience.saturating_sub(begin.elapsed());
        match events.recv_timeout(left) {
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

/// Waits until `process` has ended. Returns false after `patience`, or if the launcher was told to stop.
pub fn ends_within(process: &Process, patience: Duration, events: &Receiver<Event>) -> bool {
    let begin = Instant::now();
    while !process.has_ended() {
        match events.recv_timeout(patience.saturating_sub(begin.elapsed())) {
            Ok(Event::Signal(_)) | Err(_) => return process.has_ended(),
            Ok(_) => {}
        }
    }
    true
}

/// Drains and stops both children because of `signal`.
///
/// Returns the exit code: 0 if both exited by themselves, 1 if one failed or had to be killed.
///
/// # Errors
///
/// Returns [`LauncherError::Interrupted`] after a second signal; no child runs then, either.
pub fn drain(
    router: Option<Process>,
    shard: Option<Process>,
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
    let in_order = [(router, graceful_termination_timeout + pace.router_grace), (shard, pace.shard_timeout)];
    let mut code = 0;
    for (process, patience) in in_order {
        let Some(process) = process else { continue };
        let role = process.role();
        match stop(process, patience, request, ClosingLine::Print, events) {
            Stopped::Ended(exit) if exit.is_success() => log.debug("stopped", &[("process", &role)]),
            // SIGTERM ends a shard that is still loading and has not installed its handler.
            Stopped::Ended(Exit::Signal(ended_by)) if ended_by == Signal::TERM.as_raw() => {
                log.debug("stopped while it was starting", &[("process", &role)]);
            }
            Stopped::Ended(exit) => {
                log.warn("failed to stop cleanly", &[("process", &role), ("exit", &exit)]);
                code = EXIT_FAILURE;
            }
            Stopped::Killed => {
                log.warn(
                    "did not stop in time and was killed",
                    &[("process", &role), ("after_s", &patience.as_secs())],
                );
                code = EXIT_FAILURE;
            }
            Stopped::Interrupted(second) => {
                log.warn("stopped immediately by a second signal", &[("signal", &second)]);
                return Err(LauncherError::Interrupted { signal: second });
            }
        }
    }
    log.info("stopped", &[]);
    Ok(code)
}

/// Stops the remaining children after one failed, without waiting for streams, which cannot continue.
pub fn abandon(rest: impl IntoIterator<Item = Process>, pace: &Pace, events: &Receiver<Event>) {
    let rest: Vec<Process> = rest.into_iter().collect();
    let request = Request::now(Signal::TERM.as_raw());
    rest.iter().for_each(|process| process.signal(Signal::TERM));
    for process in rest {
        stop(process, pace.abandon_timeout, request, ClosingLine::Drop, events);
    }
}
