//! Window parts: which sequences need them, in which order they are dropped, and what hits find without some of them.

use trunkline_kv::{BlockTable, KvCache, NodeId, Salt, StoreIndex, WindowCounts, WindowLimits};

/// The number of tokens in a block; the window has five positions.
fn cache(num_parts: u32) -> KvCache {
    let mut kv = KvCache::new(2, 32);
    kv.device_mut().set_windows(WindowLimits { num_parts, window_size: 5, is_recurrent: false });
    kv
}

/// Computes `tokens` from `first` on, one block at a time, as plans would.
fn compute(kv: &mut KvCache, table: &mut BlockTable, tokens: &[u32], first: u32) {
    let mut position = first;
    while position < tokens.len() as u32 {
        kv.device_mut().pass_window(table, position);
        let num_tokens = (2 - position % 2).min(tokens.len() as u32 - position);
        let num_missing = (position + num_tokens).div_ceil(2) - table.blocks().len() as u32;
        assert!(kv.device_mut().grow(table, num_missing), "there are blocks");
        assert_eq!(kv.device_mut().reserve_parts(table, position, num_tokens), num_tokens, "there are parts");
        kv.device_mut().begin_fill(table, position, num_tokens);
        position += num_tokens;
        kv.check_invariants();
    }
    kv.device_mut().pass_window(table, position);
}

fn open(kv: &mut KvCache, tokens: &[u32]) -> (BlockTable, u32) {
    let salt = Salt::default();
    let hit = kv.lookup(&salt, tokens).without_partial();
    let table = kv.open(&salt, &hit);
    kv.device_mut().touch(&hit);
    (table, hit.num_tokens())
}

/// Runs a whole request. Returns how many tokens were found.
fn request(kv: &mut KvCache, tokens: &[u32]) -> u32 {
    let (mut table, num_found) = open(kv, tokens);
    compute(kv, &mut table, tokens, num_found);
    kv.close(table, tokens);
    kv.check_invariants();
    num_found
}

fn text(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|position| seed * 1_000 + position).collect()
}

#[test]
fn a_long_sequence_needs_only_its_window() {
    let mut kv = cache(4);
    let tokens = text(1, 60);
    let (mut table, _) = open(&mut kv, &tokens);
    compute(&mut kv, &mut table, &tokens, 0);
    // Position 60 attends to 56 and the positions after it.
    let counts = WindowCounts { free: 0, droppable: 2, needed: 2, total: 4, dropped: 26 };
    assert_eq!(kv.device().window_counts(), Some(counts));
    assert_eq!(kv.device_mut().take_window_drops().len(), 26);
    kv.close(table, &tokens);
    assert_eq!(kv.device().window_counts().map(|counts| counts.needed), Some(0));
}

#[test]
fn a_hit_ends_where_its_window_is_complete() {
    let mut kv = cache(10);
    let mut tokens = text(1, 20);
    request(&mut kv, &tokens);
    tokens.truncate(14);
    // All ten parts are there, so a branch in the middle is found.
    assert_eq!(request(&mut kv, &[tokens.as_slice(), &[7, 8, 9]].concat()), 14);
    // Passed parts are dropped first, from the oldest on. Ends of turns and parts that were found before stay.
    request(&mut kv, &text(2, 12));
    assert_eq!(kv.lookup(&Salt::default(), &[&text(1, 20)[..], &[5]].concat()).num_tokens(), 20);
    assert_eq!(kv.lookup(&Salt::default(), &[&text(1, 14)[..], &[6]].concat()).num_tokens(), 14);
    assert_eq!(kv.lookup(&Salt::default(), &[&text(1, 8)[..], &[6]].concat()).num_tokens(), 0);
}

#[test]
fn the_end_of_a_turn_outlives_what_another_one_passes() {
    let mut kv = cache(8);
    request(&mut kv, &text(1, 20));
    request(&mut kv, &text(2, 40));
    let next = [&text(1, 20)[..], &[5]].concat();
    assert_eq!(kv.lookup(&Salt::default(), &next).num_tokens(), 20);
    // Without passed parts, ends of turns are dropped from the oldest on.
    for seed in 3..7 {
        request(&mut kv, &text(seed, 20));
    }
    assert_eq!(kv.lookup(&Salt::default(), &next).num_tokens(), 0);
}

#[test]
fn a_node_tells_which_of_its_blocks_have_their_part() {
    let mut kv = cache(8);
    request(&mut kv, &text(1, 12));
    let whole = kv.walk(NodeId(0), 10, |_| true).nodes;
    assert_eq!(whole.iter().map(|node| (node.num_blocks, node.num_windowed)).collect::<Vec<_>>(), [(6, 6)]);
    request(&mut kv, &text(2, 12));
    let nodes = kv.walk(NodeId(0), 10, |_| true).nodes;
    let num_windowed: u32 = nodes.iter().map(|node| node.num_windowed).sum();
    let counts = kv.device().window_counts().unwrap();
    assert_eq!(num_windowed, counts.total - counts.free);
    assert!(num_windowed < nodes.iter().map(|node| node.num_blocks).sum());
}

#[test]
fn computing_again_fills_a_hole() {
    let mut kv = cache(4);
    request(&mut kv, &text(1, 12));
    request(&mut kv, &text(2, 12));
    let again = [&text(1, 12)[..], &[5]].concat();
    assert_eq!(kv.lookup(&Salt::default(), &again).num_tokens(), 0);
    request(&mut kv, &text(1, 12));
    assert_eq!(kv.lookup(&Salt::default(), &again).num_tokens(), 12);
}

#[test]
fn a_block_that_is_freed_gives_its_part_back() {
    let mut kv = cache(8);
    request(&mut kv, &text(1, 12));
    assert_eq!(kv.device_mut().shrink(0), 6);
    assert_eq!(kv.device().window_counts().map(|counts| counts.free), Some(8));
    assert_eq!(kv.device_mut().take_window_drops().len(), 6);
    kv.check_invariants();
}

#[test]
fn only_positions_with_a_part_are_planned() {
    let mut kv = cache(4);
    let tokens = text(1, 20);
    let (mut table, _) = open(&mut kv, &tokens);
    assert!(kv.device_mut().grow(&mut table, 10));
    assert_eq!(kv.device_mut().reserve_parts(&mut table, 0, 20), 8);
    assert_eq!(kv.device().available_parts(), 0);
    assert_eq!(kv.device_mut().reserve_parts(&mut table, 8, 12), 0);
    kv.device_mut().pass_window(&mut table, 8);
    assert_eq!(kv.device_mut().reserve_parts(&mut table, 8, 12), 4);
    kv.check_invariants();
    kv.close(table, &[]);
}

/// Computes and stores a text, and returns the cache.
fn with_stored(tokens: &[u32], num_parts: u32) -> KvCache {
    let mut kv = cache(num_parts);
    kv.set_store(StoreIndex::new(64, Vec::new()));
    let (mut table, _) = open(&mut kv, tokens);
    for end in (2..=tokens.len() as u32).step_by(2) {
        compute(&mut kv, &mut table, &tokens[..end as usize], end - 2);
        while let Some((_, slot)) = kv.begin_store(&mut table, end as usize / 2) {
            kv.index(&mut table, &tokens[..end as usize]);
            assert!(kv.store_mut().is_some_and(|store| store.end_write(slot, true)));
        }
    }
    kv.close(table, tokens);
    kv
}

#[test]
fn a_restored_prefix_has_parts_only_for_its_window() {
    let tokens = text(1, 40);
    let mut kv = with_stored(&tokens, 5);
    assert_eq!(kv.store().map(StoreIndex::counts).map(|counts| counts.stored), Some(20));
    kv.device_mut().shrink(0);
    assert_eq!(kv.device().window_counts().map(|counts| counts.free), Some(5));
    let hit = kv.lookup(&Salt::default(), &text(1, 41));
    assert_eq!((hit.num_blocks(), hit.stored().len()), (0, 20));
    let mut table = kv.open(&Salt::default(), &hit);
    assert!(kv.device_mut().grow(&mut table, 20));
    let restored = kv.begin_restore(&mut table, &hit, None);
    // Position 40 attends to 36 and the positions after it, which are the last two blocks.
    let base_only: Vec<bool> = restored.iter().map(|block| block.base_only).collect();
    assert_eq!(base_only, [vec![true; 18], vec![false; 2]].concat());
    assert_eq!(table.num_needed_parts(), 2);
    assert_eq!(kv.device().window_counts().map(|counts| (counts.free, counts.needed)), Some((3, 2)));
    kv.end_reads(&restored, 20);
    kv.close(table, &tokens);
    kv.check_invariants();
    // The whole text is found on the device. A prompt that branches off before its end is read from the store.
    let hit = kv.lookup(&Salt::default(), &text(1, 41));
    assert_eq!((hit.num_blocks(), hit.stored().len()), (20, 0));
    let hit = kv.lookup(&Salt::default(), &text(1, 31));
    assert_eq!((hit.num_blocks(), hit.stored().len()), (0, 15));
}

#[test]
fn an_abandoned_restore_keeps_its_parts_until_it_is_over() {
    let mut kv = with_stored(&text(1, 40), 5);
    kv.device_mut().shrink(0);
    let hit = kv.lookup(&Salt::default(), &text(1, 41));
    let mut table = kv.open(&Salt::default(), &hit);
    assert!(kv.device_mut().grow(&mut table, 20));
    let restored = kv.begin_restore(&mut table, &hit, None);
    let holds = kv.detach_restored(&mut table, &restored);
    kv.close(table, &[]);
    assert_eq!(kv.device().window_counts().map(|counts| (counts.free, counts.needed)), Some((3, 2)));
    kv.end_detached_restore(&restored);
    kv.end_reads(&restored, 20);
    drop(holds);
    kv.device_mut().settle();
    kv.check_invariants();
    assert_eq!(kv.device().window_counts().map(|counts| (counts.free, counts.needed)), Some((5, 0)));
}

#[test]
fn a_block_whose_part_may_be_missing_is_not_stored() {
    let mut kv = cache(5);
    let tokens = text(1, 40);
    let (mut table, _) = open(&mut kv, &tokens);
    compute(&mut kv, &mut table, &tokens, 0);
    kv.set_store(StoreIndex::new(64, Vec::new()));
    assert_eq!(kv.begin_store(&mut table, 20), None);
    // Later blocks are not stored either, because they could not be found.
    assert!(table.num_stored_blocks() > 20);
    kv.close(table, &tokens);
}
