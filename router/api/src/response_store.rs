//! Stored responses that later requests continue with `previous_response_id`. The store is bounded and in memory.
//!
//! It holds messages and the JSON of responses, but no KV blocks. Continuing a response is cheap as long as the KV
//! cache still has the conversation's blocks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use lru::LruCache;
use trunkline_text::ChatMessage;

use super::message_size::Size;
use trunkline_base::limits::INLINE_FREED_BYTES;

/// The approximate memory of an entry in the index of items.
const INDEXED_ITEM_BYTES: usize = 256;
#[derive(Debug, Clone)]
pub struct StoredResponse {
    pub id: String,
    /// The response as JSON. Cheap to clone.
    pub json: Bytes,
    /// The ids and the JSON of its output items, so that a reference to an item reads no other part of the response.
    pub items: Vec<(String, Bytes)>,
}

impl StoredResponse {
    fn num_bytes(&self) -> usize {
        let items = self.items.iter().map(|(_, json)| INDEXED_ITEM_BYTES + json.len());
        self.json.len() + items.sum::<usize>()
    }
}

/// Messages with their size.
#[derive(Debug, Default)]
pub struct Messages {
    list: Vec<ChatMessage>,
    size: Size,
}

impl Messages {
    pub fn list(&self) -> &[ChatMessage] {
        &self.list
    }
}

impl From<Vec<ChatMessage>> for Messages {
    fn from(list: Vec<ChatMessage>) -> Self {
        let mut size = Size::default();
        list.iter().for_each(|message| size += Size::of(message));
        Self { list, size }
    }
}

/// The messages that one request added to a conversation: its input and the reply. Conversations that continue the same
/// response share its earlier turns.
///
/// A turn lives as long as the store or a request refers to it. The store counts its bytes only while it holds the turn
/// itself; a request is charged for the conversation that it continues.
#[derive(Debug)]
pub struct Turn {
    before: Option<Arc<Turn>>,
    input: Messages,
    reply: Messages,
    /// The size of the conversation up to this turn.
    size: Size,
    /// The responses and later turns in the store that hold this turn. It changes only under the store's lock.
    num_holders: AtomicUsize,
}

impl Turn {
    fn new(before: Option<Arc<Self>>, input: Messages, reply: Messages) -> Self {
        let mut size = before.as_ref().map(|before| before.size).unwrap_or_default();
        size += input.size;
        size += reply.size;
        Self { before, input, reply, size, num_holders: AtomicUsize::new(0) }
    }

    /// Returns the messages of the request, without those of the responses that it continues.
    pub fn input(&self) -> &[ChatMessage] {
        &self.input.list
    }

    /// Returns the size of the conversation up to this turn.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Iterates over the turns of the conversation, newest first.
    fn turns(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |turn| turn.before.as_deref())
    }

    /// Returns all messages of the conversation up to this turn, oldest first. O(conversation).
    pub fn conversation(&self) -> Vec<ChatMessage> {
        let mut messages = Vec::with_capacity(self.size.num_messages);
        let turns: Vec<&Self> = self.turns().collect();
        for turn in turns.into_iter().rev() {
            messages.extend(turn.input.list.iter().chain(&turn.reply.list).cloned());
        }
        messages
    }

    /// Takes everything out that takes time to be freed.
    fn take(&mut self) -> (Option<Arc<Self>>, [Messages; 2]) {
        (self.before.take(), [std::mem::take(&mut self.input), std::mem::take(&mut self.reply)])
    }

    /// Returns the bytes of the turn itself.
    fn num_bytes(&self) -> usize {
        size_of::<Self>() + self.input.size.num_bytes + self.reply.size.num_bytes
    }

    /// Lets the store hold the conversation once more. Returns the bytes of the turns that it did not hold before.
    fn hold(&self) -> usize {
        let fresh = self.turns().take_while(|turn| turn.num_holders.fetch_add(1, Ordering::Relaxed) == 0);
        fresh.map(Self::num_bytes).sum()
    }

    /// Undoes one [`Self::hold`]. Returns the bytes of the turns that the store no longer holds.
    fn release(&self) -> usize {
        let freed = self.turns().take_while(|turn| turn.num_holders.fetch_sub(1, Ordering::Relaxed) == 1);
        freed.map(Self::num_bytes).sum()
    }
}

impl Drop for Turn {
    /// Frees a long conversation on the blocking pool, because that can take as long as copying it.
    fn drop(&mut self) {
        if self.before.is_none() && self.input.list.is_empty() && self.reply.list.is_empty() {
            return;
        }
        let parts = self.take();
        let free = move || {
            let mut parts = parts;
            // Dropping the turns recursively would need a stack frame for each.
            while let Some(mut turn) = parts.0.take().and_then(Arc::into_inner) {
                parts = turn.take();
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if self.size.num_bytes > INLINE_FREED_BYTES => drop(runtime.spawn_blocking(free)),
            _ => free(),
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
    /// Maps the id of an output item to the id of its response and the item's JSON.
    items: HashMap<String, (String, Bytes)>,
    /// The bytes of the responses and of the turns that they hold.
    num_bytes: usize,
}

impl Default for Owned {
    fn default() -> Self {
        // The bytes are the bound, not the number of responses.
        Self { by_id: LruCache::unbounded(), items: HashMap::new(), num_bytes: 0 }
    }
}

impl Owned {
    fn insert(&mut self, entry: Entry) {
        let id = &entry.response.id;
        for (item_id, json) in &entry.response.items {
            self.items.insert(item_id.clone(), (id.clone(), json.clone()));
        }
        self.num_bytes += entry.response.num_bytes() + entry.turn.hold();
        self.by_id.put(id.clone(), entry);
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.by_id.pop(id)?;
        self.forget(&entry);
        Some(entry)
    }

    fn evict_oldest(&mut self) -> Option<Entry> {
        let (_, entry) = self.by_id.pop_lru()?;
        self.forget(&entry);
        Some(entry)
    }

    fn forget(&mut self, entry: &Entry) {
        for (item_id, _) in &entry.response.items {
            self.items.remove(item_id);
        }
        self.num_bytes -= entry.response.num_bytes() + entry.turn.release();
    }
}

/// The responses of each tenant; `None` without API keys. Tenants without responses have no entry.
type Owners = HashMap<Option<String>, Owned>;

/// Stores responses up to a number of bytes.
///
/// Beyond that, it evicts the least recently used response of the tenant that holds the most bytes, which is more than
/// an equal share of them. So a tenant that holds no more than its share loses nothing because others store more, and
/// one can use what the others leave free.
#[derive(Debug)]
pub struct ResponseStore {
    owners: Mutex<Owners>,
    max_bytes: usize,
}

impl ResponseStore {
    /// Creates a store; one of 0 bytes is disabled.
    pub fn new(max_bytes: usize) -> Self {
        Self { owners: Mutex::default(), max_bytes }
    }

    /// Returns the bytes of all stored responses and of their conversations.
    pub fn num_bytes(&self) -> usize {
        total(&self.owners())
    }

    pub fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Stores a response with the turn `before` it and the messages that it adds, those of the request and the reply.
    pub fn put(
        &self,
        owner: Option<&str>,
        before: Option<Arc<Turn>>,
        input: Messages,
        reply: Messages,
        response: StoredResponse,
    ) {
        let turn = Arc::new(Turn::new(before, input, reply));
        // Declared before the lock, so that the evicted responses are dropped after it is released.
        let mut evicted = Vec::new();
        let mut owners = self.owners();
        owners.entry(owner.map(str::to_owned)).or_default().insert(Entry { turn, response });
        while total(&owners) > self.max_bytes {
            let largest = owners.values_mut().max_by_key(|owned| owned.num_bytes);
            let Some(entry) = largest.and_then(Owned::evict_oldest) else { break };
            evicted.push(entry);
            owners.retain(|_, owned| !owned.by_id.is_empty());
        }
    }

    /// Returns the JSON of an output item of a stored response, or `None` if it is missing or another tenant's.
    pub fn item(&self, owner: Option<&str>, id: &str) -> Option<Bytes> {
        self.owned(owner, |owned| {
            let (response_id, json) = owned.items.get(id)?;
            owned.by_id.promote(response_id);
            Some(json.clone())
        })
    }

    /// Returns a response and its conversation, or `None` if it is missing or another tenant's.
    pub fn get(&self, owner: Option<&str>, id: &str) -> Option<(Arc<Turn>, Bytes)> {
        self.owned(owner, |owned| {
            owned.by_id.get(id).map(|entry| (entry.turn.clone(), entry.response.json.clone()))
        })
    }

    /// Like [`Self::get`], but does not count as a use.
    pub fn peek(&self, owner: Option<&str>, id: &str) -> Option<(Arc<Turn>, Bytes)> {
        self.owned(owner, |owned| {
            owned.by_id.peek(id).map(|entry| (entry.turn.clone(), entry.response.json.clone()))
        })
    }

    /// Removes a response; returns false if it is missing or another tenant's.
    pub fn remove(&self, owner: Option<&str>, id: &str) -> bool {
        let removed = self.owned(owner, |owned| owned.remove(id));
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

fn total(owners: &Owners) -> usize {
    owners.values().map(|owned| owned.num_bytes).sum()
}
