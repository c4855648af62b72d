//! Holds on blocks of the pool.

use trunkline_kv::{BlockCounts, BlockPool, Released};

#[test]
fn a_block_is_free_when_its_last_hold_is_dropped() {
    let mut pool = BlockPool::new(2);
    let first = pool.allocate().unwrap();
    let second = first.share();
    assert_eq!(first.id(), second.id());
    drop(first);
    assert_eq!(pool.counts(), BlockCounts { free: 1, held: 1, cached: 0, total: 2 });
    drop(second);
    pool.check_invariants();
    assert_eq!(pool.counts().free, 2);
    pool.settle(|_, released| assert_eq!(released, Released::Free, "nothing is indexed"));
    pool.check_invariants();
    assert_eq!(pool.counts().free, 2);
}

#[test]
fn an_empty_pool_allocates_nothing() {
    let mut pool = BlockPool::new(1);
    let hold = pool.allocate();
    assert!(hold.is_some() && pool.allocate().is_none());
    assert!(BlockPool::new(0).allocate().is_none());
}

#[test]
fn an_indexed_block_outlives_its_holds() {
    let mut pool = BlockPool::new(1);
    let hold = pool.allocate().unwrap();
    pool.begin_fill(&hold);
    pool.mark_computed(&hold);
    pool.set_indexed(&hold);
    let id = hold.id();
    drop(hold);
    let mut kept = Vec::new();
    pool.settle(|id, released| kept.push((id, released)));
    assert_eq!(kept, [(id, Released::Cached)]);
    assert_eq!(pool.counts().cached, 1);
    let again = pool.hold_indexed(id);
    pool.clear_indexed(id);
    assert_eq!(pool.counts().held, 1);
    drop(again);
    pool.settle(|_, released| assert_eq!(released, Released::Free, "not indexed any more"));
    assert_eq!(pool.counts().free, 1);
    pool.check_invariants();
}

#[test]
#[should_panic(expected = "only computed blocks are shared")]
fn a_filling_block_is_never_indexed() {
    let mut pool = BlockPool::new(1);
    let hold = pool.allocate().unwrap();
    pool.begin_fill(&hold);
    pool.set_indexed(&hold);
}

#[test]
#[should_panic(expected = "of another pool")]
fn a_hold_belongs_to_one_pool() {
    let (mut pool, mut other) = (BlockPool::new(1), BlockPool::new(1));
    let hold = other.allocate().unwrap();
    pool.begin_fill(&hold);
}

#[test]
fn holds_dropped_on_other_threads_come_back() {
    let mut pool = BlockPool::new(64);
    let mut holds: Vec<_> = (0..64).map(|_| pool.allocate().unwrap()).collect();
    std::thread::scope(|scope| {
        while let Some(hold) = holds.pop() {
            scope.spawn(move || drop((hold.share(), hold)));
        }
    });
    pool.settle(|_, released| assert_eq!(released, Released::Free, "nothing is indexed"));
    assert_eq!(pool.counts().free, 64);
    pool.check_invariants();
}
