//! A process that asked over the socket in the private folder and waits for the answer.

use std::fmt;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The answer after what a caller asked for was done; any other line is the reason why it was not.
pub(crate) const DONE: &str = "done\n";
/// Longest time for one line, which either side writes at once.
pub(crate) const LINE_TIMEOUT: Duration = Duration::from_secs(1);

/// The word with which `trunkline lanes` asks for something of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneWord {
    Drain,
    Add,
}

impl LaneWord {
    pub(crate) fn of(word: &str) -> Option<Self> {
        [Self::Drain, Self::Add].into_iter().find(|own| own.as_str() == word)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Add => "add",
        }
    }
}

/// The answer of a launcher to `trunkline status`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) url: String,
    /// The address of `--metrics-port`, where the metrics need no key.
    pub(crate) metrics_url: Option<String>,
    /// The numbers of shards that run and that should, unless others start them.
    #[serde(default)]
    pub(crate) shards: Option<(usize, usize)>,
    pub(crate) uptime_s: u64,
    /// All models, of which the first is the default.
    #[serde(default)]
    pub(crate) models: Vec<Served>,
}

/// A model in the answer to `trunkline status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Served {
    pub(crate) name: String,
    /// The Hub id, or what the model is called by itself.
    pub(crate) model_id: String,
    pub(crate) path: PathBuf,
    /// Its lanes, in order.
    pub(crate) lanes: Vec<Lane>,
}

/// A lane in the answer to `trunkline status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    /// The process id of the shard, if it runs and the launcher has started it.
    pub(crate) pid: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LaneState {
    Serves,
    Starts,
    /// The shard has crashed and is started again.
    Restarts,
    /// A shard of the old settings still has the lane's place.
    Waits,
    Drains,
    Drained,
    /// The model is not in memory.
    Unloaded,
    /// The shard crashed too often.
    GivenUp,
    /// Others start the shard, of which the launcher knows nothing.
    Elsewhere,
}

impl fmt::Display for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serves => "serves",
            Self::Starts => "starts",
            Self::Restarts => "restarts",
            Self::Waits => "waits for the old shard",
            Self::Drains => "drains",
            Self::Drained => "drained",
            Self::Unloaded => "unloaded",
            Self::GivenUp => "given up",
            Self::Elsewhere => "started by others",
        })
    }
}

impl Status {
    pub(crate) fn line(&self) -> String {
        // Texts and numbers always make JSON.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

/// A process that waits for the outcome of what it asked for, or for the server's status.
#[derive(Debug)]
pub struct Caller(UnixStream);

impl Caller {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Tells the caller whether what it asked for was done.
    pub(crate) fn answer(self, outcome: Result<(), &str>) {
        match outcome {
            Ok(()) => self.send(DONE),
            Err(reason) => self.send(&format!("{reason}\n")),
        }
    }

    /// Sends a line. The caller may be gone, which does not matter to the server.
    pub(crate) fn send(mut self, line: &str) {
        let _ = self.0.set_write_timeout(Some(LINE_TIMEOUT));
        let _ = self.0.write_all(line.as_bytes());
    }
}
