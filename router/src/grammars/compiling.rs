//! Limits how many grammars are compiled at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use trunkline_grammar::GrammarError;

use crate::limits::{MAX_COMPILING_GRAMMARS, MAX_COMPILING_OF_TENANT};

/// The permission to compile one grammar: a global permit and, with API keys, one of the tenant's. Dropping it returns
/// both.
pub struct CompilingPlace {
    _of_tenant: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

/// The global permits, and those of each tenant.
pub struct CompilingPlaces {
    all: Arc<Semaphore>,
    of_tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
    timeout: Duration,
}

impl CompilingPlaces {
    /// Creates the permits. [`take`](Self::take) waits at most for `timeout`.
    pub fn new(timeout: Duration) -> Self {
        let all = Arc::new(Semaphore::new(MAX_COMPILING_GRAMMARS));
        Self { all, of_tenants: Mutex::default(), timeout }
    }

    /// Waits for a place, and fails with [`GrammarError::Busy`] if none becomes free in time. `tenant` is `None`
    /// without API keys.
    pub async fn take(&self, tenant: Option<&str>) -> Result<CompilingPlace, GrammarError> {
        let deadline = Instant::now() + self.timeout;
        // Takes the tenant's permit first, so that a task waiting for it does not hold a global one.
        let of_tenant = match tenant {
            Some(name) => Some(free(self.of_tenant(name), MAX_COMPILING_OF_TENANT, deadline).await?),
            None => None,
        };
        let of_all = free(self.all.clone(), MAX_COMPILING_GRAMMARS, deadline).await?;
        Ok(CompilingPlace { _of_tenant: of_tenant, _of_all: of_all })
    }

    #[doc(hidden)]
    pub fn num_tenants(&self) -> usize {
        self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the permits of a tenant, and removes the entries of tenants that compile nothing.
    fn of_tenant(&self, name: &str) -> Arc<Semaphore> {
        // No panic can leave the map half changed.
        let mut tenants = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains_key(name) {
            tenants.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let places = || Arc::new(Semaphore::new(MAX_COMPILING_OF_TENANT));
        tenants.entry(name.to_owned()).or_insert_with(places).clone()
    }
}

/// Waits until `deadline` for one of `count` permits.
async fn free(
    places: Arc<Semaphore>,
    count: usize,
    deadline: Instant,
) -> Result<OwnedSemaphorePermit, GrammarError> {
    // The semaphores are never closed, so an error means that the time is over.
    match timeout_at(deadline, places.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(GrammarError::Busy { count }),
    }
}
