//! Places among the open requests, shared between tenants: none of them takes all.
//!
//! A tenant may have up to [`PART_OF_FREE`] times as many as are left free (dynamic thresholds: Choudhury and Hahne,
//! IEEE/ACM Transactions on Networking 6(2), 1998). So one that is alone has seven eighths, two that ask
//! for all have seven fifteenths each, and whoever comes next finds one. What a tenant does not use others have.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A tenant has at most so many times as many places as are free.
const PART_OF_FREE: usize = 7;

/// Who has how many places. Nobody is listed who has none.
#[derive(Debug, Default)]
pub struct SharedPlaces {
    held: Mutex<BTreeMap<Arc<str>, usize>>,
}

/// Some of a tenant's places; dropping it gives them back.
#[derive(Debug)]
pub struct HeldPlaces {
    places: Arc<SharedPlaces>,
    tenant: Arc<str>,
    count: usize,
}

impl SharedPlaces {
    /// Takes places for a tenant, of which so many are free then. If it would have too many, says how many it has.
    pub fn take(self: &Arc<Self>, tenant: &str, count: usize, num_free: usize) -> Result<HeldPlaces, usize> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant: Arc<str> = tenant.into();
        let before = held.get(&tenant).copied().unwrap_or(0);
        if before > 0 && before + count > PART_OF_FREE.saturating_mul(num_free) {
            return Err(before);
        }
        held.insert(tenant.clone(), before + count);
        Ok(HeldPlaces { places: self.clone(), tenant, count })
    }
}

impl HeldPlaces {
    /// One of them as a guard of its own; none if there is but one.
    pub fn split(&mut self) -> Option<Self> {
        (self.count > 1).then(|| {
            self.count -= 1;
            Self { places: self.places.clone(), tenant: self.tenant.clone(), count: 1 }
        })
    }

    /// Adds the places of another guard of the same tenant.
    pub fn merge(&mut self, mut other: Self) {
        assert_eq!(self.tenant, other.tenant, "places of one tenant");
        self.count += std::mem::take(&mut other.count);
    }
}

impl Drop for HeldPlaces {
    fn drop(&mut self) {
        let mut held = self.places.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(&self.tenant) {
            *count -= self.count;
            if *count == 0 {
                held.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes places one by one until there is none, and returns them.
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
    fn a_flood_leaves_room_and_what_is_given_back_is_shared_again() {
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
        assert!(places.held.lock().unwrap().is_empty());
    }

    #[test]
    fn who_has_none_gets_the_last_one() {
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
        assert!(one.split().is_none());
        one.merge(places.take("a", 3, 90).unwrap());
        let other = one.split().unwrap();
        assert_eq!(places.held.lock().unwrap()["a"], 4);
        drop(one);
        assert_eq!(places.held.lock().unwrap()["a"], 1);
        assert_eq!(places.take("a", 7, 1).unwrap_err(), 1);
        drop(other);
        assert!(places.take("a", 7, 0).is_ok(), "who has none is let in");
    }
}
