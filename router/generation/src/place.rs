//! The place of a request among those that are open.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::models::Using;
use trunkline_base::tenants::{HeldPlaces, OpenPlaces};

/// Places among the open requests, and among those of the tenant. Dropping it releases them, and the model.
#[derive(Debug)]
pub struct Place {
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) tenant: Option<OpenPlaces>,
    pub(super) shared: Option<HeldPlaces>,
    /// The same among those of the model, on a server of several ones.
    pub(super) of_model: Option<Arc<HeldPlaces>>,
    /// Keeps the model in memory, on a server of several ones.
    pub(super) using: Option<Arc<Using>>,
}

impl Place {
    /// Counts a generated token against the tenant's rate.
    pub fn count_output(&self) {
        if let Some(tenant) = &self.tenant {
            tenant.limiter().take_output(1, Instant::now());
        }
    }

    /// Keeps a model in memory.
    pub(super) fn uses(&mut self, using: Option<Using>) {
        self.using = using.map(Arc::new);
    }

    /// Splits the places into guards of one place each.
    pub(super) fn split_all(mut self) -> Vec<Self> {
        let mut places = Vec::new();
        while self.permit.num_permits() > 1
            && let Some(permit) = self.permit.split(1)
        {
            let tenant = self.tenant.as_mut().and_then(OpenPlaces::split);
            let shared = self.shared.as_mut().and_then(|shared| shared.split(1));
            let (of_model, using) = (self.of_model.clone(), self.using.clone());
            places.push(Self { permit, tenant, shared, of_model, using });
        }
        places.push(self);
        places
    }
}
