//! What the tier below the store asks of the scheduler: which blocks to take, which a prompt lacks, where to put them.
//!
//! Whoever calls these does the I/O. Slots from [`Scheduler::take_offers`] and [`Scheduler::reserve_adopted`] must come
//! back, by [`Scheduler::end_offer`] and [`Scheduler::adopt`], before the next `Event::ShardReady`.

use trunkline_contract::{BlockKey, SlotId};
use trunkline_kv::{Offer, Salt};

use crate::scheduler::Scheduler;

/// What device and store have of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Whole blocks, from the first on.
    pub num_blocks: usize,
    /// More blocks can be put behind them: the store has the last one.
    pub is_extensible: bool,
    /// Milliseconds to compute what follows them, by what was measured; none before anything was.
    pub compute_ms: Option<f64>,
}

impl Scheduler {
    /// What there is of `tokens`, whose whole blocks have these keys. None without a store. Cost: as a lookup.
    pub fn coverage(&self, salt: &Salt, tokens: &[u32], keys: &[BlockKey]) -> Option<Coverage> {
        let shard = self.shard.as_ref()?;
        shard.kv.store_counts()?;
        let hit = shard.kv.lookup(salt, tokens);
        let num_blocks = hit.num_blocks() + hit.stored().len();
        let last = num_blocks.checked_sub(1).map(|last| keys.get(last));
        let num_covered_tokens = num_blocks as u32 * shard.limits.block_size;
        Some(Coverage {
            num_blocks,
            is_extensible: last.is_none_or(|key| key.is_some_and(|&key| shard.kv.is_stored(key))),
            compute_ms: self
                .throughput
                .predict_prefill_ms((tokens.len() as u32).saturating_sub(num_covered_tokens)),
        })
    }

    /// At most so many stored blocks for the tier below. Each stays where it is until [`Scheduler::end_offer`].
    pub fn take_offers(&mut self, max_offers: usize) -> Vec<Offer> {
        let Some(shard) = &mut self.shard else { return Vec::new() };
        std::iter::from_fn(|| shard.kv.take_offer()).take(max_offers).collect()
    }

    /// An offer was read; what is broken is not found again.
    pub fn end_offer(&mut self, offer: &Offer, is_broken: bool) {
        if let Some(shard) = &mut self.shard {
            shard.kv.end_offer(offer, is_broken);
        }
    }

    /// The tier below did not take a block: it is offered again, after those that wait.
    pub fn refuse_offer(&mut self, key: BlockKey) {
        if let Some(shard) = &mut self.shard {
            shard.kv.refuse_offer(key);
        }
    }

    /// Slots for at most so many blocks of a salt that continue the stored block `before`; each comes back by
    /// [`Scheduler::adopt`].
    pub fn reserve_adopted(
        &mut self,
        salt: &Salt,
        before: Option<BlockKey>,
        num_blocks: usize,
    ) -> Vec<SlotId> {
        let Some(shard) = &mut self.shard else { return Vec::new() };
        shard.kv.reserve_adopted(salt, before, num_blocks)
    }

    /// A reserved slot holds this block now, if it `is_written`. False: it is not kept.
    pub fn adopt(&mut self, slot: SlotId, key: BlockKey, parent: Option<BlockKey>, is_written: bool) -> bool {
        self.shard.as_mut().is_some_and(|shard| shard.kv.adopt(slot, key, parent, is_written))
    }
}
