//! The caller of a request, as the check of its key found it.

use std::sync::Arc;

use axum::extract::Request;
use trunkline_scheduler::{Priority, Salt};

use super::key_ring::Tenant;
use super::network::ClientNetwork;
use crate::error::ApiError;
use crate::request_id::RequestId;

/// The sender of a request: a tenant, or any client if no keys are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    tenant: Option<Arc<Tenant>>,
    is_admin: bool,
    /// The network that it calls from, where a listener has told it.
    network: Option<ClientNetwork>,
}

impl Caller {
    /// Returns the caller of all requests if no keys are configured and only this machine reaches the server.
    pub fn anybody() -> Self {
        Self { tenant: None, is_admin: true, network: None }
    }

    /// Returns the caller that sent a key of this tenant.
    pub fn of_tenant(tenant: Arc<Tenant>) -> Self {
        Self { is_admin: tenant.is_admin, tenant: Some(tenant), network: None }
    }

    /// Returns a caller without a tenant that may see nothing of the KV cache.
    pub fn stranger() -> Self {
        Self { tenant: None, is_admin: false, network: None }
    }

    /// Returns the same caller, which calls from this network.
    pub fn from_network(self, network: Option<ClientNetwork>) -> Self {
        Self { network, ..self }
    }

    /// Returns the caller that the check of keys stored in the request. A request that bypassed the check is refused,
    /// because a defect of the server must not grant access.
    pub fn of_request(request: &Request) -> Result<Self, ApiError> {
        request.extensions().get::<Self>().cloned().ok_or_else(|| {
            let request_id = RequestId::of(request);
            tracing::error!(request_id = request_id.as_str(), "a request bypassed the check of its key");
            ApiError::Bug { request_id }
        })
    }

    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.as_ref()
    }

    /// Returns the tenant's name for logs; `None` if no keys are configured.
    pub fn name(&self) -> Option<&str> {
        self.tenant.as_ref().map(|tenant| tenant.name.as_str())
    }

    /// Returns the network that the caller calls from, as text. It is empty if no listener has told it.
    pub fn network(&self) -> Arc<str> {
        self.network.map(|network| network.to_string()).unwrap_or_default().into()
    }

    /// Returns true if the caller may see the cached prompts of all tenants, as every caller may without keys.
    pub fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// Returns true if the caller may use the adapter with this name, and may know of it.
    pub fn may_use_adapter(&self, name: &str) -> bool {
        let allowed = self.tenant.as_ref().and_then(|tenant| tenant.adapters.as_ref());
        allowed.is_none_or(|allowed| allowed.contains(name))
    }

    /// Returns true if the caller may use the model with this name, and may know of it.
    pub fn may_use_model(&self, name: &str) -> bool {
        let allowed = self.tenant.as_ref().and_then(|tenant| tenant.models.as_ref());
        allowed.is_none_or(|allowed| allowed.contains(name))
    }

    /// Returns true if no list limits the models that the caller may use.
    pub fn may_use_all_models(&self) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| tenant.models.is_none())
    }

    /// Returns true if the caller may see what is cached under `salt`, as its tenant or as an admin.
    pub fn may_see(&self, salt: &Salt) -> bool {
        self.is_admin || (self.tenant.is_some() && salt.tenant() == self.name())
    }

    /// Returns the highest class in the queue that its requests may have; `None` if no keys are configured.
    pub fn max_priority(&self) -> Option<Priority> {
        self.tenant.as_ref().map(|tenant| tenant.max_priority)
    }

    /// Returns the namespace in the KV index: the tenant's, divided by the request's `cache_salt`.
    pub fn salt(&self, cache_salt: Option<&str>) -> Salt {
        let salt = self.name().map_or_else(Salt::default, Salt::of_tenant);
        Salt { cache_salt: cache_salt.map(Into::into), ..salt }
    }
}
