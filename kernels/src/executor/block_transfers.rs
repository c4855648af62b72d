//! Transfers of KV blocks between the pool and a block store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use trunkline_contract::BlockKey;
use trunkline_store::{RestoreBlock, StoreBlock, Transfers};

use super::{Executor, ExecutorError};

/// The longest time that a step waits for its own stores. Usually they only reach the page cache, so their outcomes are
/// reported with the step's result. A slower disk does not delay the step.
const STORE_WAIT: Duration = Duration::from_millis(10);

/// The keys of a sequence's blocks, computed when they are first needed.
#[derive(Debug)]
pub(super) struct KeyChain {
    /// The root key, followed by the key of each block.
    keys: Vec<BlockKey>,
}

impl KeyChain {
    pub(super) fn new(root: BlockKey) -> Self {
        Self { keys: vec![root] }
    }

    fn root(&self) -> BlockKey {
        self.keys[0]
    }

    /// Returns the parent key and the key of block `index`. All tokens of the block must be known.
    fn around(&mut self, index: usize, token_ids: &[u32], block_size: usize) -> [BlockKey; 2] {
        while self.keys.len() <= index + 1 {
            let block = self.keys.len() - 1;
            self.keys.push(self.keys[block].extend(&token_ids[block * block_size..(block + 1) * block_size]));
        }
        [self.keys[index], self.keys[index + 1]]
    }
}

/// The attached store. Dropping it ends all transfers; it is dropped before the pool whose memory they use.
#[derive(Debug)]
pub(super) struct BlockTransfers {
    transfers: Arc<Transfers>,
}

impl Drop for BlockTransfers {
    fn drop(&mut self) {
        self.transfers.finish();
    }
}

fn fail(what: String) -> ExecutorError {
    ExecutorError::Store { what }
}

impl Executor {
    /// Attaches a block store. Fails if its block size differs from the pool's, or if a store is already attached.
    pub fn attach_store(&mut self, transfers: Arc<Transfers>) -> Result<(), ExecutorError> {
        let geometry = transfers.store().geometry();
        let (ours, theirs) = (
            (self.kv.geometry().bytes_per_block() as u64, self.kv.geometry().block_size),
            (geometry.block_bytes, geometry.block_size as usize),
        );
        if ours != theirs {
            return Err(fail(format!("its blocks have (bytes, tokens) {theirs:?}, expected {ours:?}")));
        }
        // Transfers write to blocks while steps run, whose memory may then be given to others.
        if self.spill.is_some() {
            return Err(fail("a part of the pool is in a file".to_owned()));
        }
        if self.store.is_some() {
            return Err(fail("a store is already attached".to_owned()));
        }
        self.store = Some(BlockTransfers { transfers });
        Ok(())
    }

    fn transfers(&self) -> Result<&Arc<Transfers>, ExecutorError> {
        let store = self.store.as_ref().ok_or_else(|| fail("no store is attached".to_owned()))?;
        Ok(&store.transfers)
    }

    /// Sets the parent key of a sequence's first block. Without it, the sequence's blocks cannot be stored.
    pub fn set_root_key(&mut self, sequence_id: u64, root: BlockKey) -> Result<(), ExecutorError> {
        self.sequence_mut(sequence_id)?.keys = Some(KeyChain::new(root));
        Ok(())
    }

    /// Fails if blocks of this sequence cannot be stored, or if `slot` is in use by a transfer.
    pub fn check_store(&self, sequence_id: u64, slot: u32) -> Result<(), ExecutorError> {
        self.transfers()?.check_free(slot).map_err(|error| fail(error.to_string()))?;
        let sequence = self.sequences.find(sequence_id).map(|slot| self.sequences.at(slot));
        match sequence {
            None => Err(ExecutorError::UnknownSequence { sequence_id }),
            Some(sequence) if sequence.keys.is_none() => {
                Err(fail(format!("sequence {sequence_id} was started without a root key")))
            }
            Some(_) => Ok(()),
        }
    }

    /// Begins to store the full block `block_index` of a sequence, with its window part, in `slot` of the store. The
    /// bytes are copied before the call returns.
    pub fn begin_store(
        &mut self,
        sequence_id: u64,
        block_index: usize,
        slot: u32,
    ) -> Result<(), ExecutorError> {
        self.check_store(sequence_id, slot)?;
        let block_size = self.kv.geometry().block_size;
        let found = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        let sequence = self.sequences.at_mut(found);
        let end = block_index.saturating_add(1).saturating_mul(block_size);
        if end > sequence.num_computed() {
            return Err(fail(format!("block {block_index} of sequence {sequence_id} is not full")));
        }
        let pieces = self.kv.whole_block(sequence.block_table[block_index])?;
        let chain = sequence.keys.as_mut().expect("checked above");
        let [parent, key] = chain.around(block_index, &sequence.token_ids, block_size);
        let block = StoreBlock {
            slot,
            key,
            parent,
            root: chain.root(),
            depth: block_index as u32,
            token_ids: sequence.token_ids[end - block_size..end].into(),
        };
        let store = self.store.as_ref().ok_or_else(|| fail("no store is attached".to_owned()))?;
        store.transfers.begin_store(block, pieces).map_err(|error| fail(error.to_string()))
    }

    /// Begins to read blocks from the store, or from another one in `folder`, each (slot, block id, key, whether to
    /// leave out the window part). The blocks may not be used until the outcome is reported.
    pub fn begin_restore(
        &mut self,
        restore_id: u64,
        blocks: &[(u32, u32, BlockKey, bool)],
        folder: Option<PathBuf>,
    ) -> Result<(), ExecutorError> {
        let mut restored = Vec::with_capacity(blocks.len());
        for (index, &(slot, block_id, key, base_only)) in blocks.iter().enumerate() {
            if blocks[..index].iter().any(|&(_, other, ..)| other == block_id) {
                return Err(fail(format!("block {block_id} is restored twice")));
            }
            self.kv.check_block(block_id)?;
            if base_only {
                self.kv.drop_window_part(block_id)?;
            } else {
                self.kv.take_window_part(block_id)?;
            }
            restored.push(RestoreBlock { slot, key, pieces: self.kv.pieces(block_id)? });
        }
        // SAFETY: the bytes are blocks of the pool, which outlives the transfer (`BlockTransfers`) and whose memory is
        // initialised. Until the transfer ends, they are not read or written and their window parts are not dropped:
        // the contract between router and shard forbids plans that do, and `reset` waits.
        let begun = unsafe { self.transfers()?.begin_restore(restore_id, restored, folder) };
        begun.map_err(|error| fail(error.to_string()))
    }

    pub fn discard(&self, slot: u32) -> Result<(), ExecutorError> {
        self.transfers()?.discard(slot).map_err(|error| fail(error.to_string()))
    }

    /// Begins the stores of a finished step, each (sequence id, block index, slot), and waits up to 10 ms for them to
    /// end. It does not wait if earlier stores are still in progress. Stores of sequences that `has_failed` reports as
    /// failed are refused.
    pub fn begin_stores(
        &mut self,
        stores: &[(u64, u32, u32)],
        has_failed: impl Fn(u64) -> bool,
    ) -> Result<(), ExecutorError> {
        if stores.is_empty() {
            return Ok(());
        }
        let transfers = Arc::clone(self.transfers()?);
        let is_behind = transfers.is_storing();
        transfers.hold_outcomes();
        for &(sequence_id, block_index, slot) in stores {
            if has_failed(sequence_id) {
                transfers.fail_store(slot).map_err(|error| fail(error.to_string()))?;
            } else {
                self.begin_store(sequence_id, block_index as usize, slot)?;
            }
        }
        if !is_behind {
            transfers.wait_stores(STORE_WAIT);
        }
        Ok(())
    }

    /// Waits for all transfers and discards their outcomes.
    pub(super) fn finish_transfers(&self) {
        if let Some(store) = &self.store {
            store.transfers.finish();
            drop(store.transfers.take_outcomes());
        }
    }
}
