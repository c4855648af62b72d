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

    /// Tenants that have places.
    #[doc(hidden)]
    pub fn num_tenants(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
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
