//! A cache of compiled grammars.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use lru::LruCache;
use sha2::{Digest, Sha256};
use trunkline_grammar::{Grammar, JsonSchema, Strictness};

use trunkline_base::limits::{MAX_CACHED_GRAMMAR_BYTES, MAX_CACHED_GRAMMARS};

/// A tenant and a grammar. Tenants do not share entries, because response times would reveal which grammars others use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrammarKey {
    digest: [u8; 32],
    /// Equal for the grammars of one tenant.
    owner: u64,
    /// The size of the grammar's text.
    num_bytes: usize,
}

impl GrammarKey {
    /// Creates the key of a grammar. `tenant` is `None` without API keys.
    pub fn new(tenant: Option<&str>, grammar: &Grammar) -> Self {
        let (kind, texts) = kind_and_texts(grammar);
        let mut hash = Sha256::new();
        hash.update([kind, u8::from(tenant.is_some())]);
        for text in tenant.into_iter().chain(texts.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        let owner = BuildHasherDefault::<DefaultHasher>::default().hash_one(tenant);
        Self { digest: hash.finalize().into(), owner, num_bytes: texts.iter().map(String::len).sum() }
    }

    /// Returns the part of the cache that the grammar takes, which is at least that of an empty one.
    fn cost(&self) -> usize {
        self.num_bytes + MAX_CACHED_GRAMMAR_BYTES / MAX_CACHED_GRAMMARS
    }
}

/// Returns a number and texts that only equal grammars have.
fn kind_and_texts(grammar: &Grammar) -> (u8, Vec<String>) {
    match grammar {
        Grammar::JsonObject => (0, Vec::new()),
        Grammar::JsonSchema(schema) => (1, texts_of(schema).into()),
        Grammar::Regex(regex) => (2, vec![regex.clone()]),
        Grammar::Choices(choices) => (3, choices.clone()),
        Grammar::Lark(text) => (4, vec![text.clone()]),
        Grammar::StructuralTag(tag) => (6, vec![tag.text()]),
        Grammar::Call(functions) => {
            let texts = functions.iter().flat_map(|(name, schema)| {
                let [strictness, schema] = texts_of(schema);
                [name.clone(), strictness, schema]
            });
            (5, texts.collect())
        }
        Grammar::WithCalls { reply, calls } => {
            let (kind, texts) = kind_and_texts(reply);
            let mut all = vec![kind.to_string(), calls.may_repeat.to_string()];
            all.push(calls.closing_mark.unwrap_or_default().to_owned());
            for (mark, body) in &calls.forms {
                let (kind, texts) = kind_and_texts(body);
                all.extend(
                    [mark.clone(), kind.to_string(), texts.len().to_string()].into_iter().chain(texts),
                );
            }
            (7, all.into_iter().chain(texts).collect())
        }
    }
}

/// Returns texts that only equal schemas have.
fn texts_of(JsonSchema { schema, strictness }: &JsonSchema) -> [String; 2] {
    let strictness = match strictness {
        Strictness::Strict => "strict".to_owned(),
        Strictness::Relaxed => "relaxed".to_owned(),
        Strictness::StrictBelow(pointers) => serde_json::json!(pointers).to_string(),
    };
    [strictness, schema.to_string()]
}

/// A cache that evicts the least recently used grammar of the tenant that takes most of it, so that nobody evicts the
/// grammars of others by sending many. Both the number of entries and the size of their texts are bounded.
#[derive(Debug)]
pub struct GrammarCache<T> {
    entries: LruCache<GrammarKey, T>,
    num_bytes: usize,
}

impl<T> Default for GrammarCache<T> {
    fn default() -> Self {
        Self { entries: LruCache::unbounded(), num_bytes: 0 }
    }
}

impl<T: Clone> GrammarCache<T> {
    /// Returns a cached grammar and marks it as used.
    pub fn get(&mut self, key: &GrammarKey) -> Option<T> {
        self.entries.get(key).cloned()
    }

    /// Caches a grammar unless its text exceeds the cache's limit.
    pub fn put(&mut self, key: GrammarKey, grammar: T) {
        if key.num_bytes > MAX_CACHED_GRAMMAR_BYTES {
            return;
        }
        // Two requests may have compiled the same grammar.
        if self.entries.put(key, grammar).is_none() {
            self.num_bytes += key.num_bytes;
        }
        while self.entries.len() > MAX_CACHED_GRAMMARS || self.num_bytes > MAX_CACHED_GRAMMAR_BYTES {
            let Some(evicted) = self.next_evicted() else { return };
            self.entries.pop(&evicted);
            self.num_bytes -= evicted.num_bytes;
        }
    }

    fn next_evicted(&self) -> Option<GrammarKey> {
        let mut costs: HashMap<u64, usize> = HashMap::new();
        for (key, _) in &self.entries {
            *costs.entry(key.owner).or_default() += key.cost();
        }
        let mut evicted = None;
        let mut most = 0;
        // The least recently used comes first.
        for (key, _) in self.entries.iter().rev() {
            let cost = costs.get(&key.owner).copied().unwrap_or_default();
            if cost > most {
                (evicted, most) = (Some(*key), cost);
            }
        }
        evicted
    }
}
