//! Requests to a cache and a store.

use trunkline_contract::BlockKey;
use trunkline_kv::{CachePriority, KvCache, Salt, StoreIndex};

/// Computes a prompt. Returns how many of its blocks hit.
pub fn request(kv: &mut KvCache, salt: &Salt, prompt: &[u32]) -> usize {
    let num_hits = compute(kv, salt, prompt, CachePriority::Normal);
    kv.check_invariants();
    num_hits
}

/// Does what [`request`] does, without checking the invariants.
pub fn compute(kv: &mut KvCache, salt: &Salt, prompt: &[u32], priority: CachePriority) -> usize {
    let block_size = kv.device().block_size();
    // The token after the prompt, because the last one is always computed.
    let hit = kv.lookup(salt, &[prompt, &[u32::MAX]].concat()).without_partial();
    let mut table = kv.open_with_priority(salt, &hit, priority);
    kv.device_mut().touch(&hit);
    let (num_tokens, num_known) = (prompt.len() as u32, hit.num_block_tokens());
    let num_new_blocks = num_tokens.div_ceil(block_size) - hit.num_blocks() as u32;
    assert!(kv.device_mut().grow(&mut table, num_new_blocks), "one request at a time fits");
    kv.device_mut().begin_fill(&table, num_known, num_tokens - num_known);
    kv.close(table, prompt);
    hit.num_blocks()
}

/// Returns the keys of a path of blocks with one token each.
pub fn keys(salt: &Salt, path: &[u32]) -> Vec<BlockKey> {
    let mut key = salt.root_key();
    let keys = path.iter().map(|&token| {
        key = key.extend(&[token]);
        key
    });
    keys.collect()
}

/// Stores those blocks of a path that are not stored yet, up to the first that gets no slot. Returns the index of that
/// one, or the length of the path.
pub fn write(store: &mut StoreIndex, salt: &Salt, path: &[u32]) -> usize {
    let mut parent = None;
    for (index, key) in keys(salt, path).into_iter().enumerate() {
        if !store.has(key) {
            let Some(slot) = store.reserve(salt) else { return index };
            if !store.name(slot, key, parent) {
                return index;
            }
            assert!(store.end_write(slot, true));
        }
        store.touch(key, salt);
        parent = Some(key);
    }
    store.check_invariants();
    path.len()
}
