//! The files of the shard's store, which the object tier reads for its uploads and writes its downloads to.
//!
//! The shard owns the files and reports what they hold. Only this module opens them in the router, because whole blocks
//! through the socket would compete with the steps for the shard's interpreter (docs/decisions/0027-store-contents.md).

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use trunkline_object::{Block, BlockShape};
use trunkline_scheduler::{Offer, SlotId};
use trunkline_store::{Geometry, NewBlock, ReadError, Store};

use super::info::ShardInfo;

/// Keeps the object tier and a new shard's index of the store apart.
///
/// A task that uses slots of the store holds the gate for reading. The link holds it for writing while a shard counts
/// its slots, so no slot changes hands between the count and the scheduler's new index.
#[derive(Debug, Default)]
pub struct StoreGate(RwLock<Option<Arc<LocalStore>>>);

impl StoreGate {
    /// Waits until no task uses slots of the store, and keeps them from using more until the result is dropped.
    pub(super) async fn close(&self) -> ClosedGate<'_> {
        ClosedGate(self.0.write().await)
    }

    /// Waits until the gate is open. The result contains `None` if there is no usable store.
    pub(crate) async fn enter(&self) -> RwLockReadGuard<'_, Option<Arc<LocalStore>>> {
        self.0.read().await
    }

    /// Returns the store if the gate is open now.
    pub(crate) fn store(&self) -> Option<Arc<LocalStore>> {
        self.0.try_read().ok()?.clone()
    }
}

/// The gate while it is closed.
pub(super) struct ClosedGate<'a>(RwLockWriteGuard<'a, Option<Arc<LocalStore>>>);

impl ClosedGate<'_> {
    /// Replaces the store with this shard's, or with none if the shard has no usable one.
    pub(super) async fn set(&mut self, info: &ShardInfo, is_usable: bool) {
        *self.0 = if is_usable { LocalStore::attach(info).await.map(Arc::new) } else { None };
    }
}

/// A shard's store on disk, attached by the router.
#[derive(Debug)]
pub(crate) struct LocalStore {
    pub(crate) store: Store,
    pub(crate) shape: BlockShape,
}

impl LocalStore {
    /// Attaches to the shard's store; returns `None` after a warning if it cannot be used.
    pub(crate) async fn attach(info: &ShardInfo) -> Option<Self> {
        let folder: PathBuf = info.store_folder.clone()?;
        let geometry = Geometry {
            fingerprint: info.numeric_fingerprint.clone(),
            block_bytes: info.bytes_per_stored_block(),
            block_size: info.block_size,
            num_slots: info.num_store_slots,
        };
        let shape = info.block_shape();
        let attached = tokio::task::spawn_blocking(move || Store::attach(&folder, geometry));
        // It fails only if the runtime shuts down.
        match attached.await.ok()? {
            Ok(store) => Some(Self { store, shape }),
            Err(error) => {
                tracing::warn!(%error, "object store not used; hint: let the router write to the shard's folder");
                None
            }
        }
    }

    /// Reads the blocks that the scheduler offers for an upload.
    pub(crate) async fn read(self: &Arc<Self>, offers: Vec<Offer>) -> Vec<(Offer, Result<Block, ReadError>)> {
        let local = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let read = |offer: Offer| (offer, local.read_one(&offer));
            offers.into_iter().map(read).collect()
        });
        joined(read.await)
    }

    fn read_one(&self, offer: &Offer) -> Result<Block, ReadError> {
        let mut bytes = vec![0; self.shape.block_bytes as usize];
        let (found, token_ids) = self.store.read(offer.slot.0, offer.key, &mut bytes)?;
        let (parent, root, depth) = (found.parent, found.root, found.depth);
        Ok(Block { key: offer.key, parent, root, depth, token_ids, bytes: bytes.into() })
    }

    /// Writes blocks into reserved slots and returns how many were written before the first failure.
    pub(crate) async fn write(self: &Arc<Self>, blocks: Vec<(SlotId, Block)>) -> usize {
        let local = self.clone();
        let write = tokio::task::spawn_blocking(move || {
            let is_written = |(slot, block): &(SlotId, Block)| match local.write_one(*slot, block) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(%error, "a block from the object store could not be written");
                    false
                }
            };
            blocks.iter().take_while(|block| is_written(block)).count()
        });
        joined(write.await)
    }

    fn write_one(&self, slot: SlotId, block: &Block) -> Result<(), trunkline_store::WriteError> {
        let Block { key, parent, root, depth, token_ids, bytes } = block;
        let (key, parent, root, depth) = (*key, *parent, *root, *depth);
        self.store.write(slot.0, &NewBlock { key, parent, root, depth, token_ids }, bytes)?;
        self.store.begin_write_back(slot.0);
        Ok(())
    }
}

/// Passes a panic of the blocking task on.
fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
