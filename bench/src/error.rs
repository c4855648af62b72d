//! The errors that end `trunkline bench`, and their exit codes.

use std::io;

use crate::client::error::ClientError;
use crate::client::failure::{Failure, Kind};
use crate::workload::WorkloadError;

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{message}")]
    Usage { message: String },
    #[error("the variable `{variable}` named by `--api-key-env` {problem}; hint: export it with the API key")]
    Key { variable: String, problem: &'static str },
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The first request to a server failed.
    #[error("`{url}` cannot be measured: {failure}{}", hint(failure))]
    Server { url: String, failure: Failure },
    #[error("`{url}` lists no model; hint: name one with `--model`")]
    NoModel { url: String },
    #[error("cannot {what} `{file}`: {source}")]
    File {
        what: &'static str,
        file: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "`{file}` is no result of `trunkline bench`: {problem}; hint: give a file that `--json` has written"
    )]
    NoReport { file: String, problem: String },
    #[error("cannot {what}: {source}")]
    System {
        /// The failed action, to follow "cannot".
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl BenchError {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into() }
    }

    /// Returns true if the user can mend it by other arguments.
    pub fn is_users_mistake(&self) -> bool {
        match self {
            Self::Server { failure, .. } => {
                matches!(failure.kind, Kind::Unauthorized | Kind::NotFound | Kind::Invalid)
            }
            Self::System { .. } | Self::NoModel { .. } => false,
            _ => true,
        }
    }
}

/// Returns what to try, to follow the failure; nothing if the server has said it.
fn hint(failure: &Failure) -> String {
    if failure.message.contains("hint: ") {
        return String::new();
    }
    let hint = match failure.kind {
        Kind::Connect => "check that the server is running and that its address is right",
        Kind::Unauthorized => {
            "put the API key into TRUNKLINE_API_KEY, or name its variable with `--api-key-env`"
        }
        Kind::NotFound => "see the names in `/v1/models`, and `--model` and `--endpoint`",
        Kind::Refused => "wait until the server has less to do",
        Kind::Invalid => {
            "a server that does not know `ignore_eos` needs `--stop-early`; `--extra-body` changes other fields"
        }
        Kind::Server | Kind::Error | Kind::Cut => "see the server's log",
        Kind::Timeout => "raise `--timeout`",
        Kind::Foreign => "check that the server speaks the OpenAI API, and try `--endpoint chat`",
    };
    format!("; hint: {hint}")
}
