//! Resolves the user's name of a model to files on disk: `python -m trunkline_server resolve`.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, setpriority_process};

use crate::args::resolved::ModelRef;
use crate::child::ChildId;
use crate::drain::{ClosingLine, Request, Stopped, stop};
use crate::error::{EXIT_USER_MISTAKE, LauncherError};
use crate::exit::Exit;
pub use crate::model::{Progress, ResolvedModel};
use crate::output::{Tail, copy_lines};
use crate::process::{Event, MAX_PENDING_EVENTS, Process};
use crate::programs;

/// Most output that is kept, more than the JSON lines need; the rest is read and discarded.
const MAX_OUTPUT_BYTES: usize = 2 << 20;
/// The nice value of a resolver beside shards that compute.
const LOW_PRIORITY: i32 = 10;
/// Time that an interrupted download has to leave its partial files in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A resolver whose output a thread waits for. Dropping this stops it.
#[derive(Debug)]
pub(crate) struct Background(SyncSender<Event>);

impl Background {
    /// Calls `work` in a thread, with events of its own, so that waiting for it stops nothing else.
    pub(crate) fn run(work: impl FnOnce(&Receiver<Event>, &SyncSender<Event>) + Send + 'static) -> Self {
        let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
        let own = sender.clone();
        thread::spawn(move || work(&events, &own));
        Self(sender)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // This fails if the resolver has ended.
        let _ = self.0.try_send(Event::Signal(Signal::TERM.as_raw()));
    }
}

/// Finds or downloads a model.
pub(crate) fn run(
    python: &Path,
    model: &ModelRef,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<ResolvedModel, LauncherError> {
    parse(&output_of(programs::resolver_command(python, model), |_| (), events, sender)?)
}

/// The limits of a search for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) downloads: bool,
    /// True if the model may be a path on this machine.
    pub(crate) paths: bool,
}

/// Finds a model while the server runs, and estimates its memory with its settings in JSON. An error has the resolver's
/// own message.
pub(crate) fn find(
    python: &Path,
    model: (&ModelRef, String),
    allowed: Allowed,
    progress: impl FnMut(Progress) + Send + 'static,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<ResolvedModel, LauncherError> {
    let mut command = programs::estimator_command(python, &[model]);
    command.arg("--progress");
    command.args((!allowed.downloads).then_some("--local")).args((!allowed.paths).then_some("--no-paths"));
    command.stderr(Stdio::piped());
    yield_to_the_shards(&mut command);
    parse(&output_of(command, progress, events, sender)?)
}

/// Finds or downloads models, and estimates the memory of each with its settings in JSON.
pub(crate) fn run_all(
    python: &Path,
    models: &[(&ModelRef, String)],
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<Vec<ResolvedModel>, LauncherError> {
    // A command has one revision for all its models.
    let same_revision = |a: &(&ModelRef, String), b: &(&ModelRef, String)| a.0.revision == b.0.revision;
    let mut resolved = Vec::new();
    for group in models.chunk_by(same_revision) {
        let output = output_of(programs::estimator_command(python, group), |_| (), events, sender)?;
        resolved.extend(parse_all(&output, group.len())?);
    }
    Ok(resolved)
}

/// Runs a resolver and returns its output. Unless its stderr is piped, it writes its progress bars and its error
/// directly there.
///
/// # Errors
///
/// Fails if a signal stops the download, or if the resolver fails. A resolver that exits with 2 has written the reason.
fn output_of(
    mut command: Command,
    progress: impl FnMut(Progress) + Send + 'static,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<Vec<u8>, LauncherError> {
    command.stdin(Stdio::null());
    end_with_the_launcher(&mut command);
    let (process, stdout) = Process::spawn_with_output(ChildId::Resolver, command, sender)?;
    let output = thread::spawn(move || read_output(stdout, progress));
    while !process.has_ended() {
        // The end of the resolver is an event too. The channel cannot be closed, since `sender` is alive.
        if let Ok(Event::Signal(signal)) = events.recv() {
            let request = Request::now(signal);
            let stopped = stop(process, STOP_TIMEOUT, request, ClosingLine::Print, events);
            if let Stopped::Interrupted(second) = stopped {
                return Err(LauncherError::Interrupted { signal: second });
            }
            return Err(LauncherError::Interrupted { signal });
        }
    }
    let (exit, Tail { last_line, verdict }) = process.reap();
    let child = ChildId::Resolver;
    match exit {
        Exit::Code(0) => output.join().map_err(|_| LauncherError::System {
            what: "read the resolver's output",
            source: std::io::Error::other("the reading thread panicked"),
        }),
        Exit::Code(EXIT_USER_MISTAKE) => Err(LauncherError::ChildRefused { child, verdict }),
        exit => Err(LauncherError::EndedBeforeReady { child, exit, last_line }),
    }
}

/// Returns the output without the lines that tell the progress.
fn read_output(stdout: impl Read, mut progress: impl FnMut(Progress)) -> Vec<u8> {
    let mut output = Vec::new();
    copy_lines(stdout, |line| match serde_json::from_slice(line) {
        Ok(told) => progress(told),
        Err(_) if output.len() + line.len() <= MAX_OUTPUT_BYTES => output.extend_from_slice(line),
        Err(_) => {}
    });
    output
}

/// Parses the last non-empty line of the resolver's output; a library may have printed others before it.
pub fn parse(output: &[u8]) -> Result<ResolvedModel, LauncherError> {
    parse_all(output, 1).map(|mut models| models.remove(0))
}

/// Parses the last non-empty lines, one for each model.
fn parse_all(output: &[u8], num_models: usize) -> Result<Vec<ResolvedModel>, LauncherError> {
    let bad = |reason: String| LauncherError::ResolverOutput { reason };
    let text = std::str::from_utf8(output).map_err(|error| bad(error.to_string()))?;
    let mut lines: Vec<&str> =
        text.lines().rev().filter(|line| !line.trim().is_empty()).take(num_models).collect();
    if lines.len() < num_models {
        return Err(bad(format!("it has {} lines, expected {num_models}", lines.len())));
    }
    lines.reverse();
    let model = |line: &str| {
        let model: ResolvedModel = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
        if model.model_id.is_empty() || !model.path.is_absolute() {
            return Err(bad(format!(
                "`model_id` is `{}` and `path` is `{}`",
                model.model_id,
                model.path.display()
            )));
        }
        Ok(model)
    };
    lines.into_iter().map(model).collect()
}

/// Gives the resolver a low priority, because shards compute meanwhile.
fn yield_to_the_shards(command: &mut Command) {
    let hook = || Ok(setpriority_process(None, LOW_PRIORITY)?);
    // SAFETY: only async-signal-safe calls are allowed between fork and exec, and the hook makes one system call.
    unsafe {
        command.pre_exec(hook);
    }
}

/// Asks the kernel to stop the resolver when the launcher dies, since the resolver has no lifeline.
#[cfg(target_os = "linux")]
fn end_with_the_launcher(command: &mut Command) {
    use rustix::process::{getpid, getppid, set_parent_process_death_signal};

    let launcher = getpid();
    let hook = move || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The launcher may have died before the call above.
        if getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: only async-signal-safe calls are allowed between fork and exec. The hook calls only prctl and getppid and
    // accesses only its own copy of a process id.
    unsafe {
        command.pre_exec(hook);
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with_the_launcher(_: &mut Command) {}
