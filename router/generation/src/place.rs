//! The place of a request among those that are open.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::models::Using;
use trunkline_base::tenants::{HeldMemory, HeldPlaces, OpenPlaces};

/// Places among the open requests, and among those of the tenant. Dropping it releases them, and the model.
#[derive(Debug)]
pub struct Place {
    pub(super) permit: OwnedSemaphorePermit,
    /// The memory of the request's body, and later of its prompts.
    pub(super) memory: HeldMemory,
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

    /// Splits the places into guards of one place each, with equal parts of the memory.
    pub(super) fn split_all(mut self) -> Vec<Self> {
        let mut places = Vec::new();
        while let num_left @ 2.. = self.permit.num_permits()
            && let Some(permit) = self.permit.split(1)
        {
            let memory = self.memory.split(num_left);
            let tenant = self.tenant.as_mut().and_then(OpenPlaces::split);
            let shared = self.shared.as_mut().and_then(|shared| shared.split(1));
            let (of_model, using) = (self.of_model.clone(), self.using.clone());
            places.push(Self { permit, memory, tenant, shared, of_model, using });
        }
        places.push(self);
        places
    }
}
