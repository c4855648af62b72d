//! Stored responses that later requests continue with `previous_response_id`. The store is bounded and in memory.
//!
//! It holds messages and the JSON of responses, but no KV blocks. Continuing a response is cheap as long as the KV
//! cache still has the conversation's blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lru::LruCache;
use serde_json::{Map, Value};
use trunkline_text::ChatMessage;

/// The approximate memory of an entry in the index of items.
const INDEXED_ITEM_BYTES: usize = 256;
/// The approximate memory of an object's member without its name's text and its value's own memory.
const MEMBER_BYTES: usize = size_of::<Value>() + size_of::<String>() + 32;
/// The items for which a list or an object has room at least.
const MIN_ITEMS: usize = 4;

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
    /// The number of messages before the reply.
    num_input: usize,
    num_bytes: usize,
    /// The bytes of all live turns of the store and of its tenant, which it shares with them.
    counters: [Arc<AtomicUsize>; 2],
}

impl Turn {
    /// Returns the messages of the request, without those of the responses that it continues.
    pub fn input(&self) -> &[ChatMessage] {
        &self.messages[..self.num_input]
    }

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
        for counter in &self.counters {
            counter.fetch_sub(self.num_bytes, Ordering::Relaxed);
        }
        // Dropping a long conversation recursively would need a stack frame for each turn.
        let mut before = self.before.take();
        while let Some(mut turn) = before.and_then(|turn| Arc::try_unwrap(turn).ok()) {
            before = turn.before.take();
        }
    }
}

#[derive(Debug)]
struct Entry {
    turn: Arc<Turn>,
    response: StoredResponse,
}

/// The responses of one tenant.
#[derive(Debug)]
struct Owned {
    by_id: LruCache<String, Entry>,
    /// Maps the id of an output item to the id of its response.
    items: HashMap<String, String>,
    /// The bytes of all live turns of the tenant.
    num_bytes: Arc<AtomicUsize>,
}

impl Default for Owned {
    fn default() -> Self {
        // The bytes are the bound, not the number of responses.
        Self { by_id: LruCache::unbounded(), items: HashMap::new(), num_bytes: Arc::default() }
    }
}

impl Owned {
    fn insert(&mut self, entry: Entry) {
        let id = &entry.response.id;
        for item in &entry.response.item_ids {
            self.items.insert(item.clone(), id.clone());
        }
        self.by_id.put(id.clone(), entry);
    }

    fn forget_items(&mut self, entry: &Entry) {
        for item in &entry.response.item_ids {
            self.items.remove(item);
        }
    }

    fn evict_oldest(&mut self) {
        if let Some((_, oldest)) = self.by_id.pop_lru() {
            self.forget_items(&oldest);
        }
    }
}

/// The responses of each tenant; `None` without API keys. Tenants without responses have no entry.
type Owners = HashMap<Option<String>, Owned>;

/// Stores responses up to a number of bytes. Beyond that, it evicts the least recently used response of the tenant that
/// holds the most bytes, so a tenant can evict another's responses only while it holds less than the other.
#[derive(Debug)]
pub struct ResponseStore {
    owners: Mutex<Owners>,
    total: Arc<AtomicUsize>,
    max_bytes: usize,
}

impl ResponseStore {
    /// Creates a store; one of 0 bytes is disabled.
    pub fn new(max_bytes: usize) -> Self {
        Self { owners: Mutex::default(), total: Arc::default(), max_bytes }
    }

    /// Returns the bytes of all live responses: stored, or still used by a request.
    #[doc(hidden)]
    pub fn num_bytes(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    pub fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Stores a response with the turn `before` it and the messages that it adds, those of the request and the reply.
    pub fn put(
        &self,
        owner: Option<&str>,
        before: Option<Arc<Turn>>,
        mut messages: Vec<ChatMessage>,
        reply: Option<ChatMessage>,
        response: StoredResponse,
    ) {
        let num_input = messages.len();
        messages.extend(reply);
        let num_bytes = messages.iter().map(num_bytes).sum::<usize>()
            + response.json.len()
            + response.item_ids.len() * INDEXED_ITEM_BYTES;
        let mut owners = self.owners();
        let own = owners.entry(owner.map(str::to_owned)).or_default();
        let counters = [self.total.clone(), own.num_bytes.clone()];
        for counter in &counters {
            counter.fetch_add(num_bytes, Ordering::Relaxed);
        }
        let turn = Turn { before, messages, num_input, num_bytes, counters };
        own.insert(Entry { turn: Arc::new(turn), response });
        while self.total.load(Ordering::Relaxed) > self.max_bytes {
            let held = |owned: &Owned| owned.num_bytes.load(Ordering::Relaxed);
            let Some(largest) = owners.values_mut().max_by_key(|owned| held(owned)) else { break };
            largest.evict_oldest();
            owners.retain(|_, owned| !owned.by_id.is_empty());
        }
    }

    /// Returns an item of a stored response, or `None` if it is missing or another tenant's.
    pub fn item(&self, owner: Option<&str>, id: &str) -> Option<Value> {
        let response_id = self.owned(owner, |owned| owned.items.get(id).cloned())?;
        let (_, response) = self.get(owner, &response_id)?;
        let mut response: Value = serde_json::from_slice(&response.json).ok()?;
        let output = response["output"].as_array_mut()?;
        let idx = output.iter().position(|item| item["id"] == id)?;
        Some(output.swap_remove(idx))
    }

    /// Returns a response and its conversation, or `None` if it is missing or another tenant's.
    pub fn get(&self, owner: Option<&str>, id: &str) -> Option<(Arc<Turn>, StoredResponse)> {
        self.owned(owner, |owned| {
            owned.by_id.get(id).map(|entry| (entry.turn.clone(), entry.response.clone()))
        })
    }

    /// Removes a response; returns false if it is missing or another tenant's.
    pub fn remove(&self, owner: Option<&str>, id: &str) -> bool {
        let removed = self.owned(owner, |owned| {
            let removed = owned.by_id.pop(id)?;
            owned.forget_items(&removed);
            Some(removed)
        });
        removed.is_some()
    }

    /// Applies `look` to the responses of a tenant; returns `None` if it has none.
    fn owned<T>(&self, owner: Option<&str>, look: impl FnOnce(&mut Owned) -> Option<T>) -> Option<T> {
        look(self.owners().get_mut(&owner.map(str::to_owned))?)
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        // No panic can leave the entries half changed.
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the memory of a message, its JSON values included.
fn num_bytes(message: &ChatMessage) -> usize {
    size_of::<ChatMessage>()
        + message.role.len()
        + message.content.as_ref().map_or(0, String::len)
        + map_bytes(&message.extra)
}

fn map_bytes(map: &Map<String, Value>) -> usize {
    map.iter().map(|(name, value)| MEMBER_BYTES + name.len() + heap_bytes(value)).sum()
}

/// Returns the memory that a value holds beside its own size.
fn heap_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => {
            items.len().max(MIN_ITEMS) * size_of::<Value>() + items.iter().map(heap_bytes).sum::<usize>()
        }
        Value::Object(map) => MIN_ITEMS * MEMBER_BYTES + map_bytes(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
