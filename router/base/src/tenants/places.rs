//! Divides the places for open requests among tenants, so that no tenant takes all.
//!
//! A tenant may hold up to [`PART_OF_FREE`] times as many places as are free (dynamic thresholds: Choudhury and Hahne,
//! IEEE/ACM Transactions on Networking 6(2), 1998). A single tenant can hold seven eighths of the places, and two
//! tenants seven fifteenths each, so the next one always finds a free place. Others can use the places that a tenant
//! leaves free.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The greatest ratio of the places that a tenant holds to the free places.
const PART_OF_FREE: usize = 7;

/// The number of places that each tenant holds. Tenants without places have no entry.
#[derive(Debug, Default)]
pub struct SharedPlaces {
    held: Mutex<BTreeMap<Arc<str>, usize>>,
}

/// Places that a tenant holds. Dropping it returns them.
#[derive(Debug)]
pub struct HeldPlaces {
    places: Arc<SharedPlaces>,
    tenant: Arc<str>,
    count: usize,
}

impl SharedPlaces {
    /// Takes `count` places for a tenant, after which `num_free` are free. If the tenant would hold too many, fails
    /// with the number that it holds. A single place for a tenant that holds none is never too many.
    pub fn take(self: &Arc<Self>, tenant: &str, count: usize, num_free: usize) -> Result<HeldPlaces, usize> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let tenant: Arc<str> = tenant.into();
        let before = held.get(&tenant).copied().unwrap_or(0);
        let is_first = before == 0 && count == 1;
        if !is_first && before + count > PART_OF_FREE.saturating_mul(num_free) {
            return Err(before);
        }
        held.insert(tenant.clone(), before + count);
        Ok(HeldPlaces { places: self.clone(), tenant, count })
    }

    /// Returns the most places of `total` that a tenant can hold while no other holds any.
    pub fn most_of(total: usize) -> usize {
        (total - total.div_ceil(PART_OF_FREE + 1)).max(1)
    }

    /// Returns the number of tenants that hold places.
    pub fn num_tenants(&self) -> usize {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl HeldPlaces {
    /// Splits off `count` places, or returns `None` if none would be left.
    pub fn split(&mut self, count: usize) -> Option<Self> {
        (self.count > count).then(|| {
            self.count -= count;
            Self { places: self.places.clone(), tenant: self.tenant.clone(), count }
        })
    }

    /// Adds the places of another guard of the same tenant.
    pub fn merge(&mut self, mut other: Self) {
        assert_eq!(self.tenant, other.tenant, "both guards belong to one tenant");
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
