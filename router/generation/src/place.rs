//! The place of a request among those that are open.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::models::Using;
use super::request::ready::GenerationRequest;
use trunkline_base::error::ApiError;
use trunkline_base::limits::UNCOUNTED_REQUEST_BYTES;
use trunkline_base::tenants::{HeldMemory, HeldPlaces, NoMemory, OpenPlaces};

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
    /// Replaces the memory of a request's body by that of its prompts, before they are copied for its outputs.
    pub(super) fn hold_prompts(
        &mut self,
        requests: &[GenerationRequest],
        num_choices: usize,
    ) -> Result<(), ApiError> {
        let num_bytes =
            requests.iter().map(|request| request.num_bytes(num_choices)).fold(0, usize::saturating_add);
        let num_counted = num_bytes.saturating_sub(UNCOUNTED_REQUEST_BYTES);
        self.memory.grow_to(num_counted).map_err(|error| match error {
            NoMemory::InUse => ApiError::TooManyBodies,
            NoMemory::TooMuch { limit_bytes } => {
                let num_outputs = requests.len() * num_choices;
                let problem = format!(
                    "asks for {num_outputs} outputs at once, whose prompts take {num_bytes} bytes of memory, but one \
                     sender gets at most {limit_bytes}; hint: send several requests"
                );
                ApiError::value("n", problem)
            }
        })?;
        self.memory.shrink_to(num_counted);
        Ok(())
    }

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
