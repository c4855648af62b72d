//! The interface of a history of conversations. `trunkline-history` keeps one in a database.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// The history of a server. It is set before the first request, if there is one, and never changes then.
pub type HistorySlot = Arc<OnceLock<Arc<dyn History>>>;

/// A conversation in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    pub title: String,
    /// The time at which it was created, in milliseconds since 1970.
    pub created: u64,
    /// The time of the last change, in milliseconds since 1970.
    pub updated: u64,
    /// The bytes that it counts towards its owner's limit.
    pub num_bytes: u64,
}

/// Part of a list of conversations, those changed last first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub listed: Vec<Listed>,
    pub has_more: bool,
}

/// The choice of conversations for a list.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only conversations whose title or one of whose turns contains all words.
    pub words: Vec<String>,
    /// Only conversations after the one with this id.
    pub after: Option<String>,
    pub limit: usize,
}

/// A whole conversation. Its parts are JSON objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    pub listed: Listed,
    pub details: String,
    /// The turns by their ids.
    pub turns: Vec<(String, String)>,
}

/// A change of a conversation. What it does not name stays.
#[derive(Debug, Clone, Default)]
pub struct Change {
    pub title: Option<String>,
    pub details: Option<String>,
    /// Turns to write, or to remove where there is no text.
    pub turns: Vec<(String, Option<String>)>,
}

/// Whether a change replaces a conversation or adds to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The conversation becomes what the change says, and is created if there is none.
    Replace,
    /// The conversation must exist.
    Update,
}

#[derive(Debug)]
pub enum StoreError {
    /// The owner has no conversation with this id.
    Unknown,
    /// The owner's conversations would take more than this limit, in bytes.
    Full { limit: u64 },
    /// The store failed. The text is for the log.
    Failed(String),
}

/// Keeps conversations by owners, which see their own only. All functions may block on the disk.
pub trait History: Debug + Send + Sync {
    /// Returns a number that grows with each change of the owner's conversations.
    fn version(&self, owner: &str) -> Result<u64, StoreError>;

    fn list(&self, owner: &str, selection: &Selection) -> Result<Page, StoreError>;

    /// Returns what a conversation counts of the limit, which is at least its size.
    fn num_bytes(&self, owner: &str, id: &str) -> Result<u64, StoreError>;

    fn get(&self, owner: &str, id: &str) -> Result<Conversation, StoreError>;

    /// Makes all of a change or, if it fails, nothing of it.
    fn change(&self, owner: &str, id: &str, mode: Mode, change: &Change) -> Result<Listed, StoreError>;

    fn remove(&self, owner: &str, id: &str) -> Result<(), StoreError>;
}
