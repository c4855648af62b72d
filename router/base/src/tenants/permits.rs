//! Permits for work that runs a few at a time, which tenants take in turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// A global permit and, with API keys, one of the tenant's. Dropping it returns both.
#[derive(Debug)]
pub struct TenantPermit {
    _of_tenant: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

/// The global permits, and those of each tenant. Both are given out in the order in which tasks ask, so a tenant waits
/// at most for as many tasks of each other tenant as that may have permits.
#[derive(Debug)]
pub struct TenantPermits {
    count: usize,
    max_of_tenant: usize,
    all: Arc<Semaphore>,
    of_tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl TenantPermits {
    pub fn new(count: usize, max_of_tenant: usize) -> Self {
        Self { count, max_of_tenant, all: Arc::new(Semaphore::new(count)), of_tenants: Mutex::default() }
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Waits for a permit until `deadline`, if there is one. Fails with the number of permits of which none became free
    /// in time: the tenant's, or all. `tenant` is `None` without API keys.
    pub async fn take(&self, tenant: Option<&str>, deadline: Option<Instant>) -> Result<TenantPermit, usize> {
        // Takes the tenant's permit first, so that a task waiting for it does not hold a global one.
        let of_tenant = match tenant {
            Some(name) => Some(free(self.of_tenant(name), self.max_of_tenant, deadline).await?),
            None => None,
        };
        let of_all = free(self.all.clone(), self.count, deadline).await?;
        Ok(TenantPermit { _of_tenant: of_tenant, _of_all: of_all })
    }

    /// Returns the number of tenants with an entry. Those that have and await no permit may be among them.
    pub fn num_tenants(&self) -> usize {
        self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the permits of a tenant, and removes the entries of tenants that have and await none.
    fn of_tenant(&self, name: &str) -> Arc<Semaphore> {
        // No panic can leave the map half changed.
        let mut tenants = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains_key(name) {
            tenants.retain(|_, permits| Arc::strong_count(permits) > 1);
        }
        let permits = || Arc::new(Semaphore::new(self.max_of_tenant));
        tenants.entry(name.to_owned()).or_insert_with(permits).clone()
    }
}

/// Waits until `deadline` for one of `count` permits.
async fn free(
    permits: Arc<Semaphore>,
    count: usize,
    deadline: Option<Instant>,
) -> Result<OwnedSemaphorePermit, usize> {
    let acquired = match deadline {
        Some(deadline) => timeout_at(deadline, permits.acquire_owned()).await.map_err(|_| count)?,
        None => permits.acquire_owned().await,
    };
    // The semaphores are never closed.
    acquired.map_err(|_| count)
}
