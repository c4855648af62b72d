//! The scheduler's side of the tier below the store: which blocks it takes, what a prompt lacks, and where fetched
//! blocks go.

use trunkline_contract::{BlockKey, SlotId};
use trunkline_kv::{Offer, Salt, StoreIndex};

use crate::estimate::Throughput;
use crate::shard::Shard;

/// After so many failures in a row, no blocks are fetched to the store: it is full, broken or in other hands, so they
/// could not be read back. New prompts still try to store their blocks, and the first success ends this.
const MAX_STORE_FAILURES: u32 = 8;

/// The part of a prompt that the pool and the store have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Whole blocks, from the first on.
    pub num_blocks: usize,
    /// True if fetched blocks can be put behind them, because the store has the last one.
    pub is_extensible: bool,
    /// Predicted milliseconds to compute the rest; none before anything was measured.
    pub compute_ms: Option<f64>,
}

/// A shard's store, as the tier below it sees it. Without a shard there is nothing to offer, and no slot to reserve.
///
/// The caller does the I/O. Offers from [`LowerTier::take_offers`] must be given back by [`LowerTier::end_offer`], and
/// slots from [`LowerTier::reserve_adopted`] by [`LowerTier::adopt`], before the next `Event::ShardReady`.
#[derive(Debug)]
pub struct LowerTier<'a> {
    shard: Option<&'a mut Shard>,
    throughput: &'a Throughput,
}

impl<'a> LowerTier<'a> {
    pub(crate) fn new(shard: Option<&'a mut Shard>, throughput: &'a Throughput) -> Self {
        Self { shard, throughput }
    }

    /// Returns the part of `tokens` that pool and store have. The whole blocks of `tokens` have these keys. None
    /// without a store that works. It costs as much as a lookup.
    pub fn coverage(&self, salt: &Salt, tokens: &[u32], keys: &[BlockKey]) -> Option<Coverage> {
        let shard = self.shard.as_ref().filter(|shard| shard.num_store_failures < MAX_STORE_FAILURES)?;
        let kv = &shard.kv;
        kv.store()?;
        let hit = kv.lookup(salt, tokens);
        let num_blocks = hit.num_blocks() + hit.stored().len();
        let last = num_blocks.checked_sub(1).map(|last| keys.get(last));
        let num_covered_tokens = num_blocks as u32 * shard.limits.block_size;
        let num_missing_tokens = (tokens.len() as u32).saturating_sub(num_covered_tokens);
        Some(Coverage {
            num_blocks,
            is_extensible: last
                .is_none_or(|key| key.is_some_and(|&key| kv.store().is_some_and(|store| store.has(key)))),
            compute_ms: self.throughput.predict_prefill_ms(num_missing_tokens),
        })
    }

    /// Returns how many of these blocks, from the first on, the store has. It is cheaper than [`LowerTier::coverage`].
    pub fn num_stored(&self, keys: &[BlockKey]) -> usize {
        let store = self.shard.as_ref().and_then(|shard| shard.kv.store());
        store.map_or(0, |store| keys.iter().take_while(|key| store.has(**key)).count())
    }

    /// Returns at most `max_offers` stored blocks for the tier below. Each stays in the store until
    /// [`LowerTier::end_offer`].
    pub fn take_offers(&mut self, max_offers: usize) -> Vec<Offer> {
        let Some(store) = self.store() else { return Vec::new() };
        std::iter::from_fn(|| store.take_offer()).take(max_offers).collect()
    }

    /// Ends an offer whose block was read. A broken block is not found again.
    pub fn end_offer(&mut self, offer: &Offer, is_broken: bool) {
        if let Some(store) = self.store() {
            store.end_read(offer.slot, is_broken);
        }
    }

    /// Offers a block again, after all waiting ones, because the tier below did not take it.
    pub fn refuse_offer(&mut self, key: BlockKey) {
        if let Some(store) = self.store() {
            store.refuse_offer(key);
        }
    }

    /// Reserves slots for at most `num_blocks` blocks of a salt that continue the stored block `before`.
    pub fn reserve_adopted(
        &mut self,
        salt: &Salt,
        before: Option<BlockKey>,
        num_blocks: usize,
    ) -> Vec<SlotId> {
        self.store().map_or_else(Vec::new, |store| store.reserve_adopted(salt, before, num_blocks))
    }

    /// Gives back a reserved slot, which holds this block if it `is_written`. Returns false if the block is not kept.
    pub fn adopt(&mut self, slot: SlotId, key: BlockKey, parent: Option<BlockKey>, is_written: bool) -> bool {
        self.store().is_some_and(|store| store.adopt(slot, key, parent, is_written))
    }

    fn store(&mut self) -> Option<&mut StoreIndex> {
        self.shard.as_mut()?.kv.store_mut()
    }

    /// Notes that the store that machines share has a block, or has it no more: see
    /// [`trunkline_kv::KvCache::note_object`].
    pub fn note_object(&mut self, block: (BlockKey, Option<BlockKey>), salt: Option<&Salt>, is_there: bool) {
        if let Some(shard) = &mut self.shard {
            shard.kv.note_object(block, salt, is_there);
        }
    }
}
