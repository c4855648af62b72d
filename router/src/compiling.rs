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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(600);

    /// Takes free ones.
    fn take(places: &CompilingPlaces, tenant: Option<&str>, count: usize) -> Vec<CompilingPlace> {
        let place = || places.take(tenant).now_or_never().and_then(Result::ok);
        (0..count).map(|_| place().expect("a free place")).collect()
    }

    fn is_busy(place: Result<CompilingPlace, GrammarError>, of: usize) -> bool {
        matches!(place, Err(GrammarError::Busy { count }) if count == of)
    }

    #[tokio::test]
    async fn a_tenant_waits_for_its_own_while_another_finds_places_free() {
        let places = CompilingPlaces::new(SHORT);
        let taken = take(&places, Some("bombs"), MAX_COMPILING_OF_TENANT);
        let mut waiting = Box::pin(places.take(Some("bombs")));
        assert!((&mut waiting).now_or_never().is_none());
        drop(take(&places, Some("calm"), MAX_COMPILING_OF_TENANT));
        assert!(is_busy(waiting.await, MAX_COMPILING_OF_TENANT));
        drop(taken);
        take(&places, Some("bombs"), MAX_COMPILING_OF_TENANT);
    }

    #[tokio::test]
    async fn who_waits_gets_the_place_that_is_given_back() {
        for tenant in [Some("a"), None] {
            let places = CompilingPlaces::new(LONG);
            let count = if tenant.is_some() { MAX_COMPILING_OF_TENANT } else { MAX_COMPILING_GRAMMARS };
            let mut taken = take(&places, tenant, count);
            let mut waiting = Box::pin(places.take(tenant));
            assert!((&mut waiting).now_or_never().is_none());
            taken.pop();
            assert!(waiting.await.is_ok());
        }
    }

    #[tokio::test]
    async fn who_waits_in_vain_for_one_of_all_keeps_none_of_its_own() {
        let places = CompilingPlaces::new(SHORT);
        let taken = take(&places, None, MAX_COMPILING_GRAMMARS);
        assert!(is_busy(places.take(None).await, MAX_COMPILING_GRAMMARS));
        assert!(is_busy(places.take(Some("a")).await, MAX_COMPILING_GRAMMARS));
        drop(taken);
        take(&places, Some("a"), MAX_COMPILING_OF_TENANT);
    }

    #[tokio::test]
    async fn tenants_without_a_place_are_forgotten_and_others_are_not() {
        let places = CompilingPlaces::new(SHORT);
        let _held = take(&places, Some("held"), MAX_COMPILING_OF_TENANT);
        for idx in 0..9 {
            take(&places, Some(&format!("tenant-{idx}")), 1);
        }
        assert_eq!(
            places.of_tenants.lock().expect("no panic before").len(),
            2,
            "the held one's and the last one's"
        );
        assert!(is_busy(places.take(Some("held")).await, MAX_COMPILING_OF_TENANT));
    }
}
