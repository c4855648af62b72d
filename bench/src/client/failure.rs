//! Why a request has no complete answer.

use std::fmt;
use std::time::Duration;

use super::event;

/// Most characters of a server's message that are shown.
const MAX_MESSAGE_CHARS: usize = 300;

/// The kinds under which failures are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No connection.
    Connect,
    /// 401 or 403.
    Unauthorized,
    /// 404.
    NotFound,
    /// 429 or 503: the server has too much to do.
    Refused,
    /// Another status from 400 to 499.
    Invalid,
    /// Another status from 500.
    Server,
    /// An event with an error in a stream.
    Error,
    /// The stream ended before its last event.
    Cut,
    /// No complete answer in time.
    Timeout,
    /// An answer that is none of the OpenAI API, or one without a token.
    Foreign,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
            Self::Server => "server",
            Self::Error => "error_event",
            Self::Cut => "cut",
            Self::Timeout => "timeout",
            Self::Foreign => "foreign",
        }
    }

    /// Returns what the user reads in the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::Connect => "no connection",
            Self::Unauthorized => "API key refused",
            Self::NotFound => "model or route not found",
            Self::Refused => "refused, server full",
            Self::Invalid => "request refused as invalid",
            Self::Server => "server error",
            Self::Error => "error within the stream",
            Self::Cut => "stream cut",
            Self::Timeout => "timeout",
            Self::Foreign => "no valid answer",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
    /// When a server that is full wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// Returns the failure of an answer with this status.
    pub fn of_status(status: u16, body: &[u8], retry_after: Option<Duration>) -> Self {
        let kind = match status {
            401 | 403 => Kind::Unauthorized,
            404 => Kind::NotFound,
            429 | 503 => Kind::Refused,
            400..=499 => Kind::Invalid,
            _ => Kind::Server,
        };
        let message = match serde_json::from_slice(body) {
            Ok(error) => event::message(&error),
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        };
        let message: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
        Self { kind, message: format!("{status} {message}").trim_end().to_owned(), retry_after }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Connect => f.write_str(&self.message),
            kind => write!(f, "{}: {}", kind.title(), self.message),
        }
    }
}
