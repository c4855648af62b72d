//! The socket in a launcher's private folder, over which `trunkline reload` and `trunkline status` ask.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use crate::caller::{Caller, LINE_TIMEOUT, RELOADED, Status};
use crate::error::LauncherError;
use crate::process::Event;
use crate::runtime_dir::{self, RuntimeDir};

const RELOAD: &str = "reload\n";
const STATUS: &str = "status\n";
/// Longest wait for a status, which takes a launcher some milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_LINE_BYTES: u64 = 64;

/// Turns each request on the private folder's socket into an event.
pub(crate) fn listen(folder: &RuntimeDir, events: SyncSender<Event>) -> Result<(), LauncherError> {
    let listener = UnixListener::bind(folder.control_socket()).map_err(|source| LauncherError::System {
        what: "listen on the socket for `trunkline reload` and `trunkline status`",
        source,
    })?;
    thread::spawn(move || {
        // Only this user can connect. A caller that asks for something else is disconnected.
        for stream in listener.incoming().map_while(Result::ok) {
            let event = match question(&stream).as_deref() {
                Some(RELOAD) => Event::Reload(Some(Caller::new(stream))),
                Some(STATUS) => Event::Status(Caller::new(stream)),
                _ => continue,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn question(stream: &UnixStream) -> Option<String> {
    let mut line = String::new();
    stream.set_read_timeout(Some(LINE_TIMEOUT)).ok()?;
    BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line).ok()?;
    Some(line)
}

/// Sends a line to a launcher and returns its whole answer, which is empty if the launcher stops.
fn ask(socket: &Path, line: &str, patience: Option<Duration>) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(patience)?;
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns what the launcher with this private folder says about itself; `None` if it stops.
pub(crate) fn status(folder: &Path) -> io::Result<Option<Status>> {
    let answer = ask(&runtime_dir::control_socket_in(folder), STATUS, Some(STATUS_TIMEOUT))?;
    if answer.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&answer)?)) }
}

/// Asks the launcher with this process id, or else the only one of this user, to reload. Returns when it has.
pub(crate) fn reload(pid: Option<i32>) -> Result<(), LauncherError> {
    let socket = find(pid)?;
    let fail = |reason: String| LauncherError::Reload { reason };
    match ask(&socket, RELOAD, None)
        .map_err(|error| fail(format!("cannot ask `{}`: {error}", socket.display())))?
        .as_str()
    {
        RELOADED => Ok(()),
        "" => Err(fail("the server stopped".into())),
        reason => Err(fail(reason.trim_end().to_owned())),
    }
}

fn find(pid: Option<i32>) -> Result<PathBuf, LauncherError> {
    let bases = runtime_dir::bases();
    let mut running: Vec<(i32, PathBuf)> = bases.iter().flat_map(|base| runtime_dir::running(base)).collect();
    running.retain(|(owner, _)| pid.is_none_or(|pid| pid == *owner));
    match running.as_slice() {
        [(_, folder)] => Ok(runtime_dir::control_socket_in(folder)),
        [] => {
            let of = pid.map(|pid| format!(" with process id {pid}")).unwrap_or_default();
            Err(LauncherError::Reload { reason: LauncherError::no_server(&of, &bases).to_string() })
        }
        several => {
            let pids: Vec<String> = several.iter().map(|(pid, _)| pid.to_string()).collect();
            Err(LauncherError::Reload {
                reason: format!(
                    "several servers run, with the process ids {}; hint: name one, as in `trunkline reload {}`",
                    pids.join(", "),
                    pids[0]
                ),
            })
        }
    }
}
