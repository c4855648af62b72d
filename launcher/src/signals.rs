//! Signals as events: SIGINT, SIGTERM and SIGHUP ask the launcher to stop.

use std::fs;
use std::sync::mpsc::SyncSender;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::LauncherError;
use crate::process::Event;

/// Sends an [`Event::Signal`] for every signal that asks to stop, for as long as the process lives.
///
/// A SIGHUP that was ignored when the launcher started stays ignored: that is what `nohup` asks for.
pub fn forward_to(events: SyncSender<Event>) -> Result<(), LauncherError> {
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

/// Whether this process was started with `signal` ignored. Where `/proc` is missing, it is taken as not ignored.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_mask(&status).is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// The `SigIgn` mask in the text of `/proc/self/status`.
pub fn ignored_mask(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}
