//! The keys that name blocks.

use trunkline_contract::BlockKey;

fn root(parts: &[&str]) -> BlockKey {
    BlockKey::root(parts.iter().copied())
}

#[test]
fn a_key_depends_on_salt_tokens_and_order() {
    let ab = root(&[]).extend(&[1]).extend(&[2]);
    assert_eq!(ab, root(&[]).extend(&[1]).extend(&[2]));
    assert_ne!(ab, root(&[]).extend(&[2]).extend(&[1]));
    assert_ne!(ab, root(&[]).extend(&[1, 2]), "blocks end somewhere");
    assert_ne!(ab, root(&["tenant"]).extend(&[1]).extend(&[2]));
    assert_ne!(root(&["ab", "c"]), root(&["a", "bc"]));
    assert_ne!(root(&[""]), root(&[]));
    let long: Vec<u32> = (0..1000).collect();
    assert_ne!(root(&[]).extend(&long), root(&[]).extend(&long[..999]));
}

#[test]
fn keys_never_change() {
    // Files on disk are found by these keys.
    assert_eq!(root(&["a"]).extend(&[1, 2, 3]).to_string(), "9a2333ddea9eb437963d56b803460227");
}
