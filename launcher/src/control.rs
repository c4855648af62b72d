//! The socket in a launcher's private folder, over which `trunkline reload`, `lanes` and `status` ask.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use crate::args::parsed::PlaceArgs;
use crate::caller::LaneWord;
use crate::caller::{Caller, DONE, LINE_TIMEOUT, Status};
use crate::error::LauncherError;
use crate::process::Event;
use crate::runtime_dir::{self, RuntimeDir};

const RELOAD: &str = "reload\n";
const STATUS: &str = "status\n";
/// Longest wait for a status, which takes a launcher some milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Enough for the name of a model.
const MAX_LINE_BYTES: u64 = 1024;

/// Turns each request on the private folder's socket into an event.
pub(crate) fn listen(folder: &RuntimeDir, events: SyncSender<Event>) -> Result<(), LauncherError> {
    let listener = UnixListener::bind(folder.control_socket()).map_err(|source| LauncherError::System {
        what: "listen on the socket for `trunkline reload`, `lanes` and `status`",
        source,
    })?;
    thread::spawn(move || {
        // Only this user can connect. A caller that asks for something else is disconnected.
        for stream in listener.incoming().map_while(Result::ok) {
            let Some(line) = question(&stream) else { continue };
            let caller = Caller::new(stream);
            let event = match (line.as_str(), lane(&line)) {
                (RELOAD, _) => Event::Reload(Some(caller)),
                (STATUS, _) => Event::Status(caller),
                (_, Some((word, lane, model))) => Event::Lane { word, lane, model, caller },
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

/// Returns the parts of a line that asks for something of a lane: a word, the lane's number, and perhaps the model's
/// name.
fn lane(line: &str) -> Option<(LaneWord, u32, Option<String>)> {
    let mut parts = line.trim_end().splitn(3, ' ');
    let (word, number) = (LaneWord::of(parts.next()?)?, parts.next()?.parse().ok()?);
    Some((word, number, parts.next().map(str::to_owned)))
}

/// Asks the launcher with this process id, or else the only one of this user, to reload. Returns when it has.
pub(crate) fn reload(pid: Option<i32>) -> Result<(), LauncherError> {
    let fail = |reason| LauncherError::Refused { what: "reload".to_owned(), reason };
    find(pid, "trunkline reload ").and_then(|folder| do_it(&folder, RELOAD)).map_err(fail)
}

/// Asks a launcher for something of a lane. Returns when it is done.
pub(crate) fn ask_lane(
    pid: Option<i32>,
    word: LaneWord,
    PlaceArgs { lane, model }: &PlaceArgs,
) -> Result<(), LauncherError> {
    let (word, of) = (word.as_str(), model.as_ref().map(|model| format!(" {model}")).unwrap_or_default());
    let fail = |reason| LauncherError::Refused { what: format!("{word} lane {lane}"), reason };
    let command = format!("trunkline lanes {word} {lane} --pid ");
    find(pid, &command).and_then(|folder| do_it(&folder, &format!("{word} {lane}{of}\n"))).map_err(fail)
}

/// Returns what the launcher with this process id, or else the only one of this user, says about itself, to list its
/// `lanes` or `adapters`.
pub(crate) fn status_of(pid: Option<i32>, listed: &str) -> Result<Status, LauncherError> {
    status_for(pid, &format!("list the {listed}"), &format!("trunkline {listed} --pid "))
}

/// Returns the same for a command that would do `what`, and which may be written as `command` before a process id.
pub(crate) fn status_for(pid: Option<i32>, what: &str, command: &str) -> Result<Status, LauncherError> {
    let fail = |reason| LauncherError::Refused { what: what.to_owned(), reason };
    let folder = find(pid, command).map_err(fail)?;
    match status(&folder) {
        Ok(Some(status)) => Ok(status),
        Ok(None) => Err(fail("the server stops".to_owned())),
        Err(error) => Err(fail(format!("cannot ask `{}`: {error}", folder.display()))),
    }
}

/// Asks a launcher for something that it does or refuses. The error is the reason.
fn do_it(folder: &Path, line: &str) -> Result<(), String> {
    let socket = runtime_dir::control_socket_in(folder);
    match ask(&socket, line, None)
        .map_err(|error| format!("cannot ask `{}`: {error}", socket.display()))?
        .as_str()
    {
        DONE => Ok(()),
        "" => Err("the server stopped".to_owned()),
        reason => Err(reason.trim_end().to_owned()),
    }
}

/// Returns the private folder of the launcher with this process id, or else of the only one. `command` is what the user
/// may write before a process id.
fn find(pid: Option<i32>, command: &str) -> Result<PathBuf, String> {
    let bases = runtime_dir::bases();
    let mut running: Vec<(i32, PathBuf)> = bases.iter().flat_map(|base| runtime_dir::running(base)).collect();
    running.retain(|(owner, _)| pid.is_none_or(|pid| pid == *owner));
    match running.as_slice() {
        [(_, folder)] => Ok(folder.clone()),
        [] => {
            let of = pid.map(|pid| format!(" with process id {pid}")).unwrap_or_default();
            Err(LauncherError::no_server(&of, &bases).to_string())
        }
        several => {
            let pids: Vec<String> = several.iter().map(|(pid, _)| pid.to_string()).collect();
            Err(format!(
                "several servers run, with the process ids {}; hint: name one, as in `{command}{}`",
                pids.join(", "),
                pids[0]
            ))
        }
    }
}
