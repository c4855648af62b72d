use std::hint::black_box;
use std::time::Instant;

use trunkline_base::tenants::key_ring::{
    DuplicateKey, KeyRing, MAX_KEY_BYTES, MIN_KEY_BYTES, Tenant, digest, key_problem,
};

/// Enough keys that a search that ends at the right one is many times shorter.
const NUM_KEYS: usize = 4096;
const KEY: &str = "sk-0123456789abcdef";

fn ring() -> KeyRing {
    let mut ring = KeyRing::default();
    for (index, name) in ["alice", "bob"].into_iter().enumerate() {
        let tenant = ring.add_tenant(Tenant::new(name));
        assert_eq!(tenant, index);
        ring.add_key(digest(format!("{KEY}-{name}").as_bytes()), tenant).unwrap();
    }
    ring
}

#[test]
fn a_key_finds_its_tenant_and_nothing_else_does() {
    let ring = ring();
    let name = |key: &str| ring.find(key.as_bytes()).map(|tenant| tenant.name.clone());
    assert_eq!(name(&format!("{KEY}-alice")).as_deref(), Some("alice"));
    assert_eq!(name(&format!("{KEY}-bob")).as_deref(), Some("bob"));
    for key in ["", KEY, &format!("{KEY}-alic"), &format!("{KEY}-alicee"), &format!("{KEY}-Alice")] {
        assert_eq!(name(key), None, "{key}");
    }
}

#[test]
fn a_key_has_one_tenant() {
    let mut ring = ring();
    assert_eq!(ring.add_key(digest(format!("{KEY}-alice").as_bytes()), 1), Err(DuplicateKey));
}

#[test]
fn debug_output_shows_no_key_and_no_digest() {
    let text = format!("{:?}", ring());
    assert!(text.contains("alice") && text.contains("num_keys: 2"), "{text}");
    assert!(!text.contains(KEY) && !text.contains("digests"), "{text}");
}

#[test]
fn keys_must_be_long_enough_and_fit_in_a_header() {
    assert_eq!(key_problem(&"x".repeat(MIN_KEY_BYTES)), None);
    assert_eq!(key_problem(&"x".repeat(MAX_KEY_BYTES)), None);
    for key in
        ["x".repeat(MIN_KEY_BYTES - 1), "x".repeat(MAX_KEY_BYTES + 1), format!("{KEY} "), format!("{KEY}é")]
    {
        let problem = key_problem(&key).unwrap();
        assert!(!problem.contains(&key), "{problem}");
    }
}

#[test]
fn the_time_of_a_search_does_not_tell_whether_a_key_exists() {
    let mut ring = KeyRing::default();
    let tenant = ring.add_tenant(Tenant::new("alice"));
    let key = |index: usize| format!("{KEY}-{index}");
    for index in 0..NUM_KEYS {
        ring.add_key(digest(key(index).as_bytes()), tenant).unwrap();
    }
    let keys = [0, NUM_KEYS / 2, NUM_KEYS - 1, NUM_KEYS].map(key);
    assert_eq!(keys.each_ref().map(|key| ring.find(key.as_bytes()).is_some()), [true, true, true, false]);
    // The shortest of many times has the least of what other threads do.
    let shortest = keys.each_ref().map(|key| {
        let times = (0..100).map(|_| {
            let begin = Instant::now();
            black_box(ring.find(black_box(key.as_bytes())));
            begin.elapsed()
        });
        times.min().unwrap_or_default()
    });
    let longest = shortest.iter().max().unwrap();
    assert!(shortest.iter().all(|time| *time * 2 > *longest), "{shortest:?}");
}
