//! Stored responses that later requests continue with `previous_response_id`. The store is bounded and in memory.
//!
//! It holds messages and the JSON of responses, but no KV blocks. Continuing a response is cheap as long as the KV
//! cache still has the conversation's blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lru::LruCache;
use serde_json::Value;
use trunkline_text::ChatMessage;

/// The approximate memory of an entry in the index of items.
const INDEXED_ITEM_BYTES: usize = 256;

#[derive(Debug, Clone)]
pub struct StoredResponse {
    pub id: String,
    /// The ids of its output items.
    pub item_ids: Vec<String>,
    /// The response as JSON. Cheap to clone.
    pub json: Bytes,
}

/// The messages that one request added to a conversation: its input and the reply. Conversations that continue the same
/// response share its earlier turns.
#[derive(Debug)]
pub struct Turn {
    before: Option<Arc<Turn>>,
    messages: Vec<ChatMessage>,
    num_bytes: usize,
    /// The bytes of all live turns of the store, shared with the store.
    total: Arc<AtomicUsize>,
}

impl Turn {
    /// Returns all messages of the conversation up to this turn, oldest first. O(conversation).
    pub fn conversation(&self) -> Vec<ChatMessage> {
        let mut turns = vec![self];
        while let Some(before) = turns.last().and_then(|turn| turn.before.as_deref()) {
            turns.push(before);
        }
        turns.into_iter().rev().flat_map(|turn| turn.messages.iter().cloned()).collect()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.total.fetch_sub(self.num_bytes, Ordering::Relaxed);
        // Dropping a long conversation recursively would need a stack frame for each turn.
        let mut before = self.before.take();
        while let Some(mut turn) = before.and_then(|turn| Arc::try_unwrap(turn).ok()) {
            before = turn.before.take();
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// The tenant that owns the response; `None` without API keys.
    owner: Option<String>,
    turn: Arc<Turn>,
    response: StoredResponse,
}

#[derive(Debug)]
struct Entries {
    by_id: LruCache<String, Entry>,
    /// Maps the id of an output item to the id of its response.
    items: HashMap<String, String>,
}

impl Entries {
    fn insert(&mut self, id: String, entry: Entry) {
        for item in &entry.response.item_ids {
            self.items.insert(item.clone(), id.clone());
        }
        self.by_id.put(id, entry);
    }

    fn get(&mut self, owner: Option<&str>, id: &str) -> Option<(Arc<Turn>, StoredResponse)> {
        if !self.is_owned(owner, id) {
            return None;
        }
        self.by_id.get(id).map(|entry| (entry.turn.clone(), entry.response.clone()))
    }

    fn is_owned(&self, owner: Option<&str>, id: &str) -> bool {
        self.by_id.peek(id).is_some_and(|entry| entry.owner.as_deref() == owner)
    }

    fn forget_items(&mut self, entry: &Entry) {
        for item in &entry.response.item_ids {
            self.items.remove(item);
        }
    }
}

/// Stores responses up to a number of bytes and evicts the least recently used ones.
#[derive(Debug)]
pub struct ResponseStore {
    entries: Mutex<Entries>,
    total: Arc<AtomicUsize>,
    max_bytes: usize,
}

impl ResponseStore {
    /// Creates a store; one of 0 bytes is disabled.
    pub fn new(max_bytes: usize) -> Self {
        // The bytes are the bound, not the number of responses.
        let entries = Entries { by_id: LruCache::unbounded(), items: HashMap::new() };
        Self { entries: Mutex::new(entries), total: Arc::default(), max_bytes }
    }

    /// Returns the bytes of all live responses: stored, or still used by a request.
    #[doc(hidden)]
    pub fn num_bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    pub fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Stores a response with the turn `before` it and the messages that it adds.
    pub fn put(
        &self,
        owner: Option<&str>,
        before: Option<Arc<Turn>>,
        messages: Vec<ChatMessage>,
        response: StoredResponse,
    ) {
        let id = response.id.clone();
        let num_bytes = messages.iter().map(num_bytes).sum::<usize>()
            + response.json.len()
            + response.item_ids.len() * INDEXED_ITEM_BYTES;
        self.total.fetch_add(num_bytes, Ordering::Relaxed);
        let turn = Arc::new(Turn { before, messages, num_bytes, total: self.total.clone() });
        let mut entries = self.entries();
        entries.insert(id, Entry { owner: owner.map(str::to_owned), turn, response });
        while self.total.load(Ordering::Relaxed) > self.max_bytes {
            let Some((_, oldest)) = entries.by_id.pop_lru() else { break };
            entries.forget_items(&oldest);
        }
    }

    /// Returns an item of a stored response, or `None` if it is missing or another tenant's.
    pub fn item(&self, owner: Option<&str>, id: &str) -> Option<Value> {
        let mut entries = self.entries();
        let response_id = entries.items.get(id)?.clone();
        let (_, response) = entries.get(owner, &response_id)?;
        drop(entries);
        let mut response: Value = serde_json::from_slice(&response.json).ok()?;
        let output = response["output"].as_array_mut()?;
        let idx = output.iter().position(|item| item["id"] == id)?;
        Some(output.swap_remove(idx))
    }

    /// Returns a response and its conversation, or `None` if it is missing or another tenant's.
    pub fn get(&self, owner: Option<&str>, id: &str) -> Option<(Arc<Turn>, StoredResponse)> {
        self.entries().get(owner, id)
    }

    /// Removes a response; returns false if it is missing or another tenant's.
    pub fn remove(&self, owner: Option<&str>, id: &str) -> bool {
        let mut entries = self.entries();
        if !entries.is_owned(owner, id) {
            return false;
        }
        let removed = entries.by_id.pop(id);
        removed.inspect(|entry| entries.forget_items(entry)).is_some()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // No panic can leave the entries half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn num_bytes(message: &ChatMessage) -> usize {
    let extra: usize = message.extra.iter().map(|(name, value)| name.len() + value.to_string().len()).sum();
    size_of::<ChatMessage>() + message.role.len() + message.content.as_ref().map_or(0, String::len) + extra
}
