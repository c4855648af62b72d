//! Pages over the tree, and removal of nodes.

use trunkline_kv::{KvCache, NodeId, NodeView, Salt, StoreIndex};

const BLOCK_SIZE: u32 = 4;

/// Runs a sequence that computes `tokens` and stores its full blocks.
fn compute(kv: &mut KvCache, salt: &Salt, tokens: &[u32]) {
    let hit = kv.lookup(salt, tokens).without_partial();
    let mut table = kv.open(salt, &hit);
    kv.device_mut().touch(&hit);
    let known = hit.num_block_tokens();
    let count = tokens.len() as u32;
    assert!(kv.device_mut().grow(&mut table, count.div_ceil(BLOCK_SIZE) - hit.num_blocks() as u32));
    kv.device_mut().begin_fill(&table, known, count - known);
    let mut slots = Vec::new();
    while let Some((_, slot)) = kv.begin_store(&mut table, tokens.len() / BLOCK_SIZE as usize) {
        slots.push(slot);
    }
    kv.index(&mut table, tokens);
    for slot in slots {
        assert!(kv.store_mut().is_some_and(|store| store.end_write(slot, true)));
    }
    kv.close(table, tokens);
    kv.check_invariants();
}

fn walk(kv: &KvCache, limit: usize) -> Vec<NodeView> {
    let (mut nodes, mut next) = (Vec::new(), Some(NodeId(0)));
    while let Some(first) = next {
        let page = kv.walk(first, limit, |_| true);
        assert!(page.nodes.len() <= limit);
        nodes.extend(page.nodes);
        next = page.next;
    }
    nodes
}

fn cache() -> (KvCache, Salt, Vec<u32>, Vec<u32>) {
    let mut kv = KvCache::new(BLOCK_SIZE, 64);
    kv.set_store(StoreIndex::new(64, Vec::new()));
    let salt = Salt::default().with_cache_salt("alice");
    let system: Vec<u32> = (0..8).collect();
    let one = [system.clone(), vec![20; 6]].concat();
    let two = [system, vec![30; 9]].concat();
    kv.set_now(1_000);
    compute(&mut kv, &salt, &one);
    kv.set_now(2_000);
    compute(&mut kv, &salt, &two);
    (kv, salt, one, two)
}

#[test]
fn pages_show_every_node_once() {
    let (kv, salt, one, two) = cache();
    let nodes = walk(&kv, 100);
    assert_eq!(walk(&kv, 1), nodes);
    let shared = nodes.iter().find(|node| node.parent.is_none()).expect("both begin alike");
    let shape = (shared.first_token, shared.num_tokens, shared.num_blocks, shared.num_stored);
    assert_eq!((shape, shared.num_children), ((0, 8, 2, 2), 2));
    assert_eq!((shared.num_hits, shared.used_at_ms), (1, 2_000));
    // The second request branched off, so the rest of the first one was not used again.
    let ends: Vec<&NodeView> = nodes.iter().filter(|node| node.num_children == 0).collect();
    let mut ages: Vec<u64> = ends.iter().map(|node| node.used_at_ms).collect();
    ages.sort_unstable();
    assert_eq!(ages, [1_000, 2_000]);
    assert!(nodes.iter().all(|node| node.salt == salt));
    let mut paths: Vec<Vec<u32>> =
        ends.iter().map(|node| kv.path_tokens(node.id, node.key).expect("it is there")).collect();
    paths.sort();
    assert_eq!(paths, [one, two]);
    assert_eq!(kv.path_tokens(ends[0].id, shared.key), None, "the key is another node's");
}

#[test]
fn removed_nodes_leave_device_and_store() {
    let (mut kv, salt, one, two) = cache();
    let node = walk(&kv, 100)
        .into_iter()
        .find(|node| {
            node.parent.is_some()
                && kv.path_tokens(node.id, node.key).is_some_and(|path| one.starts_with(&path))
        })
        .expect("the first's own part");
    assert_eq!(kv.remove(node.id, salt.root_key()), None);
    let stored = kv.store().map(StoreIndex::counts).expect("a store").stored;
    let num_removed = kv.remove(node.id, node.key).expect("it is there");
    kv.check_invariants();
    assert_eq!(num_removed, 2, "six tokens");
    assert_eq!(kv.store_mut().expect("a store").take_discards().len(), 1, "one full block of them");
    assert_eq!(kv.store().map(StoreIndex::counts).expect("a store").stored, stored - 1);
    assert_eq!(kv.lookup(&salt, &one).num_block_tokens(), 8);
    assert!(kv.lookup(&salt, &one).stored().is_empty());
    assert_eq!(kv.lookup(&salt, &two).num_tokens(), two.len() as u32 - 1);
}

#[test]
fn held_blocks_are_not_removed() {
    let (mut kv, salt, one, _) = cache();
    let hit = kv.lookup(&salt, &one).without_partial();
    let table = kv.open(&salt, &hit);
    let shared = walk(&kv, 100).into_iter().find(|node| node.parent.is_none()).expect("both begin alike");
    kv.remove(shared.id, shared.key).expect("it is there");
    kv.check_invariants();
    assert_eq!(kv.lookup(&salt, &one).num_blocks(), hit.num_blocks());
    kv.close(table, &one[..12]);
}
