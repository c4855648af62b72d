//! The device tier: the pool of blocks, the index over them, and the order in which they are evicted.

mod hit;
mod hold;
mod invariants;
mod pool;
mod sequences;
mod states;
mod table;
mod window_needs;
mod windows;

use trunkline_contract::{BlockId, BlockKey};

pub use self::hit::PrefixHit;
pub use self::hold::{BlockHold, BlockState};
pub use self::pool::{BlockCounts, BlockPool, Released};
pub use self::table::BlockTable;
use self::table::Shadow;
pub(crate) use self::windows::WindowParts;
pub use self::windows::{WindowCounts, WindowLimits};
use crate::events::{EventLog, KvEvent, Owner, StoredEvent, Tier};
use crate::evict::{EvictionPolicy, LowPriorityBlocks, path_hash};
use crate::index::{Cursor, Inserted, NodeId, RadixTree};
use crate::pin_table::Pin;
use crate::salt::Salt;
use crate::tenants::{TenantIdx, TenantPolicies, TenantShare, TenantUsage};

/// The blocks of the device, their contents and their holders.
///
/// It keeps the pool, the tree, the eviction policies and the window parts consistent. [`crate::KvCache`] adds the
/// store.
#[derive(Debug)]
pub struct DeviceTier {
    block_size: u32,
    pool: BlockPool,
    tree: RadixTree,
    tenants: TenantPolicies,
    low_priority: LowPriorityBlocks,
    /// Absent if every layer attends to all positions.
    windows: Option<WindowParts>,
    events: EventLog,
    /// Counts the changes of the index, because a hit is valid only until the next one.
    index_version: u64,
    num_evicted: u64,
    now_ms: u64,
}

impl DeviceTier {
    pub(crate) fn new(block_size: u32, num_blocks: u32, policy: Box<dyn EvictionPolicy>) -> Self {
        Self {
            block_size,
            pool: BlockPool::new(num_blocks),
            tree: RadixTree::new(block_size, num_blocks),
            tenants: TenantPolicies::new(num_blocks, policy),
            low_priority: LowPriorityBlocks::new(num_blocks),
            windows: None,
            events: EventLog::default(),
            index_version: 0,
            num_evicted: 0,
            now_ms: 0,
        }
    }

    /// Divides blocks into two parts, as models with windows need. Must be called before any block is used.
    ///
    /// Panics if there are not enough window parts for one sequence.
    pub fn set_windows(&mut self, limits: WindowLimits) {
        let counts = self.counts();
        assert_eq!(counts.free, counts.total, "the blocks are empty");
        self.windows = Some(WindowParts::new(limits, counts.total, self.block_size));
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    /// Returns the number of blocks that [`DeviceTier::grow`] can give.
    ///
    /// Every cached block can be evicted, because a sequence that holds a block holds those before it.
    pub fn available(&self) -> u32 {
        let counts = self.counts();
        counts.free + counts.cached
    }

    /// Returns the number of blocks that a sequence of this salt can get if it can wait: the available blocks without
    /// those within the shares of other tenants. The cost is O(log tenants).
    pub fn available_to(&self, salt: &Salt) -> u32 {
        let counts = self.counts();
        counts.free + counts.cached - self.tenants.num_guarded(salt, counts.cached)
    }

    pub fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    pub fn is_held(&self, block: BlockId) -> bool {
        self.pool.is_held(block)
    }

    pub fn usages(&self) -> impl Iterator<Item = &TenantUsage> {
        self.tenants.usages()
    }

    pub fn window_counts(&self) -> Option<WindowCounts> {
        self.windows.as_ref().map(WindowParts::counts)
    }

    /// Returns the number of window parts that [`DeviceTier::reserve_parts`] can give. Without windows it has no limit.
    pub fn available_parts(&self) -> u32 {
        self.windows.as_ref().map_or(u32::MAX, WindowParts::available)
    }

    /// Recounts the needs of all sequences for window parts, for tests. The cost is O(blocks).
    pub fn num_window_needs(&self) -> u64 {
        self.windows.as_ref().map_or(0, WindowParts::num_needs)
    }

    pub(crate) fn windows(&self) -> Option<&WindowParts> {
        self.windows.as_ref()
    }

    /// Returns the blocks whose window parts were dropped since the last call.
    ///
    /// The shard drops them before it runs the rest of a plan.
    pub fn take_window_drops(&mut self) -> Vec<BlockId> {
        self.windows.as_mut().map_or_else(Vec::new, WindowParts::take_drops)
    }

    /// Evicts cached blocks until at most `max_cached` are left. Returns how many were evicted.
    pub fn shrink(&mut self, max_cached: u32) -> u32 {
        self.settle();
        let surplus = self.counts().cached.saturating_sub(max_cached);
        for _ in 0..surplus {
            self.evict();
        }
        surplus
    }

    /// Takes back the released blocks now and not at the next call.
    pub fn settle(&mut self) {
        let Self { pool, tree, tenants, windows, low_priority, .. } = self;
        pool.settle(|block, released| {
            if released == Released::Free {
                if let Some(windows) = windows {
                    windows.record_freed(block);
                }
                return tenants.record_freed(block);
            }
            tenants.record_cached(block);
            let node = tree.node_of(block);
            if tree.leaf_block(node) == Some(block) {
                tenants.add_candidate(node, low_priority.has(block));
            }
        });
    }

    pub(crate) fn tree(&self) -> &RadixTree {
        &self.tree
    }

    pub(crate) fn set_shares(&mut self, shares: &[TenantShare]) {
        self.tenants.set_shares(shares);
    }

    pub(crate) fn shares(&self) -> Vec<TenantShare> {
        self.tenants.shares()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    pub(crate) fn events(&mut self) -> &mut EventLog {
        &mut self.events
    }

    pub(crate) fn are_events_on(&self) -> bool {
        self.events.is_on()
    }

    /// Holds blocks of the index for a pin, of which `num_new` are in no other pin.
    ///
    /// Returns none if the tenant's share has no room for them.
    pub(crate) fn pin(&mut self, salt: &Salt, blocks: &[BlockId], num_new: u32) -> Option<PinnedBlocks> {
        let tenant = self.tenants.tenant(salt);
        if !self.tenants.may_pin(tenant, num_new) {
            return None;
        }
        for &block in blocks {
            self.low_priority.set(block, false);
        }
        let holds = blocks.iter().map(|&block| self.hold_indexed(block)).collect();
        self.tenants.change_pinned(tenant, num_new.cast_signed());
        Some(PinnedBlocks { holds, tenant })
    }

    /// Releases the blocks of a pin, of which `num_unpinned` are in no other pin.
    pub(crate) fn unpin(&mut self, pinned: PinnedBlocks, num_unpinned: u32) {
        self.tenants.change_pinned(pinned.tenant, -num_unpinned.cast_signed());
        drop(pinned);
        self.settle();
    }

    /// Removes a node and its descendants from the index, except held blocks. Returns the number of removed blocks.
    ///
    /// Calls `on_removed` with the key of each block before it is removed.
    pub(crate) fn remove_subtree(&mut self, id: NodeId, mut on_removed: impl FnMut(BlockKey)) -> u32 {
        let mut num_removed = 0;
        for node in self.tree.subtree(id).into_iter().rev() {
            // From the last block on. A sequence that holds a block holds those before it.
            while let Some(block) = self.tree.get(node).and_then(|_| self.tree.leaf_block(node))
                && !self.pool.is_held(block)
            {
                on_removed(self.tree.last_key(node));
                self.drop_last_block(node);
                num_removed += 1;
            }
        }
        num_removed
    }

    fn allocate(&mut self, tenant: TenantIdx) -> BlockHold {
        // The block counts before the victim is chosen, so the tenant that asks can lose a block itself.
        self.tenants.charge(tenant);
        let hold = self.pool.allocate().unwrap_or_else(|| {
            self.evict();
            self.pool.allocate().expect("a block was just freed")
        });
        self.tenants.set_owner(hold.id(), tenant);
        hold
    }

    fn evict(&mut self) {
        let victim = self.tenants.victim().expect("a block that nobody holds can be evicted");
        let block = self.tree.leaf_block(victim).expect("a victim is a leaf");
        self.tenants.record_evicted(block);
        self.drop_last_block(victim);
        self.num_evicted += 1;
    }

    /// Removes the last block of a leaf, which nobody holds, from the index.
    fn drop_last_block(&mut self, leaf: NodeId) {
        self.tenants.remove_candidate(leaf);
        self.note_removal(leaf);
        let (block, next) = self.tree.remove_last_block(leaf);
        assert!(!self.pool.is_held(block), "a block in use is never evicted");
        self.clear_indexed(block);
        self.index_version += 1;
        if let Some(next) = next {
            self.tenants.set_last_block(next, path_hash(self.tree.last_key(next)));
            self.update_candidate(next);
        }
    }

    fn hold_indexed(&mut self, block: BlockId) -> BlockHold {
        if !self.pool.is_held(block) {
            self.tenants.record_uncached(block);
            // Only a leaf's last block that nobody holds is a candidate.
            let node = self.tree.node_of(block);
            if self.tree.leaf_block(node) == Some(block) {
                self.tenants.remove_candidate(node);
            }
        }
        self.pool.hold_indexed(block)
    }

    fn set_indexed(&mut self, hold: &BlockHold) {
        self.index_version += 1;
        self.pool.set_indexed(hold);
        let node = self.tree.node_of(hold.id());
        self.tree.record_use(node, 0, self.now_ms);
        self.update_candidate(node);
    }

    fn clear_indexed(&mut self, block: BlockId) {
        if self.pool.clear_indexed(block) {
            self.tenants.record_uncached(block);
            self.tenants.record_freed(block);
            if let Some(windows) = &mut self.windows {
                windows.record_freed(block);
            }
        }
    }

    /// Replaces a block of the index by the sequence's own block with the same contents.
    fn replace(&mut self, indexed: BlockId, own: &BlockHold) {
        self.tree.replace(indexed, own.id());
        self.low_priority.set(own.id(), self.low_priority.has(indexed));
        self.clear_indexed(indexed);
        self.set_indexed(own);
    }

    /// Tells the policy how an insertion changed nodes other than the block's own.
    fn apply(&mut self, inserted: &Inserted, tenant: TenantIdx) {
        let Inserted::New { node, parent, split, superseded } = inserted else { return };
        self.tenants.set_tenant(*node, tenant);
        self.tenants.set_tenant(*parent, tenant);
        if let Some((upper, lower)) = *split {
            self.record_split(upper, lower);
        }
        if let Some((tail, block)) = *superseded {
            // The new node may have the tail's id already. `set_indexed` makes it a candidate again if it is one.
            self.tenants.remove_candidate(tail);
            self.clear_indexed(block);
        }
        if node != parent {
            self.tenants.touch(*node);
            self.update_candidate(*parent);
        }
    }

    fn record_split(&mut self, upper: NodeId, lower: NodeId) {
        self.tenants.split(upper, lower);
        for node in [upper, lower] {
            self.tenants.set_last_block(node, path_hash(self.tree.last_key(node)));
        }
    }

    /// Makes a node a candidate for eviction if its last block may be evicted, and removes it otherwise.
    fn update_candidate(&mut self, node: NodeId) {
        match self.tree.leaf_block(node) {
            Some(block) if !self.pool.is_held(block) => {
                self.tenants.add_candidate(node, self.low_priority.has(block));
            }
            _ => self.tenants.remove_candidate(node),
        }
    }

    /// Returns the key of the block before a cursor, or the root key.
    pub(crate) fn key_before(&self, salt: &Salt, cursor: &Cursor) -> BlockKey {
        match cursor.last_block {
            Some(block) => self.tree.block_key(block, cursor.num_blocks as usize - 1),
            None => salt.root_key(),
        }
    }

    fn note_stored(
        &mut self,
        salt: &Salt,
        parent: Option<BlockKey>,
        block: (usize, BlockKey),
        tokens: &[u32],
    ) {
        let (block_idx, key) = block;
        self.events.note(|| {
            KvEvent::BlockStored(StoredEvent {
                key,
                parent,
                depth: Some(block_idx as u32),
                token_ids: tokens.into(),
                owner: Owner::Salt(salt.clone()),
                tier: Tier::Device,
            })
        });
    }

    /// Logs that the last block of a leaf is about to leave the index.
    fn note_removal(&mut self, leaf: NodeId) {
        let Self { events, tree, .. } = self;
        if !events.is_on() || tree.is_tail(leaf) {
            return;
        }
        let (key, owner) = (tree.last_key(leaf), Owner::Salt(tree.salt_of(leaf).clone()));
        events.note(|| KvEvent::BlockRemoved { key, tier: Tier::Device, owner });
    }
}

#[derive(Debug)]
pub(crate) struct PinnedBlocks {
    holds: Vec<BlockHold>,
    tenant: TenantIdx,
}

impl Pin for PinnedBlocks {
    type Id = BlockId;

    fn ids(&self) -> impl Iterator<Item = BlockId> {
        self.holds.iter().map(BlockHold::id)
    }
}
