//! Turns the signals that stop the launcher (SIGINT, SIGTERM and SIGHUP) into events.

use std::fs;
use std::sync::mpsc::SyncSender;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::LauncherError;
use crate::process::Event;

/// Sends an [`Event::Signal`] for every such signal until the process ends.
///
/// SIGHUP stays ignored if it was ignored when the launcher started, as under `nohup`.
pub(crate) fn forward_to(events: SyncSender<Event>) -> Result<(), LauncherError> {
    let mut wanted = vec![SIGINT, SIGTERM];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals =
        Signals::new(wanted).map_err(|source| LauncherError::System { what: "handle signals", source })?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Returns whether `signal` was ignored when this process started; false if `/proc` is missing.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Returns the `SigIgn` mask in the text of `/proc/self/status`.
pub fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
