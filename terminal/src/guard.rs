//! Leaves the terminal as it was when a signal ends the process, and turns Ctrl-C into a flag.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::Error;

/// Added to the number of the signal in the exit code, as shells do.
const EXIT_SIGNAL_BASE: i32 = 128;
/// Leaves the screen of `trunkline top`, shows the cursor, and ends bracketed paste.
const RESTORE: &[u8] = b"\x1b[?1049l\x1b[?25h\x1b[?2004l\r\n";

/// A terminal that does not show what is typed, until this is dropped. What is typed meanwhile waits for the prompt.
pub(crate) struct Quiet(Option<Termios>);

impl Quiet {
    pub(crate) fn new() -> Self {
        let modes = tcgetattr(std::io::stdin()).ok();
        if let Some(mut quiet) = modes.clone() {
            quiet.local_modes.remove(LocalModes::ECHO);
            // Without it, keys are shown between the words.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet);
        }
        Self(modes)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(modes) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Watches over the terminal until the process ends: after SIGTERM or SIGHUP it is usable again. Returns the flag that
/// SIGINT sets.
///
/// A server that was started for the process ends by itself, because its lifeline closes with the process.
pub fn guard() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGINT, Arc::clone(&stop)).map_err(Error::Terminal)?;
    let mut signals = Signals::new([SIGTERM, SIGHUP]).map_err(Error::Terminal)?;
    let modes = tcgetattr(std::io::stdin()).map_err(|error| Error::Terminal(error.into()))?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // A terminal that has gone away needs nothing.
            let _ = std::io::stdout().write_all(RESTORE);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &modes);
            std::process::exit(EXIT_SIGNAL_BASE + signal);
        }
    });
    Ok(stop)
}
