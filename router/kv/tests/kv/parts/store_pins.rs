//! Prefixes that are pinned in the store.

use trunkline_kv::{Salt, StoreIndex, StorePins, TenantShare};

use crate::support::{keys, write};

fn num_found(store: &StoreIndex, salt: &Salt, path: &[u32]) -> usize {
    store.find(salt.root_key(), path, 1).len()
}

fn store(num_slots: u32, max_slots: u32) -> StoreIndex {
    let mut store = StoreIndex::new(num_slots, Vec::new());
    store.set_pins(StorePins::default(), max_slots);
    store
}

#[test]
fn pinned_blocks_stay_until_their_time_is_over() {
    let (mut store, salt) = (store(6, 4), Salt::default());
    write(&mut store, &salt, &[1, 2]);
    // The third block is not stored yet.
    assert_eq!(store.pin(&salt, keys(&salt, &[1, 2, 3]), 10), Some(2));
    write(&mut store, &salt, &[1, 2, 3]);
    for number in 10..20 {
        write(&mut store, &salt, &[number, number + 100]);
    }
    assert_eq!(num_found(&store, &salt, &[1, 2, 3]), 3);
    store.expire_pins(9);
    assert_eq!(store.pins().num_blocks(), 3);
    store.expire_pins(10);
    assert_eq!(store.pins().num_blocks(), 0);
    for number in 20..30 {
        write(&mut store, &salt, &[number, number + 100]);
    }
    assert_eq!(num_found(&store, &salt, &[1, 2, 3]), 0);
}

#[test]
fn limits_hold_and_shared_blocks_count_once() {
    let (a, b) = (Salt::of_tenant("a"), Salt::of_tenant("b"));
    let mut store = store(10, 6);
    let share = |tenant: &str, weight| TenantShare { tenant: tenant.into(), weight };
    store.set_shares(&[share("a", 4), share("b", 1)]);
    assert_eq!(store.pin(&b, keys(&b, &[1, 2, 3]), 9), None, "b's share is 2");
    assert_eq!(store.pin(&b, keys(&b, &[1, 2]), 9), Some(0));
    assert_eq!(store.pin(&a, keys(&a, &[1, 2, 3, 4, 5]), 9), None, "6 for all");
    assert_eq!(store.pin(&a, keys(&a, &[1, 2, 3]), 9), Some(0));
    assert_eq!(store.pin(&a, keys(&a, &[1, 2, 4]), 5), Some(0));
    assert_eq!(["a", "b"].map(|tenant| store.pins().num_blocks_of(tenant)), [4, 2]);
    store.expire_pins(5);
    assert_eq!(store.pins().num_blocks(), 5);
    store.expire_pins(9);
    assert_eq!(["a", "b"].map(|tenant| store.pins().num_blocks_of(tenant)), [0, 0]);
    assert_eq!(store.pins().num_blocks(), 0);
}

#[test]
fn the_next_index_takes_over_the_pins() {
    let (mut store, salt) = (store(4, 4), Salt::default());
    write(&mut store, &salt, &[1, 2]);
    store.pin(&salt, keys(&salt, &[1, 2]), 10);
    let pins = store.take_pins();
    let mut next = StoreIndex::new(4, Vec::new());
    write(&mut next, &salt, &[1, 2]);
    next.set_pins(pins, 4);
    for number in 10..20 {
        write(&mut next, &salt, &[number, number + 100]);
    }
    assert_eq!(num_found(&next, &salt, &[1, 2]), 2);
    next.unpin(keys(&salt, &[1, 2])[1]);
    next.check_invariants();
    for number in 20..30 {
        write(&mut next, &salt, &[number, number + 100]);
    }
    assert_eq!(num_found(&next, &salt, &[1, 2]), 0);
}
