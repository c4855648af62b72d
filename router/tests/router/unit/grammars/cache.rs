use std::collections::HashSet;

use serde_json::{Value, json};
use trunkline_base::limits::{MAX_CACHED_GRAMMAR_BYTES, MAX_CACHED_GRAMMARS};
use trunkline_generation::grammars::cache::{GrammarCache, GrammarKey};
use trunkline_grammar::{Grammar, JsonSchema};

fn key(tenant: Option<&str>, text: &str) -> GrammarKey {
    GrammarKey::new(tenant, &Grammar::Regex(text.to_owned()))
}

#[test]
fn keys_differ_by_tenant_and_kind() {
    let grammars = [
        Grammar::Regex("ab".into()),
        Grammar::Lark("ab".into()),
        Grammar::Choices(vec!["ab".into()]),
        Grammar::Choices(vec!["a".into(), "b".into()]),
        Grammar::JsonSchema(json!("ab").into()),
        Grammar::JsonSchema(JsonSchema::new(json!("ab"), false)),
        Grammar::JsonObject,
    ];
    let tenants = [None, Some(""), Some("a"), Some("ab")];
    let keys = tenants.iter().flat_map(|tenant| grammars.iter().map(|g| GrammarKey::new(*tenant, g)));
    assert_eq!(keys.collect::<HashSet<_>>().len(), tenants.len() * grammars.len());
}

#[test]
fn the_order_of_members_is_part_of_the_key() {
    let key = |text: &str| {
        GrammarKey::new(None, &Grammar::JsonSchema(serde_json::from_str::<Value>(text).unwrap().into()))
    };
    assert_ne!(key(r#"{"a": 1, "b": 2}"#), key(r#"{"b": 2, "a": 1}"#));
}

#[test]
fn the_least_recently_used_grammar_is_evicted_at_either_bound() {
    let mut cache = GrammarCache::default();
    for number in 0..MAX_CACHED_GRAMMARS + 1 {
        cache.put(key(None, &number.to_string()), number);
        assert_eq!(cache.get(&key(None, "0")), Some(0), "it is used");
    }
    let kept = |cache: &mut GrammarCache<usize>| {
        (0..=MAX_CACHED_GRAMMARS)
            .filter(|number| cache.get(&key(None, &number.to_string())).is_some())
            .count()
    };
    assert_eq!(cache.get(&key(None, "1")), None);
    assert_eq!(kept(&mut cache), MAX_CACHED_GRAMMARS);
    let large = "a".repeat(MAX_CACHED_GRAMMAR_BYTES);
    cache.put(key(None, &format!("{large}a")), 7);
    assert_eq!(
        cache.get(&key(None, &format!("{large}a"))),
        None,
        "a grammar that is too large is not cached"
    );
    assert_eq!(kept(&mut cache), MAX_CACHED_GRAMMARS);
    // A grammar that two requests compiled at the same time is counted once.
    cache.put(key(None, &large), 8);
    cache.put(key(None, &large), 9);
    assert_eq!((kept(&mut cache), cache.get(&key(None, &large))), (0, Some(9)));
}

#[test]
fn a_tenant_that_fills_the_cache_evicts_only_its_own_grammars() {
    // Many small grammars reach one bound, a few large ones the other.
    for (num_grammars, num_bytes) in [(4 * MAX_CACHED_GRAMMARS, 8), (16, MAX_CACHED_GRAMMAR_BYTES / 4)] {
        let mut cache = GrammarCache::default();
        let ours = ["a", "b", "c"].map(|text| key(Some("calm"), text));
        ours.iter().for_each(|key| cache.put(*key, 0));
        let theirs = |number: usize| key(Some("flood"), &format!("{number}{}", "x".repeat(num_bytes)));
        (0..num_grammars).for_each(|number| cache.put(theirs(number), number));
        assert!(ours.iter().all(|key| cache.get(key).is_some()), "{num_grammars} of {num_bytes} bytes");
        assert!(cache.get(&theirs(num_grammars - 1)).is_some(), "the other tenant has a share, too");
    }
}
