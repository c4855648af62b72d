//! The place of a request among those that are open.

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use trunkline_base::tenants::{HeldPlaces, OpenPlaces};

/// Places among the open requests, and among those of the tenant. Dropping it releases them.
#[derive(Debug)]
pub struct Place {
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) tenant: Option<OpenPlaces>,
    pub(super) shared: Option<HeldPlaces>,
}

impl Place {
    /// Counts a generated token against the tenant's rate.
    pub fn count_output(&self) {
        if let Some(tenant) = &self.tenant {
            tenant.limiter().take_output(1, Instant::now());
        }
    }

    /// Splits the places into guards of one place each.
    pub(super) fn split_all(mut self) -> Vec<Self> {
        let mut places = Vec::new();
        while self.permit.num_permits() > 1
            && let Some(permit) = self.permit.split(1)
        {
            let tenant = self.tenant.as_mut().and_then(OpenPlaces::split);
            let shared = self.shared.as_mut().and_then(|shared| shared.split(1));
            places.push(Self { permit, tenant, shared });
        }
        places.push(self);
        places
    }
}
