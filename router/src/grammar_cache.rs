//! Compiled grammars that may be asked for again.

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};
use trunkline_grammar::Grammar;

use crate::limits::{MAX_CACHED_GRAMMAR_BYTES, MAX_CACHED_GRAMMARS};

/// Who asked for which grammar. Tenants do not share: from the time that an answer takes nobody learns what others ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrammarKey {
    digest: [u8; 32],
    /// Of the grammar as text.
    num_bytes: usize,
}

impl GrammarKey {
    /// `tenant`: none where there are no keys.
    pub fn new(tenant: Option<&str>, grammar: &Grammar) -> Self {
        let (kind, texts): (u8, Vec<String>) = match grammar {
            Grammar::JsonObject => (0, Vec::new()),
            Grammar::JsonSchema(schema) => (1, vec![schema.to_string()]),
            Grammar::Regex(regex) => (2, vec![regex.clone()]),
            Grammar::Choices(choices) => (3, choices.clone()),
            Grammar::Lark(text) => (4, vec![text.clone()]),
        };
        let mut hash = Sha256::new();
        hash.update([kind, u8::from(tenant.is_some())]);
        for text in tenant.into_iter().chain(texts.iter().map(String::as_str)) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        Self { digest: hash.finalize().into(), num_bytes: texts.iter().map(String::len).sum() }
    }
}

/// The least recently used goes first. Bounded by entries and by the text that they were compiled from.
#[derive(Debug)]
pub struct GrammarCache<T> {
    entries: HashMap<GrammarKey, (u64, T)>,
    by_use: BTreeMap<u64, GrammarKey>,
    num_uses: u64,
    num_bytes: usize,
}

impl<T> Default for GrammarCache<T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_use: BTreeMap::new(), num_uses: 0, num_bytes: 0 }
    }
}

impl<T: Clone> GrammarCache<T> {
    /// The grammar, which is used now.
    pub fn get(&mut self, key: &GrammarKey) -> Option<T> {
        let (used, grammar) = self.entries.get_mut(key)?;
        self.num_uses += 1;
        self.by_use.remove(used);
        *used = self.num_uses;
        self.by_use.insert(self.num_uses, *key);
        Some(grammar.clone())
    }

    /// Keeps a grammar, unless it alone is too large.
    pub fn put(&mut self, key: GrammarKey, grammar: T) {
        if key.num_bytes > MAX_CACHED_GRAMMAR_BYTES {
            return;
        }
        self.num_uses += 1;
        self.num_bytes += key.num_bytes;
        self.by_use.insert(self.num_uses, key);
        // Two requests may have compiled the same.
        if let Some((used, _)) = self.entries.insert(key, (self.num_uses, grammar)) {
            self.by_use.remove(&used);
            self.num_bytes -= key.num_bytes;
        }
        while self.entries.len() > MAX_CACHED_GRAMMARS || self.num_bytes > MAX_CACHED_GRAMMAR_BYTES {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.entries.remove(&oldest);
            self.num_bytes -= oldest.num_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(tenant: Option<&str>, text: &str) -> GrammarKey {
        GrammarKey::new(tenant, &Grammar::Regex(text.to_owned()))
    }

    #[test]
    fn tenants_and_kinds_do_not_meet() {
        let grammars = [
            Grammar::Regex("ab".into()),
            Grammar::Lark("ab".into()),
            Grammar::Choices(vec!["ab".into()]),
            Grammar::Choices(vec!["a".into(), "b".into()]),
            Grammar::JsonSchema(json!("ab")),
            Grammar::JsonObject,
        ];
        let tenants = [None, Some(""), Some("a"), Some("ab")];
        let keys =
            tenants.iter().flat_map(|tenant| grammars.iter().map(|g| GrammarKey::new(*tenant, g).digest));
        assert_eq!(keys.collect::<std::collections::BTreeSet<_>>().len(), tenants.len() * grammars.len());
    }

    #[test]
    fn members_in_another_order_are_another_grammar() {
        let key =
            |text: &str| GrammarKey::new(None, &Grammar::JsonSchema(serde_json::from_str(text).unwrap()));
        assert_ne!(key(r#"{"a": 1, "b": 2}"#), key(r#"{"b": 2, "a": 1}"#));
    }

    #[test]
    fn the_least_recently_used_goes_first_and_both_bounds_hold() {
        let mut cache = GrammarCache::default();
        for number in 0..MAX_CACHED_GRAMMARS + 1 {
            cache.put(key(None, &number.to_string()), number);
            assert_eq!(cache.get(&key(None, "0")), Some(0), "it is used");
        }
        assert_eq!(cache.get(&key(None, "1")), None);
        assert_eq!((cache.entries.len(), cache.by_use.len()), (MAX_CACHED_GRAMMARS, MAX_CACHED_GRAMMARS));
        let large = "a".repeat(MAX_CACHED_GRAMMAR_BYTES);
        cache.put(key(None, &format!("{large}a")), 7);
        assert_eq!(cache.entries.len(), MAX_CACHED_GRAMMARS, "what is too large is not kept");
        cache.put(key(None, &large), 8);
        cache.put(key(None, &large), 9);
        assert_eq!((cache.entries.len(), cache.num_bytes), (1, MAX_CACHED_GRAMMAR_BYTES));
        assert_eq!(cache.get(&key(None, &large)), Some(9));
    }
}
