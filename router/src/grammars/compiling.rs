//! Places for the grammars that are compiled at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use trunkline_grammar::GrammarError;

use crate::limits::{MAX_COMPILING_GRAMMARS, MAX_COMPILING_OF_TENANT};

/// A place of all, and one of the tenant's where there are keys. Given back when dropped.
pub struct CompilingPlace {
    _of_tenant: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

/// The places, of all and of each tenant that has some.
pub struct CompilingPlaces {
    all: Arc<Semaphore>,
    of_tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Longest wait for one.
    timeout: Duration,
}

impl CompilingPlaces {
    /// All are free. Nobody waits longer than `timeout` for one.
    pub fn new(timeout: Duration) -> Self {
        let all = Arc::new(Semaphore::new(MAX_COMPILING_GRAMMARS));
        Self { all, of_tenants: Mutex::default(), timeout }
    }

    /// Waits for a place; [`GrammarError::Busy`] if there is none in time. `tenant` is none where there are no keys.
    pub async fn take(&self, tenant: Option<&str>) -> Result<CompilingPlace, GrammarError> {
        let deadline = Instant::now() + self.timeout;
        // Its own first, so that who waits for those holds none of the others.
        let of_tenant = match tenant {
            Some(name) => Some(free(self.of_tenant(name), MAX_COMPILING_OF_TENANT, deadline).await?),
            None => None,
        };
        let of_all = free(self.all.clone(), MAX_COMPILING_GRAMMARS, deadline).await?;
        Ok(CompilingPlace { _of_tenant: of_tenant, _of_all: of_all })
    }

    /// Tenants whose places are remembered.
    #[doc(hidden)]
    pub fn num_tenants(&self) -> usize {
        self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Of a tenant; those of tenants that compile nothing are forgotten.
    fn of_tenant(&self, name: &str) -> Arc<Semaphore> {
        // A panic leaves the map whole.
        let mut tenants = self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if !tenants.contains_key(name) {
            tenants.retain(|_, places| Arc::strong_count(places) > 1);
        }
        let places = || Arc::new(Semaphore::new(MAX_COMPILING_OF_TENANT));
        tenants.entry(name.to_owned()).or_insert_with(places).clone()
    }
}

/// One of `count` places.
async fn free(
    places: Arc<Semaphore>,
    count: usize,
    deadline: Instant,
) -> Result<OwnedSemaphorePermit, GrammarError> {
    // Nobody closes them, so that only time ends the wait without one.
    match timeout_at(deadline, places.acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => Err(GrammarError::Busy { count }),
    }
}
