//! What goes wrong between a terminal and a server.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no answer from `{url}`: {source}; hint: check that the server is running, for example with `trunkline status`"
    )]
    Away {
        url: String,
        #[source]
        source: Box<ureq::Error>,
    },
    /// The launcher knows what is wrong with the certificate.
    #[error("{0}")]
    Untrusted(String),
    #[error("`{url}` requires a valid API key; hint: put it into the variable `TRUNKLINE_API_KEY`")]
    Unauthorized { url: String },
    /// The server does not do what was asked for.
    #[error("`{url}` answered {status}: {message}")]
    Refused { url: String, status: u16, message: String },
    /// The stream ended with an error.
    #[error("`{url}` gave up: {message}")]
    Failed { url: String, message: String },
    #[error("the connection to `{url}` was lost after {received} characters of the reply: {reason}")]
    Lost { url: String, received: usize, reason: String },
    #[error("`{url}` did not answer like an OpenAI server: {problem}; hint: check the address")]
    Foreign { url: String, problem: String },
    #[error("cannot {what} `{}`: {source}", path.display())]
    File {
        /// What was tried, to follow "cannot".
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{what} `{}` is not usable: {problem}", path.display())]
    Content {
        /// The purpose of the file.
        what: &'static str,
        path: PathBuf,
        problem: String,
    },
    #[error("{0}")]
    Usage(String),
    #[error("cannot start `trunkline serve`: {0}")]
    Start(#[source] io::Error),
    /// The server that was started for the command has ended before it was ready.
    #[error("{reason}")]
    Ended {
        reason: String,
        /// The exit code of the server.
        code: i32,
    },
    #[error("cannot use the terminal: {0}")]
    Terminal(#[source] io::Error),
    #[error("cannot write the answer: {0}")]
    Output(#[source] io::Error),
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// Returns true if the server will refuse the same request again.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { status: 400..=499, .. } | Self::Unauthorized { .. })
            && !matches!(self, Self::Refused { status: 408 | 429, .. })
    }

    /// Returns true if the user gave something that cannot work.
    pub fn is_users_mistake(&self) -> bool {
        matches!(
            self,
            Self::Untrusted(_)
                | Self::Unauthorized { .. }
                | Self::Usage(_)
                | Self::File { .. }
                | Self::Content { .. }
        )
    }
}
