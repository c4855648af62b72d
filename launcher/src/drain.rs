//! Stopping: the router first, so that its streams can finish on a living shard, then the shard.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{EXIT_FAILURE, EXIT_USER_MISTAKE, LauncherError};
use crate::log::Log;
use crate::pace::Pace;
use crate::process::{Event, Exit, Process};

/// A copy of the same signal within this time is the same request: `timeout(1)` and some supervisors send it to the
/// process and again to its group.
pub const SAME_SIGNAL_WINDOW: Duration = Duration::from_millis(200);

/// How an asked-for end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// By itself.
    Ended(Exit),
    /// By SIGKILL, after its time was over.
    Killed,
    /// By SIGKILL, because the launcher was told a second time to stop, with this signal.
    Interrupted(i32),
}

/// What asked for the end.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    signal: i32,
    at: Instant,
}

impl Request {
    /// A request by `signal`, which arrived just now.
    pub fn now(signal: i32) -> Self {
        Self::at(signal, Instant::now())
    }

    /// A request by `signal`, which arrived at `at`.
    pub fn at(signal: i32, at: Instant) -> Self {
        Self { signal, at }
    }

    /// Whether `signal`, which arrived just now, is a second request and no copy of this one.
    pub fn is_repeated_by(self, signal: i32) -> bool {
        signal != self.signal || self.at.elapsed() >= SAME_SIGNAL_WINDOW
    }
}

/// What becomes of the closing `error:` line of a child that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosingLine {
    /// Passed through, unless the child ended by a user's mistake of its own.
    Tell,
    /// Dropped, however the child ended: another error is about to be told, likely about the same mistake.
    Drop,
}

/// Ends one process and whatever is in its group: SIGTERM, then SIGKILL after `patience` or at a second signal.
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
            // A copy of the first signal, or an end, which the loop's condition looks at.
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
    if closing_line == ClosingLine::Tell && exit != Exit::Code(EXIT_USER_MISTAKE) {
        tail.release();
    }
    exit
}

/// Waits until `process` has ended; false if it has not after `patience`, or if the launcher was told to stop.
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

/// Drains and stops everything because of `signal`. Returns the exit code: 0 if all went by itself, 1 if something had
/// to be killed or failed.
///
/// Errors: [`LauncherError::Interrupted`] after a second signal; nothing runs any more then, either.
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
        "draining; a second signal stops at once",
        &[("signal", &signal), ("at_most_s", &graceful_termination_timeout.as_secs())],
    );
    let request = Request::now(signal);
    let in_order = [(router, graceful_termination_timeout + pace.router_grace), (shard, pace.shard_timeout)];
    let mut code = 0;
    for (process, patience) in in_order {
        let Some(process) = process else { continue };
        let role = process.role();
        match stop(process, patience, request, ClosingLine::Tell, events) {
            Stopped::Ended(exit) if exit.is_success() => log.debug("ended", &[("process", &role)]),
            // The shard's answer to SIGTERM before its handler is set, that is, while it still loads.
            Stopped::Ended(Exit::Signal(ended_by)) if ended_by == Signal::TERM.as_raw() => {
                log.debug("ended before it could handle the signal", &[("process", &role)]);
            }
            Stopped::Ended(exit) => {
                log.warn("did not end well", &[("process", &role), ("exit", &exit)]);
                code = EXIT_FAILURE;
            }
            Stopped::Killed => {
                log.warn(
                    "did not end in time and was killed",
                    &[("process", &role), ("after_s", &patience.as_secs())],
                );
                code = EXIT_FAILURE;
            }
            Stopped::Interrupted(second) => {
                log.warn("stopped at once by a second signal", &[("signal", &second)]);
                return Err(LauncherError::Interrupted { signal: second });
            }
        }
    }
    log.info("stopped", &[]);
    Ok(code)
}

/// Stops what is left after another child failed; nobody waits for its streams, since they cannot go on.
pub fn abandon(rest: impl IntoIterator<Item = Process>, pace: &Pace, events: &Receiver<Event>) {
    let rest: Vec<Process> = rest.into_iter().collect();
    let request = Request::now(Signal::TERM.as_raw());
    rest.iter().for_each(|process| process.signal(Signal::TERM));
    for process in rest {
        stop(process, pace.abandon_timeout, request, ClosingLine::Drop, events);
    }
}
