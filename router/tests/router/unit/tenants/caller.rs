use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::HeaderMap;
use trunkline_base::error::ApiError;
use trunkline_base::request_id::RequestId;
use trunkline_base::tenants::{Access, Caller, Tenant};
use trunkline_scheduler::Salt;

fn caller(name: &str, is_admin: bool) -> Caller {
    Caller::of_tenant(Arc::new(Tenant { is_admin, ..Tenant::new(name) }))
}

/// Returns the caller of `/livez` without a key on a server with keys.
fn probe() -> Caller {
    let access = Access::new(None, Some("sk-0123456789abcdef")).unwrap();
    access.caller(false, &HeaderMap::new()).unwrap()
}

#[test]
fn no_two_callers_share_a_salt() {
    let mut salts = Vec::new();
    for caller in [Caller::anybody(), caller("a", false), caller("b", false), caller("tenant", false)] {
        for cache_salt in [None, Some(""), Some("a"), Some("b"), Some("tenant")] {
            salts.push(caller.salt(cache_salt));
        }
    }
    let keys: BTreeSet<_> = salts.iter().map(Salt::root_key).collect();
    assert_eq!(keys.len(), salts.len());
    assert_eq!(Caller::anybody().salt(None), Salt::default());
    assert_eq!(Caller::anybody().salt(Some("a")), Salt::default().with_cache_salt("a"));
}

#[test]
fn with_keys_only_admins_see_other_tenants() {
    assert!(Caller::anybody().is_admin() && caller("a", true).is_admin());
    assert!(!caller("a", false).is_admin() && !probe().is_admin());
}

#[test]
fn a_tenant_sees_its_own_salts_and_an_admin_all() {
    let (alice, bob, admin) = (caller("a", false), caller("b", false), caller("c", true));
    for salt in [alice.salt(None), alice.salt(Some("b"))] {
        assert!(alice.may_see(&salt) && admin.may_see(&salt) && Caller::anybody().may_see(&salt));
        assert!(!bob.may_see(&salt) && !probe().may_see(&salt));
    }
    assert!(!alice.may_see(&Salt::default()) && !probe().may_see(&Salt::default()));
}

#[test]
fn a_request_without_authentication_has_no_caller_and_its_error_names_the_request() {
    let mut request = Request::new(axum::body::Body::empty());
    let id = RequestId::from_client("of-the-access-log").unwrap();
    request.extensions_mut().insert(id.clone());
    let Err(ApiError::Bug { request_id }) = Caller::of_request(&request) else { panic!("it is a defect") };
    assert_eq!(request_id, id);
}
