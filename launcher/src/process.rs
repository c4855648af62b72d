//! A child process with its process group, lifeline and output.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use trunkline_settings::{Order, Report};

use crate::args::resolved::Prepared;
use crate::caller::Caller;
use crate::caller::LaneWord;
use crate::child::ChildId;
use crate::error::LauncherError;
use crate::exit::Exit;
use crate::log;
use crate::model::{Progress, ResolvedModel};
use crate::models_folder::Stamp;
use crate::output::{Output, Tail};

/// Capacity of the supervisor's event queue. Senders block when it is full; they hold nothing that others wait for.
pub const MAX_PENDING_EVENTS: usize = 64;

/// An event for the supervisor.
#[derive(Debug)]
pub enum Event {
    /// The launcher received this signal.
    Signal(i32),
    /// A process ended. It is not reaped yet, so its id cannot have been reused.
    Ended {
        child: ChildId,
        /// The process id, which distinguishes this process from earlier ones of the same child.
        pid: u32,
    },
    /// The child with this process id wrote this to its stdout.
    Report { pid: u32, report: Report },
    /// A signal, or this caller, asks to replace the router and the shards.
    Reload(Option<Caller>),
    /// This caller asks for the server's status.
    Status(Caller),
    /// This caller asks for something of a lane of the model with this name, or of the first one.
    Lane { word: LaneWord, lane: u32, model: Option<String>, caller: Caller },
    /// The models of the reload with this number are resolved.
    Resolved { generation: u32, prepared: Result<Prepared, LauncherError> },
    /// So much of the model that is looked for has been downloaded.
    Downloading(Progress),
    /// The search for a model has ended, which the pair of this generation began.
    Found { generation: u32, found: Result<ResolvedModel, LauncherError> },
    /// The files of this model are deleted, or this is why they are not.
    Deleted { model: u32, outcome: Result<(), String> },
    /// This folder of `--models-folder` has these models now.
    Folder(PathBuf, BTreeMap<String, Stamp>),
}

/// A running child that leads its own process group. Dropping it kills the whole group and reaps the child.
///
/// Invariant: the child is not reaped while this value lives, so the ids of child and group cannot be reused.
#[derive(Debug)]
pub(crate) struct Process {
    id: ChildId,
    child: Child,
    /// The write end of the child's stdin, which the kernel closes when the launcher dies for any reason. It is
    /// close-on-exec, so no other child holds a copy.
    lifeline: Option<ChildStdin>,
    output: Output,
    reaped: bool,
}

impl Process {
    /// Starts a supervised child: stdin is the lifeline, and the lines of stdout and stderr both go to the launcher's
    /// stderr, untouched, but for reports and a closing `error:` line ([`Tail::verdict`]). Its end arrives
    /// as [`Event::Ended`].
    ///
    /// The launcher's own stdout carries what the user asked for and nothing else, hence both streams go to stderr.
    pub(crate) fn spawn(
        id: ChildId,
        mut command: Command,
        events: &SyncSender<Event>,
    ) -> Result<Self, LauncherError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = spawn_in_own_group(id, &mut command)?;
        if let Some(lifeline) = &child.stdin {
            // The supervisor must not wait for a child that does not read.
            rustix::io::ioctl_fionbio(lifeline, true).map_err(|error| LauncherError::Spawn {
                child: id,
                program: command.get_program().into(),
                source: error.into(),
            })?;
        }
        Ok(Self::watch(id, child, events))
    }

    /// Starts a child whose stdin and stderr are what `command` says and whose stdout is collected by the caller.
    pub(crate) fn spawn_with_output(
        id: ChildId,
        mut command: Command,
        events: &SyncSender<Event>,
    ) -> Result<(Self, impl Read + Send + use<>), LauncherError> {
        command.stdout(Stdio::piped());
        let program = command.get_program().to_owned();
        let mut child = spawn_in_own_group(id, &mut command)?;
        let stdout = child.stdout.take().ok_or_else(|| LauncherError::Spawn {
            child: id,
            program: program.into(),
            source: std::io::Error::other("its stdout was not captured"),
        })?;
        Ok((Self::watch(id, child, events), stdout))
    }

    fn watch(id: ChildId, mut child: Child, events: &SyncSender<Event>) -> Self {
        let lifeline = child.stdin.take();
        let pid = child.id();
        let events = events.clone();
        let reports = events.clone();
        let on_stdout = move |line: &[u8]| match serde_json::from_slice(line) {
            // If this fails, the supervisor has ended.
            Ok(report) => drop(reports.send(Event::Report { pid, report })),
            Err(_) => log::write_line(line),
        };
        let output = Output::pass_through(child.stdout.take(), child.stderr.take(), on_stdout);
        thread::spawn(move || {
            wait_without_reaping(pid);
            // If this fails, the supervisor has ended.
            let _ = events.send(Event::Ended { child: id, pid });
        });
        Self { id, child, lifeline, output, reaped: false }
    }

    pub(crate) fn id(&self) -> ChildId {
        self.id
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal` to the child's whole group, whose members may all have ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = pid_of(self.child.id()) {
            // This fails only if no member is left, since the leader is our own child and not yet reaped.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Writes an order to the child's standard input. An error means that the child has ended, or has not read earlier
    /// orders for so long that the pipe is full.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        let Some(mut lifeline) = self.lifeline.as_ref() else { return Ok(()) };
        let line = serde_json::to_string(order)? + "\n";
        // Shorter than `PIPE_BUF`, so it is written completely or not at all.
        lifeline.write_all(line.as_bytes())
    }

    /// Makes a spare shard the shard with this id and these arguments. An error means that the spare has ended.
    pub(crate) fn become_shard(&mut self, id: ChildId, arguments: &[&str]) -> io::Result<()> {
        let mut lifeline = self.lifeline.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        // Shorter than `PIPE_BUF`, so it is written completely or not at all.
        lifeline.write_all((serde_json::to_string(arguments)? + "\n").as_bytes())?;
        self.id = id;
        Ok(())
    }

    /// Returns true if the child has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that the child no longer exists.
        pid_of(self.child.id()).is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// Waits for the child to end, kills the rest of its group, and returns the exit status and the end of the output.
    pub(crate) fn reap(mut self) -> (Exit, Tail) {
        let exit = self.finish();
        (exit, self.output.finish())
    }

    fn finish(&mut self) -> Exit {
        wait_without_reaping(self.child.id());
        self.signal(Signal::KILL);
        self.reaped = true;
        // This fails only with ECHILD, if SIGCHLD was ignored when the launcher started and the kernel kept no status.
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

fn spawn_in_own_group(id: ChildId, command: &mut Command) -> Result<Child, LauncherError> {
    command.process_group(0).spawn().map_err(|source| LauncherError::Spawn {
        child: id,
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
