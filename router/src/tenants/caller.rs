//! Who sent one request.

use std::sync::Arc;

use axum::extract::Request;
use trunkline_scheduler::{Priority, Salt};

use super::key_ring::Tenant;
use crate::error::ApiError;
use crate::service_tier::Wanted;

/// Who sent a request: a tenant, or where no keys are configured anybody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    tenant: Option<Arc<Tenant>>,
    is_admin: bool,
}

impl Caller {
    /// Anybody: there are no keys.
    pub fn anybody() -> Self {
        Self { tenant: None, is_admin: true }
    }

    /// Who sent a key of this tenant.
    pub fn of_tenant(tenant: Arc<Tenant>) -> Self {
        Self { is_admin: tenant.is_admin, tenant: Some(tenant) }
    }

    /// Who asks a probe without a key where there are keys.
    pub(super) fn probe() -> Self {
        Self { tenant: None, is_admin: false }
    }

    /// As [`super::require_key`] found. A request that did not pass it is refused: a defect, and no way in.
    pub fn of_request(request: &Request) -> Result<Self, ApiError> {
        request.extensions().get::<Self>().cloned().ok_or_else(|| {
            let request_id = crate::random::id();
            tracing::error!(request_id, "a request came past the check of its key");
            ApiError::Bug { request_id }
        })
    }

    /// The tenant, if keys are configured.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.as_ref()
    }

    /// Its name in logs, if keys are configured.
    pub fn name(&self) -> Option<&str> {
        self.tenant.as_ref().map(|tenant| tenant.name.as_str())
    }

    /// May see what all tenants have cached. Where there are no keys, everybody may.
    pub fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// Whether what is cached under a salt is its own, or shown to it as an admin.
    pub fn may_see(&self, salt: &Salt) -> bool {
        self.is_admin || (self.tenant.is_some() && salt.tenant() == self.name())
    }

    /// The class that its request gets.
    pub fn class(&self, wanted: Wanted) -> Priority {
        wanted.granted(self.tenant.as_ref().map(|tenant| tenant.max_priority))
    }

    /// Its namespace of the KV index, and within it that of a request's `cache_salt`.
    pub fn salt(&self, cache_salt: Option<&str>) -> Salt {
        let parts = cache_salt.as_slice();
        self.name().map_or_else(|| Salt::new(parts), |name| Salt::of_tenant(name, parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(name: &str, is_admin: bool) -> Caller {
        Caller::of_tenant(Arc::new(Tenant { is_admin, ..Tenant::new(name) }))
    }

    #[test]
    fn no_two_callers_share_a_salt() {
        let mut salts = Vec::new();
        for caller in [Caller::anybody(), caller("a", false), caller("b", false), caller("tenant", false)] {
            for cache_salt in [None, Some(""), Some("a"), Some("b"), Some("tenant")] {
                salts.push(caller.salt(cache_salt));
            }
        }
        let keys: std::collections::BTreeSet<_> = salts.iter().map(Salt::root_key).collect();
        assert_eq!(keys.len(), salts.len());
        assert_eq!(Caller::anybody().salt(None), Salt::default());
        assert_eq!(Caller::anybody().salt(Some("a")), Salt::new(&["a"]));
    }

    #[test]
    fn only_admins_see_others_where_there_are_keys() {
        assert!(Caller::anybody().is_admin() && caller("a", true).is_admin());
        assert!(!caller("a", false).is_admin() && !Caller::probe().is_admin());
    }

    #[test]
    fn a_tenant_sees_its_own_salts_and_an_admin_all() {
        let (alice, bob, admin) = (caller("a", false), caller("b", false), caller("c", true));
        for salt in [alice.salt(None), alice.salt(Some("b"))] {
            assert!(alice.may_see(&salt) && admin.may_see(&salt) && Caller::anybody().may_see(&salt));
            assert!(!bob.may_see(&salt) && !Caller::probe().may_see(&salt));
        }
        assert!(!alice.may_see(&Salt::default()) && !Caller::probe().may_see(&Salt::default()));
    }

    #[test]
    fn a_request_that_passed_no_check_has_no_caller() {
        let request = Request::new(axum::body::Body::empty());
        assert!(matches!(Caller::of_request(&request), Err(ApiError::Bug { .. })));
    }
}
