//! The process that waits for the outcome of a reload.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The answer after a reload; any other line is the reason why there was none.
pub(crate) const RELOADED: &str = "reloaded\n";
/// Longest time for one line, which either side writes at once.
pub(crate) const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The process that asked for a reload and waits for the outcome.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Caller {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sends the outcome. The caller may be gone, which does not matter to the server.
    pub(crate) fn answer(mut self, outcome: Result<(), &str>) {
        let line = match outcome {
            Ok(()) => RELOADED.to_owned(),
            Err(reason) => format!("{reason}\n"),
        };
        let _ = self.0.set_write_timeout(Some(LINE_TIMEOUT));
        let _ = self.0.write_all(line.as_bytes());
    }
}
