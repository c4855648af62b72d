//! Memory that is divided among those who share it, so that none of them takes all.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::places::{HeldPlaces, SharedPlaces};

const PERMIT_BYTES: usize = 1024;

/// The memory for one purpose.
#[derive(Debug)]
pub struct MemoryBudget {
    /// One permit for each KiB.
    pub free: Arc<Semaphore>,
    /// The permits that each sharer holds.
    shared: Arc<SharedPlaces>,
    num_permits: usize,
}

/// The reason why there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoMemory {
    /// What is held now leaves too little.
    InUse,
    /// More is asked for than one may ever hold.
    TooMuch { limit_bytes: usize },
}

/// Memory that one request holds. Dropping it returns the memory.
#[derive(Debug)]
pub struct HeldMemory {
    budget: Arc<MemoryBudget>,
    /// The name of the sharer; `None` if nobody shares the memory.
    sharer: Option<Arc<str>>,
    permits: Option<OwnedSemaphorePermit>,
    held: Option<HeldPlaces>,
}

impl MemoryBudget {
    pub fn new(max_bytes: usize) -> Self {
        let num_permits = (max_bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(num_permits)), shared: Arc::default(), num_permits }
    }

    /// Returns an empty account. Without a `sharer` it may hold all memory.
    pub fn account(self: &Arc<Self>, sharer: Option<Arc<str>>) -> HeldMemory {
        HeldMemory { budget: self.clone(), sharer, permits: None, held: None }
    }
}

impl HeldMemory {
    pub fn num_bytes(&self) -> usize {
        self.num_permits() * PERMIT_BYTES
    }

    fn num_permits(&self) -> usize {
        self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// Takes memory until there are at least `num_bytes`, or changes nothing.
    pub fn grow_to(&mut self, num_bytes: usize) -> Result<(), NoMemory> {
        let num_wanted = num_bytes.div_ceil(PERMIT_BYTES);
        let num_missing = num_wanted.saturating_sub(self.num_permits());
        if num_missing == 0 {
            return Ok(());
        }
        let budget = &self.budget;
        let most = match &self.sharer {
            Some(_) => SharedPlaces::most_of(budget.num_permits),
            None => budget.num_permits,
        };
        if num_wanted > most {
            return Err(NoMemory::TooMuch { limit_bytes: most * PERMIT_BYTES });
        }
        let more = u32::try_from(num_missing).map_err(|_| NoMemory::InUse)?;
        let more = budget.free.clone().try_acquire_many_owned(more).map_err(|_| NoMemory::InUse)?;
        if let Some(sharer) = &self.sharer {
            let held = budget.shared.take(sharer, num_missing, budget.free.available_permits());
            let held = held.map_err(|_| NoMemory::InUse)?;
            match &mut self.held {
                Some(all) => all.merge(held),
                all => *all = Some(held),
            }
        }
        match &mut self.permits {
            Some(permits) => permits.merge(more),
            permits => *permits = Some(more),
        }
        Ok(())
    }

    /// Splits off one of `num_parts` equal parts.
    pub fn split(&mut self, num_parts: usize) -> Self {
        let num_permits = self.num_permits() / num_parts;
        Self {
            budget: self.budget.clone(),
            sharer: self.sharer.clone(),
            permits: self.permits.as_mut().and_then(|permits| permits.split(num_permits)),
            held: self.held.as_mut().and_then(|held| held.split(num_permits)),
        }
    }

    /// Returns memory beyond `num_bytes`.
    pub fn shrink_to(&mut self, num_bytes: usize) {
        let num_needed = num_bytes.div_ceil(PERMIT_BYTES);
        if num_needed == 0 {
            (self.permits, self.held) = (None, None);
            return;
        }
        let num_excess = self.num_permits().saturating_sub(num_needed);
        drop(self.permits.as_mut().and_then(|permits| permits.split(num_excess)));
        drop(self.held.as_mut().and_then(|held| held.split(num_excess)));
    }
}
