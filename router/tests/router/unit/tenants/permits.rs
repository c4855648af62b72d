use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::Instant;
use trunkline_base::tenants::permits::{TenantPermit, TenantPermits};

const COUNT: usize = 4;
const OF_TENANT: usize = 2;

fn permits() -> TenantPermits {
    TenantPermits::new(COUNT, OF_TENANT)
}

/// Takes `count` permits that are free.
fn take(permits: &TenantPermits, tenant: Option<&str>, count: usize) -> Vec<TenantPermit> {
    let permit = || permits.take(tenant, None).now_or_never().and_then(Result::ok);
    (0..count).map(|_| permit().expect("a free permit")).collect()
}

/// Returns which permits a task with a deadline waits for in vain.
async fn missing(permits: &TenantPermits, tenant: Option<&str>) -> usize {
    let deadline = Instant::now() + Duration::from_millis(20);
    permits.take(tenant, Some(deadline)).await.unwrap_err()
}

#[tokio::test]
async fn a_tenant_at_its_limit_does_not_delay_others() {
    let permits = permits();
    let taken = take(&permits, Some("bombs"), OF_TENANT);
    let mut waiting = Box::pin(permits.take(Some("bombs"), None));
    assert!((&mut waiting).now_or_never().is_none());
    drop(take(&permits, Some("calm"), OF_TENANT));
    assert_eq!(missing(&permits, Some("bombs")).await, OF_TENANT);
    drop(taken);
    assert!(waiting.await.is_ok());
    take(&permits, Some("bombs"), OF_TENANT);
}

#[tokio::test]
async fn a_tenant_waits_behind_few_tasks_of_another() {
    let permits = TenantPermits::new(1, 1);
    let first = take(&permits, Some("flood"), 1);
    let mut flood: Vec<_> = (0..100).map(|_| Box::pin(permits.take(Some("flood"), None))).collect();
    flood.iter_mut().for_each(|waiting| assert!(waiting.now_or_never().is_none()));
    let mut calm = Box::pin(permits.take(Some("calm"), None));
    assert!((&mut calm).now_or_never().is_none());
    drop(first);
    assert!(calm.now_or_never().is_some_and(|permit| permit.is_ok()), "it waits behind the whole flood");
    assert!(flood[0].as_mut().now_or_never().is_some());
}

#[tokio::test]
async fn a_waiting_task_gets_the_returned_permit() {
    for tenant in [Some("a"), None] {
        let permits = permits();
        let mut taken = take(&permits, tenant, if tenant.is_some() { OF_TENANT } else { COUNT });
        let mut waiting = Box::pin(permits.take(tenant, None));
        assert!((&mut waiting).now_or_never().is_none());
        taken.pop();
        assert!(waiting.await.is_ok());
    }
}

#[tokio::test]
async fn a_timeout_on_the_global_limit_returns_the_tenants_permit() {
    let permits = permits();
    let taken = take(&permits, None, COUNT);
    assert_eq!(missing(&permits, None).await, COUNT);
    assert_eq!(missing(&permits, Some("a")).await, COUNT);
    drop(taken);
    take(&permits, Some("a"), OF_TENANT);
}

#[tokio::test]
async fn only_tenants_without_a_permit_are_forgotten() {
    let permits = permits();
    let _held = take(&permits, Some("held"), OF_TENANT);
    for idx in 0..9 {
        take(&permits, Some(&format!("tenant-{idx}")), 1);
    }
    assert_eq!(permits.num_tenants(), 2, "the held one's and the last one's");
    assert_eq!(missing(&permits, Some("held")).await, OF_TENANT);
}
