//! Salts and their root keys.

use std::collections::BTreeSet;

use trunkline_contract::BlockKey;
use trunkline_kv::{AdapterHash, Salt, SaltAdapter};

#[test]
fn root_keys_without_an_adapter_never_change() {
    // Blocks on disk and in object stores are found by these keys.
    let root = |parts: &[&str]| BlockKey::root(parts.iter().copied());
    assert_eq!(Salt::default().root_key(), root(&[]));
    assert_eq!(Salt::default().with_cache_salt("s").root_key(), root(&["s"]));
    assert_eq!(Salt::of_tenant("t").root_key(), root(&["tenant", "t"]));
    assert_eq!(Salt::of_tenant("t").with_cache_salt("s").root_key(), root(&["tenant", "t", "s"]));
}

#[test]
fn no_salt_forges_the_key_of_another() {
    let hex = "00".repeat(32);
    let texts = ["", "tenant", "adapter", "a", "b", "ab", &hex].map(Some);
    let texts = || texts.iter().copied().chain([None]).map(|text| text.map(Into::into));
    let named = |byte, name: &str| SaltAdapter { hash: AdapterHash([byte; 32]), name: name.into() };
    let adapters = || [None, Some(named(0, "a")), Some(named(1, "a"))];
    let mut keys = BTreeSet::new();
    let mut num_salts = 0;
    for tenant in texts() {
        for cache_salt in texts() {
            for adapter in adapters() {
                let salt = Salt { tenant: tenant.clone(), adapter, cache_salt: cache_salt.clone() };
                assert!(keys.insert(salt.root_key()), "{salt:?} has the key of another salt");
                num_salts += 1;
            }
        }
    }
    assert_eq!(num_salts, 8 * 8 * 3);
}

#[test]
fn an_adapter_is_told_from_others_by_its_contents() {
    let of = |byte, name: &str| Salt {
        adapter: Some(SaltAdapter { hash: AdapterHash([byte; 32]), name: name.into() }),
        ..Salt::default()
    };
    assert_eq!((of(1, "a"), of(1, "a").root_key()), (of(1, "b"), of(1, "b").root_key()));
    assert_eq!(BTreeSet::from([of(1, "a"), of(1, "b"), of(2, "a")]).len(), 2);
}

#[test]
fn a_cache_salt_named_like_the_marker_is_no_tenant() {
    assert_eq!(Salt::default().with_cache_salt("tenant").tenant(), None);
    assert_eq!(Salt::of_tenant("a").with_cache_salt("b").tenant(), Some("a"));
    assert_ne!(Salt::default().with_cache_salt(""), Salt::default());
}

#[test]
fn each_scale_of_an_adapter_has_a_hash_of_its_own() {
    let hash = AdapterHash([7; 32]);
    assert_eq!(hash.scaled(1.0), hash);
    let hashes = [0.5, 1.0, 2.0, -1.0].map(|scale| hash.scaled(scale));
    assert_eq!(BTreeSet::from(hashes).len(), hashes.len());
    assert_ne!(hash.scaled(0.5), AdapterHash([8; 32]).scaled(0.5));
}
