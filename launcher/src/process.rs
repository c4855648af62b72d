//! One child process: its group, its lifeline, its output lines and its end.

use std::fmt;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::error::LauncherError;
use crate::output::{Output, Tail};

/// Events that may wait for the supervisor. Senders block when it is full; none of them holds anything others need.
pub const MAX_PENDING_EVENTS: usize = 64;

/// What a child is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `python -m trunkline_server resolve`
    Resolver,
    /// `python -m trunkline_server serve`
    Shard,
    /// `trunkline-router`
    Router,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolver => "resolver",
            Self::Shard => "shard",
            Self::Router => "router",
        })
    }
}

/// What the launcher waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The launcher received this signal.
    Signal(i32),
    /// The process with this id ended; it is not reaped yet, so the id is still its own.
    Ended {
        /// What it was for.
        role: Role,
        /// Its process id: tells this process from an earlier one with the same role.
        pid: u32,
    },
    /// The router answers that it is ready.
    Ready,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Exit {
    /// Whether it ended as asked.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match Signal::from_named_raw(*signal) {
                Some(Signal::KILL) => f.write_str("signal 9 (SIGKILL)"),
                Some(Signal::SEGV) => f.write_str("signal 11 (SIGSEGV)"),
                Some(Signal::ABORT) => f.write_str("signal 6 (SIGABRT)"),
                Some(Signal::ILL) => f.write_str("signal 4 (SIGILL)"),
                Some(Signal::BUS) => f.write_str("signal 7 (SIGBUS)"),
                Some(Signal::TERM) => f.write_str("signal 15 (SIGTERM)"),
                _ => write!(f, "signal {signal}"),
            },
        }
    }
}

/// A running child that leads its own process group. Dropping it kills the whole group and reaps the child.
///
/// Invariant: while this value lives the child is not reaped, so its id, and its group's, cannot belong to a stranger.
#[derive(Debug)]
pub struct Process {
    role: Role,
    child: Child,
    /// The write end of the child's stdin: closed by the kernel when the launcher dies, however it dies. It is
    /// close-on-exec, so no other child holds a copy.
    lifeline: Option<ChildStdin>,
    output: Output,
    reaped: bool,
}

impl Process {
    /// Starts a supervised child: stdin is the lifeline, and the lines of stdout and stderr both go to the launcher's
    /// stderr, untouched, but for a closing `error:` line ([`Tail::verdict`]). Its end arrives as [`Event::Ended`].
    ///
    /// The launcher's own stdout carries what the user asked for and nothing else, hence both streams go to stderr.
    pub fn spawn(
        role: Role,
        mut command: Command,
        events: &SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::start(role, command, events)
    }

    /// Starts a child whose stdin and stderr are what `command` says and whose stdout is collected by the caller.
    pub fn spawn_with_output(
        role: Role,
        mut command: Command,
        events: &SyncSender<Event>,
    ) -> Result<(Self, impl Read + Send + use<>), LauncherError> {
        command.stdout(Stdio::piped());
        let program = command.get_program().to_owned();
        let mut child = spawn_in_own_group(role, &mut command)?;
        let stdout = child.stdout.take().ok_or_else(|| LauncherError::Spawn {
            role,
            program: program.into(),
            source: std::io::Error::other("its stdout was not captured"),
        })?;
        Ok((Self::watch(role, child, events), stdout))
    }

    fn start(role: Role, mut command: Command, events: &SyncSender<Event>) -> Result<Self, LauncherError> {
        let child = spawn_in_own_group(role, &mut command)?;
        Ok(Self::watch(role, child, events))
    }

    fn watch(role: Role, mut child: Child, events: &SyncSender<Event>) -> Self {
        let lifeline = child.stdin.take();
        let output = Output::pass_through(child.stdout.take(), child.stderr.take());
        let pid = child.id();
        let events = events.clone();
        thread::spawn(move || {
            wait_without_reaping(pid);
            // The supervisor is gone when this fails, and with it the need to know.
            let _ = events.send(Event::Ended { role, pid });
        });
        Self { role, child, lifeline, output, reaped: false }
    }

    /// What this child is for.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to the child's whole group. A group whose members have all ended is fine.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = pid_of(self.child.id()) {
            // Only fails if nobody is left to receive it: the leader is ours and not yet reaped.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Whether the child has ended, reaped or not.
    pub fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that there is no such child (any more).
        pid_of(self.child.id()).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Reaps a child whose [`Event::Ended`] has arrived (waits for it otherwise) and says how it ended and what it
    /// wrote last. Whatever it left in its group is killed.
    pub fn reap(mut self) -> (Exit, Tail) {
        let exit = self.finish();
        (exit, self.output.finish())
    }

    fn finish(&mut self) -> Exit {
        wait_without_reaping(self.child.id());
        self.signal(Signal::KILL);
        self.reaped = true;
        // Only fails with ECHILD, if the launcher was started with SIGCHLD ignored and the kernel kept no status.
        self.child.wait().map_or(Exit::Signal(0), Exit::from)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        if !self.reaped {
            self.signal(Signal::KILL);
            self.finish();
        }
    }
}

fn spawn_in_own_group(role: Role, command: &mut Command) -> Result<Child, LauncherError> {
    command.process_group(0).spawn().map_err(|source| LauncherError::Spawn {
        role,
        program: command.get_program().into(),
        source,
    })
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn wait_without_reaping(pid: u32) {
    let Some(pid) = pid_of(pid) else { return };
    while let Err(rustix::io::Errno::INTR) =
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    {}
}
