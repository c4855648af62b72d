//! Resolves the user's name of a model to files on disk: `python -m trunkline_server resolve`.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use crate::args::resolved::ModelRef;
use crate::child::ChildId;
use crate::drain::{ClosingLine, Request, Stopped, stop};
use crate::error::{EXIT_USER_MISTAKE, LauncherError};
use crate::exit::Exit;
pub use crate::model::ResolvedModel;
use crate::process::{Event, Process};
use crate::programs;

/// Most output that is kept, more than the JSON line needs; the rest is read and discarded.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;
/// Time that an interrupted download has to leave its partial files in order.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Finds or downloads `model`. The resolver writes its progress bars directly to stderr. With `pool_tokens`, it also
/// estimates the memory of the model with a KV cache of that size, where 0 is the default.
///
/// # Errors
///
/// Fails if a signal stops the download, or if the resolver fails. A resolver that exits with 2 has printed the reason.
pub(crate) fn run(
    python: &Path,
    model: &ModelRef,
    pool_tokens: Option<u32>,
    events: &Receiver<Event>,
    sender: &SyncSender<Event>,
) -> Result<ResolvedModel, LauncherError> {
    let mut command = programs::resolver_command(python, model, pool_tokens);
    command.stdin(Stdio::null());
    end_with_the_launcher(&mut command);
    let (process, stdout) = Process::spawn_with_output(ChildId::Resolver, command, sender)?;
    let output = thread::spawn(move || read_output(stdout));
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
    let (exit, _) = process.reap();
    let output = output.join().unwrap_or_else(|_| Err(std::io::Error::other("the reading thread panicked")));
    match exit {
        Exit::Code(0) => parse(
            &output.map_err(|source| LauncherError::System { what: "read the resolver's output", source })?,
        ),
        Exit::Code(EXIT_USER_MISTAKE) => {
            Err(LauncherError::ChildRefused { child: ChildId::Resolver, verdict: None })
        }
        exit => Err(LauncherError::EndedBeforeReady { child: ChildId::Resolver, exit, last_line: None }),
    }
}

fn read_output(mut stdout: impl Read) -> std::io::Result<Vec<u8>> {
    let mut output = Vec::new();
    stdout.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut output)?;
    std::io::copy(&mut stdout, &mut std::io::sink())?;
    Ok(output)
}

/// Parses the last non-empty line of the resolver's output; a library may have printed others before it.
pub fn parse(output: &[u8]) -> Result<ResolvedModel, LauncherError> {
    let bad = |reason: String| LauncherError::ResolverOutput { reason };
    let text = std::str::from_utf8(output).map_err(|error| bad(error.to_string()))?;
    let line =
        text.lines().rev().find(|line| !line.trim().is_empty()).ok_or_else(|| bad("it is empty".into()))?;
    let model: ResolvedModel = serde_json::from_str(line).map_err(|error| bad(error.to_string()))?;
    if model.model_id.is_empty() || !model.path.is_absolute() {
        return Err(bad(format!(
            "`model_id` is `{}` and `path` is `{}`",
            model.model_id,
            model.path.display()
        )));
    }
    Ok(model)
}

/// Asks the kernel to stop the resolver when the launcher dies, since the resolver has no lifeline.
#[cfg(target_os = "linux")]
fn end_with_the_launcher(command: &mut Command) {
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

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
