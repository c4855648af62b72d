//! A process that asked over the socket in the private folder and waits for the answer.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The answer after a reload; any other line is the reason why there was none.
pub(crate) const RELOADED: &str = "reloaded\n";
/// Longest time for one line, which either side writes at once.
pub(crate) const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer of a launcher to `trunkline status`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) model: String,
    pub(crate) url: String,
    /// The address of `--metrics-port`, where the metrics need no key.
    pub(crate) metrics_url: Option<String>,
    /// The numbers of shards that run and that should, unless others start them.
    #[serde(default)]
    pub(crate) shards: Option<(usize, usize)>,
    pub(crate) uptime_s: u64,
}

impl Status {
    pub(crate) fn line(&self) -> String {
        // Texts and numbers always make JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// A process that waits for the outcome of a reload, or for the server's status.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Caller {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sends the outcome of a reload.
    pub(crate) fn answer(self, outcome: Result<(), &str>) {
        match outcome {
            Ok(()) => self.send(RELOADED),
            Err(reason) => self.send(&format!("{reason}\n")),
        }
    }

    /// Sends a line. The caller may be gone, which does not matter to the server.
    pub(crate) fn send(mut self, line: &str) {
        let _ = self.0.set_write_timeout(Some(LINE_TIMEOUT));
        let _ = self.0.write_all(line.as_bytes());
    }
}
