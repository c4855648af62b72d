//! `trunkline reload`: asks a running launcher over the socket in its private folder.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::thread;

use crate::caller::{Caller, LINE_TIMEOUT, RELOADED};
use crate::error::LauncherError;
use crate::process::Event;
use crate::runtime_dir::{self, RuntimeDir};

const RELOAD: &str = "reload\n";
const MAX_LINE_BYTES: u64 = 64;

/// Turns each request on the private folder's socket into an [`Event::Reload`].
pub(crate) fn listen(folder: &RuntimeDir, events: SyncSender<Event>) -> Result<(), LauncherError> {
    let listener = UnixListener::bind(folder.control_socket()).map_err(|source| LauncherError::System {
        what: "listen on the socket for `trunkline reload`",
        source,
    })?;
    thread::spawn(move || {
        // Only this user can connect. A caller that asks for something else is disconnected.
        for stream in listener.incoming().map_while(Result::ok) {
            if asks_for_reload(&stream) && events.send(Event::Reload(Some(Caller::new(stream)))).is_err() {
                return;
            }
        }
    });
    Ok(())
}

fn asks_for_reload(stream: &UnixStream) -> bool {
    let mut line = String::new();
    stream.set_read_timeout(Some(LINE_TIMEOUT)).is_ok()
        && BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line).is_ok()
        && line == RELOAD
}

/// Asks the launcher with this process id, or else the only one of this user, to reload. Returns when it has.
pub(crate) fn reload(pid: Option<i32>) -> Result<(), LauncherError> {
    let socket = find(pid)?;
    let fail = |reason: String| LauncherError::Reload { reason };
    let answer = UnixStream::connect(&socket).and_then(|mut stream| {
        stream.write_all(RELOAD.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    match answer.map_err(|error| fail(format!("cannot ask `{}`: {error}", socket.display())))?.as_str() {
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
            let places: Vec<String> = bases.iter().map(|base| format!("`{}`", Path::display(base))).collect();
            Err(LauncherError::Reload {
                reason: format!(
                    "no server of this user{of} in {}; hint: set `XDG_RUNTIME_DIR` and `TMPDIR` as the server has them",
                    places.join(", ")
                ),
            })
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
