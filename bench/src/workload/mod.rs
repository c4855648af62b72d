//! What is asked: sessions of one turn or several, each a pure function of the workload and the session's number.

mod files;
mod length;
mod made;
pub mod text;
mod trace;

use std::time::Duration;

use serde_json::{Map, Value};

pub use self::files::{Listed, prompts, sharegpt};
pub use self::length::Length;
pub use self::made::{Made, Prefixes};
pub use self::text::Scale;
pub use self::trace::{Trace, TraceForm, trace};

/// A part of a prompt: so many tokens, drawn from a seed. Equal pieces are equal text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub seed: u64,
    pub tokens: u32,
}

/// What a turn adds to its conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Pieces(Vec<Piece>),
    Text(String),
    /// Messages of a chat, as they are.
    Messages(Vec<Value>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Time between the answer before and this turn, such as that of a tool.
    pub pause: Duration,
    pub content: Content,
    pub output_tokens: u32,
    /// Fields of the body, which replace others.
    pub extra: Map<String, Value>,
}

/// A conversation: each turn comes after the answer to the one before, and its prompt begins with all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub turns: Vec<Turn>,
}

/// The sessions of a run.
#[derive(Clone, Debug)]
pub enum Workload {
    Made(Made),
    Listed(Listed),
    Trace(Trace),
}

impl Workload {
    /// Returns session `number`. Workloads of a file begin again at its end.
    pub fn session(&self, number: u64) -> Session {
        match self {
            Self::Made(made) => made.session(number),
            Self::Listed(listed) => listed.session(number),
            Self::Trace(trace) => trace.session(number),
        }
    }

    /// Returns the number of sessions of a file.
    pub fn num_sessions(&self) -> Option<u64> {
        match self {
            Self::Made(_) => None,
            Self::Listed(listed) => Some(listed.num_sessions()),
            Self::Trace(trace) => Some(trace.num_sessions()),
        }
    }

    /// Returns the number of requests of each session.
    pub fn turns(&self) -> u64 {
        match self {
            Self::Made(made) => u64::from(made.turns),
            Self::Listed(_) | Self::Trace(_) => 1,
        }
    }
}

/// A file of prompts or a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error("cannot read `{file}`: {source}")]
    Unreadable {
        file: String,
        #[source]
        source: std::io::Error,
    },
    #[error("line {line} of `{file}` {problem}; hint: {hint}")]
    Line { file: String, line: usize, problem: String, hint: &'static str },
    #[error("`{file}` {problem}; hint: {hint}")]
    File { file: String, problem: String, hint: &'static str },
}

/// Reads a file, or the standard input for `-`.
fn read(file: &str) -> Result<String, WorkloadError> {
    let text =
        if file == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    text.map_err(|source| WorkloadError::Unreadable { file: file.to_owned(), source })
}
