//! Ollama's API: <https://docs.ollama.com/api>. Its route for vectors is in `vectors`.

pub mod answer;
mod body;
pub mod chat;
pub mod delete;
mod error;
pub mod generate;
pub mod keep_alive;
mod messages;
pub mod models;
pub mod options;
pub mod pull;
pub mod think;
mod writer;

pub use error::ErrorResponse;

/// The tag that a name without one has.
const LATEST: &str = ":latest";

/// Returns a name without the tag that every name has by default.
pub(crate) fn untagged(name: &str) -> &str {
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// Returns a name with its tag.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') { name.to_owned() } else { format!("{name}{LATEST}") }
}
