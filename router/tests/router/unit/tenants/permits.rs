use std::time::Duration;

use futures::FutureExt as _;
use trunkline_grammar::GrammarError;
use trunkline_router::grammars::compiling::{CompilingPlace, CompilingPlaces};
use trunkline_router::limits::{MAX_COMPILING_GRAMMARS, MAX_COMPILING_OF_TENANT};

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(600);

/// Takes `count` places that are free.
fn take(places: &CompilingPlaces, tenant: Option<&str>, count: usize) -> Vec<CompilingPlace> {
    let place = || places.take(tenant).now_or_never().and_then(Result::ok);
    (0..count).map(|_| place().expect("a free place")).collect()
}

fn is_busy(place: Result<CompilingPlace, GrammarError>, of: usize) -> bool {
    matches!(place, Err(GrammarError::Busy { count }) if count == of)
}

#[tokio::test]
async fn a_tenant_at_its_limit_does_not_delay_others() {
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
async fn a_waiting_task_gets_the_returned_place() {
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
async fn a_timeout_on_the_global_limit_returns_the_tenants_permit() {
    let places = CompilingPlaces::new(SHORT);
    let taken = take(&places, None, MAX_COMPILING_GRAMMARS);
    assert!(is_busy(places.take(None).await, MAX_COMPILING_GRAMMARS));
    assert!(is_busy(places.take(Some("a")).await, MAX_COMPILING_GRAMMARS));
    drop(taken);
    take(&places, Some("a"), MAX_COMPILING_OF_TENANT);
}

#[tokio::test]
async fn only_tenants_without_a_place_are_forgotten() {
    let places = CompilingPlaces::new(SHORT);
    let _held = take(&places, Some("held"), MAX_COMPILING_OF_TENANT);
    for idx in 0..9 {
        take(&places, Some(&format!("tenant-{idx}")), 1);
    }
    assert_eq!(places.num_tenants(), 2, "the held one's and the last one's");
    assert!(is_busy(places.take(Some("held")).await, MAX_COMPILING_OF_TENANT));
}
