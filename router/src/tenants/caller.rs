//! Who sent one request.

use std::sync::Arc;

use axum::extract::Request;
use trunkline_scheduler::{Priority, Salt};

use super::key_ring::Tenant;
use crate::error::ApiError;
use crate::request_id::RequestId;

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

    /// Returns the sender that the check of keys found. A request that did not pass that check is refused: it is a
    /// defect of the server, and must not let anybody in.
    pub fn of_request(request: &Request) -> Result<Self, ApiError> {
        request.extensions().get::<Self>().cloned().ok_or_else(|| {
            let request_id = RequestId::of(request);
            tracing::error!(request_id = request_id.as_str(), "a request came past the check of its key");
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

    /// Returns the highest class in the queue that its requests may have; `None` if no keys are configured.
    pub fn max_priority(&self) -> Option<Priority> {
        self.tenant.as_ref().map(|tenant| tenant.max_priority)
    }

    /// Its namespace of the KV index, and within it that of a request's `cache_salt`.
    pub fn salt(&self, cache_salt: Option<&str>) -> Salt {
        let salt = self.name().map_or_else(Salt::default, Salt::of_tenant);
        Salt { cache_salt: cache_salt.map(Into::into), ..salt }
    }
}
