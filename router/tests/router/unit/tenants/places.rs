use std::sync::Arc;

use trunkline_base::tenants::{HeldPlaces, SharedPlaces};

/// Takes places one by one until none is left, and returns them.
fn flood(places: &Arc<SharedPlaces>, tenant: &str, free: &mut usize) -> Vec<HeldPlaces> {
    let mut held = Vec::new();
    while *free > 0
        && let Ok(place) = places.take(tenant, 1, *free - 1)
    {
        *free -= 1;
        held.push(place);
    }
    held
}

#[test]
fn a_flood_leaves_room_and_returned_places_are_shared_again() {
    let places = Arc::new(SharedPlaces::default());
    let mut free = 128;
    let first = flood(&places, "a", &mut free);
    assert_eq!(first.len(), 112);
    let second = flood(&places, "b", &mut free);
    assert_eq!(second.len(), 14);
    free += first.len();
    drop(first);
    assert_eq!(flood(&places, "b", &mut free).len(), 98);
    drop(second);
    assert_eq!(places.num_tenants(), 0);
}

#[test]
fn a_tenant_without_places_gets_the_last_one() {
    for limit in 1..20 {
        let places = Arc::new(SharedPlaces::default());
        let mut free = limit;
        let held = flood(&places, "a", &mut free);
        assert!(!held.is_empty() && (free > 0 || limit == 1), "{limit}: {} taken", held.len());
    }
}

#[test]
fn guards_can_be_split_and_merged() {
    let places = Arc::new(SharedPlaces::default());
    let mut one = places.take("a", 1, 90).unwrap();
    assert!(one.split(1).is_none());
    one.merge(places.take("a", 3, 90).unwrap());
    let other = one.split(1).unwrap();
    // If no place is free, the error is the number of places that the tenant holds.
    assert_eq!(places.take("a", 1, 0).unwrap_err(), 4);
    drop(one);
    assert_eq!(places.take("a", 1, 0).unwrap_err(), 1);
    assert_eq!(places.take("a", 7, 1).unwrap_err(), 1);
    drop(other);
    assert_eq!(places.num_tenants(), 0);
}

#[test]
fn a_tenant_that_takes_many_places_at_once_leaves_room() {
    let places = Arc::new(SharedPlaces::default());
    assert_eq!(places.take("a", 128, 0).unwrap_err(), 0);
    assert_eq!(places.take("a", 113, 15).unwrap_err(), 0);
    assert_eq!(places.num_tenants(), 0, "a refusal takes nothing");
    let most = places.take("a", 112, 16).unwrap();
    assert_eq!(places.take("b", 16, 0).unwrap_err(), 0);
    // One place is given even if it is the last.
    let last = places.take("b", 1, 0).unwrap();
    drop((most, last));
}
