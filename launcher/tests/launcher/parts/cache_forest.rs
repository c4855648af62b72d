use trunkline_launcher::cache::forest::Forest;
use trunkline_store::{BlockKey, StoredBlock};

fn block(slot: u32, key: u8, parent: u8, depth: u32) -> StoredBlock {
    let key_of = |byte| BlockKey::from_bytes([byte; 16]);
    StoredBlock {
        slot,
        key: key_of(key),
        parent: key_of(parent),
        root: key_of(0),
        depth,
        num_tokens: 64,
        written_at: 100 + u64::from(slot),
        sequence: u64::from(slot),
    }
}

/// 1 ─ 2 ─┬─ 3 ─ 4
///        └─ 5          6 (its parent 9 is gone)
fn forest() -> Forest {
    Forest::new(&[
        block(0, 1, 0, 0),
        block(1, 2, 1, 1),
        block(2, 3, 2, 2),
        block(3, 4, 3, 3),
        block(4, 5, 2, 2),
        block(5, 6, 9, 4),
    ])
}

fn slots(blocks: &[StoredBlock]) -> Vec<u32> {
    blocks.iter().map(|block| block.slot).collect()
}

#[test]
fn runs_end_where_paths_fork() {
    let branches = forest().branches();
    assert_eq!(branches.len(), 1);
    assert_eq!((slots(&branches[0].blocks), branches[0].num_tokens()), (vec![0, 1], 128));
    let children: Vec<Vec<u32>> = branches[0].children.iter().map(|child| slots(&child.blocks)).collect();
    assert_eq!(children, [vec![4], vec![2, 3]], "the most recent first");
    assert_eq!((branches[0].written_at(), forest().num_reachable()), (104, 5));
}

#[test]
fn a_path_goes_without_what_others_share() {
    let forest = forest();
    let key = |byte| BlockKey::from_bytes([byte; 16]);
    assert_eq!(slots(&forest.path(key(4)).unwrap()), [0, 1, 2, 3]);
    assert_eq!(forest.path(key(6)), None);
    assert_eq!(slots(&forest.own_blocks(key(4))), [2, 3]);
    assert_eq!(slots(&forest.own_blocks(key(2))), [0, 1, 2, 3, 4]);
    assert_eq!(slots(&forest.unreachable(key(4))), [5]);
    assert!(forest.possible_beginnings(key(4)).is_empty());
    assert_eq!(forest.possible_beginnings(key(6)), [key(5)], "4 lies where the lost block was");
    assert_eq!(forest.matching("0303"), [key(3)]);
    assert_eq!(forest.matching("").len(), 6);
}
