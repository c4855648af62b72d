//! The shard's store on this machine: read for uploads, written with what came down.

use std::path::PathBuf;
use std::sync::Arc;

use trunkline_object::{Block, BlockShape};
use trunkline_scheduler::{Offer, SlotId};
use trunkline_store::{Geometry, NewBlock, ReadError, Store};

use crate::engine::shard::ShardInfo;

/// The store of one shard, attached.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) store: Store,
    pub(super) shape: BlockShape,
}

impl Local {
    /// None, with a warning, if the store cannot be used.
    pub(super) async fn attach(info: &ShardInfo) -> Option<Self> {
        let folder: PathBuf = info.store_folder.clone()?;
        let geometry = Geometry {
            fingerprint: info.numeric_fingerprint.clone(),
            block_bytes: info.bytes_per_stored_block(),
            block_size: info.block_size,
            num_slots: info.num_store_slots,
        };
        let shape = BlockShape {
            fingerprint: geometry.fingerprint.clone(),
            block_size: geometry.block_size,
            block_bytes: geometry.block_bytes,
        };
        let attached = tokio::task::spawn_blocking(move || Store::attach(&folder, geometry));
        // It fails only if the runtime shuts down.
        match attached.await.ok()? {
            Ok(store) => Some(Self { store, shape }),
            Err(error) => {
                tracing::warn!(%error, "the object store is not used; hint: the router must be able to write the shard's folder");
                None
            }
        }
    }

    /// Reads offered blocks.
    pub(super) async fn read(self: &Arc<Self>, offers: Vec<Offer>) -> Vec<(Offer, Result<Block, ReadError>)> {
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

    /// Writes blocks into reserved slots; returns how many, from the first on, are written.
    pub(super) async fn write(self: &Arc<Self>, blocks: Vec<(SlotId, Block)>) -> usize {
        let local = self.clone();
        let write = tokio::task::spawn_blocking(move || {
            let is_written = |(slot, block): &(SlotId, Block)| match local.write_one(*slot, block) {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(%error, "a block from the object store is not kept");
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

/// A panic there is a defect of ours, as one here.
fn joined<T>(result: Result<T, tokio::task::JoinError>) -> T {
    result.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
