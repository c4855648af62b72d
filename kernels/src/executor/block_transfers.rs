//! Blocks of the pool from and to a store: which bytes a transfer means, and by which key a block is found again.

use std::sync::Arc;
use std::time::Duration;

use trunkline_contract::BlockKey;
use trunkline_store::{RestoreBlock, StoreBlock, Transfers};

use super::{Executor, ExecutorError};

/// How long a step waits for the blocks that it stored: they are on their way to the page cache, and a router that is
/// told of them with the step's result can count on them from then on. A disk that takes longer holds no step.
const STORE_WAIT: Duration = Duration::from_millis(10);

/// Keys of a sequence's blocks, as far as they were needed.
#[derive(Debug)]
pub(super) struct KeyChain {
    /// The root key, then one for each block.
    keys: Vec<BlockKey>,
}

impl KeyChain {
    pub(super) fn new(root: BlockKey) -> Self {
        Self { keys: vec![root] }
    }

    fn root(&self) -> BlockKey {
        self.keys[0]
    }

    /// The keys before and of the block `index`, all of whose tokens are known.
    fn around(&mut self, index: usize, token_ids: &[u32], block_size: usize) -> [BlockKey; 2] {
        while self.keys.len() <= index + 1 {
            let block = self.keys.len() - 1;
            self.keys.push(self.keys[block].extend(&token_ids[block * block_size..(block + 1) * block_size]));
        }
        [self.keys[index], self.keys[index + 1]]
    }
}

/// The store that an executor was given. Dropped before the pool: no transfer outlives the memory that it concerns.
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
    /// From now on blocks can be stored and restored. Fails if the store's blocks are not of this pool's size, or there
    /// is one already.
    pub fn attach_store(&mut self, transfers: Arc<Transfers>) -> Result<(), ExecutorError> {
        let geometry = transfers.store().geometry();
        let (ours, theirs) = (
            (self.kv.geometry().bytes_per_block() as u64, self.kv.geometry().block_size),
            (geometry.block_bytes, geometry.block_size as usize),
        );
        if ours != theirs {
            return Err(fail(format!("its blocks have (bytes, tokens) {theirs:?}, expected {ours:?}")));
        }
        if self.store.is_some() {
            return Err(fail("there is one already".to_owned()));
        }
        self.store = Some(BlockTransfers { transfers });
        Ok(())
    }

    fn transfers(&self) -> Result<&Arc<Transfers>, ExecutorError> {
        let store = self.store.as_ref().ok_or_else(|| fail("there is none".to_owned()))?;
        Ok(&store.transfers)
    }

    /// The key before the first block of a started sequence: its blocks can be stored.
    pub fn set_root_key(&mut self, sequence_id: u64, root: BlockKey) -> Result<(), ExecutorError> {
        let slot = self.sequences.find(sequence_id).ok_or(ExecutorError::UnknownSequence { sequence_id })?;
        self.sequences.at_mut(slot).keys = Some(KeyChain::new(root));
        Ok(())
    }

    /// Fails if blocks of this sequence cannot be stored, or `slot` may not be written now.
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

    /// Begins to store the full block `block_index` of a sequence in `slot`, with its window part. Its bytes are taken
    /// now.
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
        let store = self.store.as_ref().ok_or_else(|| fail("there is none".to_owned()))?;
        store.transfers.begin_store(block, pieces).map_err(|error| fail(error.to_string()))
    }

    /// Begins to read blocks, each (slot, block id, key, whether without its window part). Until the outcome has come,
    /// nobody may use the blocks.
    pub fn begin_restore(
        &mut self,
        restore_id: u64,
        blocks: &[(u32, u32, BlockKey, bool)],
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
        // initialised. Nobody reads or writes them meanwhile, and their window parts are not dropped: the contract
        // between router and shard says so of plans, and `reset` waits.
        let begun = unsafe { self.transfers()?.begin_restore(restore_id, restored) };
        begun.map_err(|error| fail(error.to_string()))
    }

    /// Empties a slot of the store.
    pub fn discard(&self, slot: u32) -> Result<(), ExecutorError> {
        self.transfers()?.discard(slot).map_err(|error| fail(error.to_string()))
    }

    /// Begins the stores (sequence id, block index, slot) of a step that was done, and waits a little for their ends:
    /// not at all, if the disk is behind already. Those of sequences for which `has_failed` says so are refused.
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

    /// Ends all transfers and forgets what became of them.
    pub(super) fn finish_transfers(&self) {
        if let Some(store) = &self.store {
            store.transfers.finish();
            drop(store.transfers.take_outcomes());
        }
    }
}
