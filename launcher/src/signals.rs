//! Turns the signals that stop the launcher (SIGINT, SIGTERM) or reload it (SIGUSR2) into events. SIGHUP stops it if it
//! has a terminal, which has then gone away, and reloads it otherwise.

use std::fs::{self, File};
use std::io;
use std::sync::mpsc::SyncSender;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::error::LauncherError;
use crate::process::Event;

/// Sends an [`Event::Signal`] or an [`Event::Reload`] for every such signal until the process ends.
///
/// SIGHUP stays ignored if it was ignored when the launcher started, as under `nohup`.
pub(crate) fn forward_to(events: SyncSender<Event>) -> Result<(), LauncherError> {
    let mut wanted = vec![SIGINT, SIGTERM, SIGUSR2];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals =
        Signals::new(wanted).map_err(|source| LauncherError::System { what: "handle signals", source })?;
    let has_terminal = File::open("/dev/tty").is_ok();
    thread::spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGUSR2 => Event::Reload(None),
                SIGHUP if !has_terminal => Event::Reload(None),
                signal => Event::Signal(signal),
            };
            if events.send(event).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Sends the [`Event::Signal`] of SIGTERM when the standard input ends, as it does with the process that holds its
/// other end.
pub(crate) fn stop_with_stdin(events: SyncSender<Event>) {
    thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        // If this fails, the launcher has ended.
        let _ = events.send(Event::Signal(SIGTERM));
    });
}

/// Returns true if `signal` was ignored when this process started; false if `/proc` is missing.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Returns the `SigIgn` mask in the text of `/proc/self/status`.
pub fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
