//! Removal of blocks that users ask for, so that this server finds them in no tier afterwards.

use std::time::Duration;

use tokio::sync::RwLockWriteGuard;
use tokio::time::timeout;
use trunkline_object::{BlockShape, RemoteError};
use trunkline_scheduler::BlockKey;

use super::ObjectTier;

/// The longest wait for uploads in progress.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A removal in progress. No block is uploaded or adopted until it is dropped.
#[derive(Debug)]
pub struct Removal<'a> {
    tier: &'a ObjectTier,
    _removals: RwLockWriteGuard<'a, u64>,
}

impl ObjectTier {
    /// Waits until no block is being uploaded, and ends all downloads, because they may have read the blocks before.
    pub async fn begin_removal(&self) -> Result<Removal<'_>, RemoteError> {
        match timeout(MAX_WAIT, self.removals.write()).await {
            Ok(mut removals) => {
                *removals += 1;
                Ok(Removal { tier: self, _removals: removals })
            }
            Err(_) => Err(RemoteError::Slow { operation: "upload", limit_ms: MAX_WAIT.as_millis() }),
        }
    }
}

impl Removal<'_> {
    /// Removes blocks from the object store, which may not have them.
    pub async fn remove(&self, shape: &BlockShape, keys: &[BlockKey]) -> Result<(), RemoteError> {
        let removed = self.tier.remote.remove(shape, keys).await;
        match &removed {
            Ok(()) => self.tier.state().breaker.worked(),
            Err(failure) => self.tier.note_failure(failure),
        }
        removed
    }
}
