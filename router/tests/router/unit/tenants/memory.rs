use std::sync::Arc;

use trunkline_base::tenants::{MemoryBudget, NoMemory};

#[test]
fn memory_that_is_shared_is_never_held_by_one() {
    let budget = Arc::new(MemoryBudget::new(80 << 10));
    let free = || budget.free.available_permits();
    let mut first = budget.account(Some("a".into()));
    // What can never be had is told apart from what cannot be had now.
    assert_eq!(first.grow_to((70 << 10) + 1), Err(NoMemory::TooMuch { limit_bytes: 70 << 10 }));
    first.grow_to((60 << 10) + 1).unwrap();
    assert_eq!((first.num_bytes(), free()), (61 << 10, 19));
    first.grow_to(60 << 10).unwrap();
    assert_eq!(first.num_bytes(), 61 << 10, "it grows only");
    let mut second = budget.account(Some("a".into()));
    assert_eq!(second.grow_to(10 << 10), Err(NoMemory::InUse));
    assert_eq!((second.num_bytes(), free()), (0, 19), "a refusal takes nothing");
    let mut other = budget.account(Some("b".into()));
    other.grow_to(16 << 10).unwrap();
    first.shrink_to(30 << 10);
    assert_eq!((first.num_bytes(), free()), (30 << 10, 34));
    second.grow_to(10 << 10).unwrap();
    first.shrink_to(0);
    drop((second, other));
    assert_eq!(free(), 80);
}

#[test]
fn memory_that_nobody_shares_can_be_held_by_one() {
    let budget = Arc::new(MemoryBudget::new(80 << 10));
    let mut only = budget.account(None);
    only.grow_to(80 << 10).unwrap();
    assert_eq!(only.grow_to((80 << 10) + 1), Err(NoMemory::TooMuch { limit_bytes: 80 << 10 }));
    assert_eq!(budget.account(None).grow_to(1), Err(NoMemory::InUse));
    drop(only);
    assert_eq!(budget.free.available_permits(), 80);
    assert_eq!(MemoryBudget::new(usize::MAX).free.available_permits() >> 20, usize::MAX >> 30);
}
