//! Pool, KV index and eviction policy of one tier, kept in step.

mod invariants;

use std::collections::VecDeque;
use std::sync::Arc;

use trunkline_contract::{BlockId, SlotId};

use crate::block::BlockHold;
use crate::events::EventLog;
use crate::evict::{EvictionPolicy, LeafLru};
use crate::history::path_hash;
use crate::hit::PrefixHit;
use crate::low::LowBlocks;
use crate::pins::Pins;
use crate::pool::{BlockCounts, BlockPool, Released};
use crate::quota::{Quotas, TenantIdx};
use crate::radix::{Cursor, Inserted, NodeId, RadixTree};
use crate::salt::Salt;
use crate::store::StoreIndex;
use crate::table::{BlockTable, Shadow, Worth};
use crate::windows::WindowParts;

/// The device tier: which blocks there are, what is in them and who holds them.
///
/// ```
/// use trunkline_kv::{KvCache, Salt};
///
/// let mut kv = KvCache::new(4, 8);
/// let prompt = [1, 2, 3, 4, 5, 6];
/// let mut table = kv.open(&Salt::default(), &kv.lookup(&Salt::default(), &prompt));
/// assert!(kv.grow(&mut table, 2));
/// kv.begin_fill(&table, 0, 6); // a step computes all six positions ...
/// kv.close(table, &prompt); //    ... and is acknowledged; the sequence ends
/// let hit = kv.lookup(&Salt::default(), &prompt);
/// assert_eq!((hit.num_blocks(), hit.num_tokens()), (1, 5)); // never the last token
/// ```
#[derive(Debug)]
pub struct KvCache {
    pub(crate) block_size: u32,
    pub(crate) pool: BlockPool,
    pub(crate) tree: RadixTree,
    pub(crate) policy: Quotas,
    /// Counts changes of the index: a hit is used before the next one.
    index_version: u64,
    num_evicted: u64,
    pub(crate) store: Option<StoreIndex>,
    /// Slots of it to be emptied.
    pub(crate) discards: Vec<SlotId>,
    pub(crate) pins: Pins,
    pub(crate) low: LowBlocks,
    /// None if blocks are in one piece.
    pub(crate) windows: Option<WindowParts>,
    pub(crate) now_ms: u64,
    pub(crate) events: EventLog,
}

impl KvCache {
    /// An empty index over `num_blocks` free blocks of `block_size` tokens, evicting by [`LeafLru`].
    pub fn new(block_size: u32, num_blocks: u32) -> Self {
        Self::with_policy(block_size, num_blocks, Box::<LeafLru>::default())
    }

    /// The same with another order of eviction.
    pub fn with_policy(block_size: u32, num_blocks: u32, policy: Box<dyn EvictionPolicy>) -> Self {
        Self {
            block_size,
            pool: BlockPool::new(num_blocks),
            tree: RadixTree::new(block_size, num_blocks),
            policy: Quotas::new(num_blocks, policy),
            index_version: 0,
            num_evicted: 0,
            store: None,
            discards: Vec::new(),
            pins: Pins::default(),
            low: LowBlocks::new(num_blocks),
            windows: None,
            now_ms: 0,
            events: EventLog::default(),
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Where the blocks are now.
    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    /// Blocks that eviction could free: all that nobody holds, as whoever holds a block holds those before it. O(1).
    pub fn evictable(&self) -> u32 {
        self.counts().cached
    }

    /// Blocks that [`KvCache::grow`] can give.
    pub fn available(&self) -> u32 {
        let counts = self.counts();
        counts.free + counts.cached
    }

    /// Blocks evicted so far.
    pub fn num_evicted(&self) -> u64 {
        self.num_evicted
    }

    /// True if anybody holds the block.
    pub fn is_held(&self, block: BlockId) -> bool {
        self.pool.is_held(block)
    }

    /// What the index has of `tokens`, at most all but the last: one token must be computed to sample the next.
    ///
    /// Changes nothing, not even the order of eviction. Cost: O(tokens).
    pub fn lookup(&self, salt: &Salt, tokens: &[u32]) -> PrefixHit {
        let usable = &tokens[..tokens.len().saturating_sub(1)];
        let mut found = self.tree.find(salt, usable);
        self.fit_window(&mut found);
        let stored = self.find_stored(salt, &found, usable);
        PrefixHit {
            found,
            stored,
            block_size: self.block_size,
            index_version: self.index_version,
            num_prompt_blocks: usable.len().div_ceil(self.block_size as usize) as u32,
        }
    }

    /// Begins a sequence: holds the blocks of a hit, and the partly matching one until
    /// [`KvCache::release_copy_source`]. `hit` is of this salt. Panics if the index changed since.
    pub fn open(&mut self, salt: &Salt, hit: &PrefixHit) -> BlockTable {
        self.open_worth(salt, hit, Worth::Normal)
    }

    /// The same for a sequence whose blocks may be worth less.
    pub fn open_worth(&mut self, salt: &Salt, hit: &PrefixHit, worth: Worth) -> BlockTable {
        assert_eq!(hit.index_version, self.index_version, "a hit is used before the index changes");
        self.settle();
        if worth == Worth::Normal {
            hit.found.blocks.iter().for_each(|&block| self.low.set(block, false));
        }
        let blocks: Vec<BlockHold> = hit.found.blocks.iter().map(|&block| self.hold_indexed(block)).collect();
        let copy_source = hit.partial().map(|(block, _)| self.hold_indexed(block));
        let tenant = self.policy.tenant(salt);
        let mut trail = self.policy.begin(tenant, hit.num_prompt_blocks);
        for (block_idx, &block) in hit.found.blocks.iter().enumerate() {
            let path = path_hash(self.tree.block_key(block, block_idx));
            self.policy.seen(self.tree.node_of(block), path, &mut trail);
        }
        let cursor = hit.found.cursor;
        let (salt, shadows, unnamed) = (salt.clone(), Vec::new(), VecDeque::new());
        let key = self.key_before(&salt, &cursor);
        let mut table = BlockTable {
            salt,
            tenant,
            blocks,
            shadows,
            copy_source,
            cursor,
            trail,
            key,
            num_stored_blocks: 0,
            unnamed,
            needed: 0..0,
            needed_source: None,
            worth,
            group: None,
        };
        self.count_stored(&mut table);
        self.need_hit(&mut table, hit);
        table
    }

    /// The copy out of the partly matching block is done (its step is acknowledged): releases that block.
    pub fn release_copy_source(&mut self, table: &mut BlockTable) {
        if table.copy_source.is_some() {
            self.release_needed_source(table);
            table.copy_source = None;
        }
    }

    /// Marks what a hit found as used now. Cost: O(nodes on the path).
    pub fn touch(&mut self, hit: &PrefixHit) {
        self.touch_path(&hit.found.cursor, 1, None);
        if let Some(node) = hit.found.partial_node {
            self.policy.used(node);
        }
    }

    /// Adds `num_blocks` reserved blocks to a table, evicting where none is free; all of them or, returning false,
    /// none.
    pub fn grow(&mut self, table: &mut BlockTable, num_blocks: u32) -> bool {
        self.settle();
        if self.available() < num_blocks {
            return false;
        }
        for _ in 0..num_blocks {
            let hold = self.allocate(table.tenant);
            table.blocks.push(hold);
        }
        true
    }

    /// A step that writes positions `first_position ..` (`num_tokens` of them) is planned.
    pub fn begin_fill(&mut self, table: &BlockTable, first_position: u32, num_tokens: u32) {
        let first = (first_position / self.block_size) as usize;
        let end = (first_position + num_tokens).div_ceil(self.block_size) as usize;
        for hold in &table.blocks[first..end] {
            self.pool.begin_fill(hold);
        }
    }

    /// Enters the whole blocks of `computed` (the sequence's leading tokens whose steps are acknowledged) that the
    /// index does not have from this table yet. Cost: O(new tokens).
    pub fn index(&mut self, table: &mut BlockTable, computed: &[u32]) {
        self.settle();
        let block_size = self.block_size as usize;
        let num_whole = computed.len() / block_size;
        if table.num_indexed_blocks() >= num_whole {
            return;
        }
        while table.num_indexed_blocks() < num_whole {
            let block_idx = table.num_indexed_blocks();
            let tokens = &computed[block_idx * block_size..(block_idx + 1) * block_size];
            let hold = &table.blocks[block_idx];
            self.pool.mark_computed(hold);
            let inserted = self.tree.insert(&table.salt, &mut table.cursor, tokens, hold.id());
            self.apply(&inserted, table.tenant);
            let block = table.cursor.last_block.expect("a whole block was entered");
            let key = self.tree.block_key(block, block_idx);
            self.policy.seen(self.tree.node_of(block), path_hash(key), &mut table.trail);
            self.low.entered(block, table.worth, matches!(inserted, Inserted::New { .. }));
            match inserted {
                Inserted::New { .. } => {
                    self.enter(hold);
                    self.note_stored(&table.salt, table.key, (block_idx, key), tokens);
                }
                Inserted::Existing(existing) if self.pool.is_held(existing) => {
                    let indexed = self.hold_indexed(existing);
                    table.shadows.push(Shadow { block_idx, indexed });
                }
                Inserted::Existing(existing) => {
                    self.replace(existing, hold);
                    table.cursor.last_block = Some(hold.id());
                }
            }
            self.name_stored(table, block_idx, key);
        }
        self.touch_path(&table.cursor, 0, table.group.as_ref());
    }

    /// Ends a sequence: enters all of `computed`, its partly filled last block too, and releases its blocks. No step in
    /// flight may still write positions of `computed`.
    pub fn close(&mut self, mut table: BlockTable, computed: &[u32]) {
        self.index(&mut table, computed);
        let block_idx = computed.len() / self.block_size as usize;
        let tail = &computed[block_idx * self.block_size as usize..];
        // `computed` may also be less than the hit that the table began with, when nothing was computed after it.
        if !tail.is_empty() && table.num_indexed_blocks() == block_idx {
            let hold = &table.blocks[block_idx];
            self.pool.mark_computed(hold);
            let mut cursor = table.cursor;
            let inserted = self.tree.insert(&table.salt, &mut cursor, tail, hold.id());
            self.apply(&inserted, table.tenant);
            match inserted {
                Inserted::New { node, .. } => {
                    self.low.entered(hold.id(), table.worth, true);
                    self.enter(hold);
                    self.policy.used(node);
                    self.policy.exposed(node, path_hash(self.tree.last_key(node)));
                    if let Some(group) = &table.group {
                        self.tree.node_mut(node).note_group(group);
                    }
                }
                Inserted::Existing(block) => {
                    let node = self.tree.node_of(block);
                    self.policy.used(node);
                    self.low.entered(block, table.worth, false);
                    self.refresh(node);
                }
            }
        }
        self.abandon_unnamed(&mut table);
        self.release_needs(&mut table);
        drop(table);
        self.settle();
    }

    /// Puts a sequence's own blocks in the index where only it holds the index's equal ones, which become free.
    ///
    /// For want of blocks: a sequence that runs alone then holds nothing but what it uses. Returns how many.
    pub fn shed_shadows(&mut self, table: &mut BlockTable) -> u32 {
        self.settle();
        let shadows = std::mem::take(&mut table.shadows);
        let (shed, kept): (Vec<Shadow>, Vec<Shadow>) =
            shadows.into_iter().partition(|shadow| self.pool.num_holds(shadow.indexed.id()) == 1);
        table.shadows = kept;
        for shadow in &shed {
            let (indexed, own) = (shadow.indexed.id(), &table.blocks[shadow.block_idx]);
            self.replace(indexed, own);
            if table.cursor.last_block == Some(indexed) {
                table.cursor.last_block = Some(own.id());
            }
        }
        let num_shed = shed.len() as u32;
        drop(shed);
        self.settle();
        num_shed
    }

    /// Evicts down to `max_cached` blocks that nobody holds: a smaller cache in the same pool. Returns how many went.
    pub fn shrink(&mut self, max_cached: u32) -> u32 {
        self.settle();
        let surplus = self.counts().cached.saturating_sub(max_cached);
        for _ in 0..surplus {
            self.evict();
        }
        surplus
    }

    /// Takes back released blocks now rather than at the next call.
    pub fn settle(&mut self) {
        let Self { pool, tree, policy, windows, low, .. } = self;
        pool.settle(|block, released| {
            if released == Released::Free {
                if let Some(windows) = windows {
                    windows.freed(block);
                }
                return policy.freed(block);
            }
            policy.cached(block);
            let node = tree.node_of(block);
            if tree.leaf_block(node) == Some(block) {
                policy.offer(node, low.is_low(block));
            }
        });
    }

    fn allocate(&mut self, tenant: TenantIdx) -> BlockHold {
        // Counted as its owner's before anything goes for it: who asks is not spared.
        self.policy.charge(tenant);
        let hold = self.pool.allocate().unwrap_or_else(|| {
            self.evict();
            self.pool.allocate().expect("a block was just freed")
        });
        self.policy.give(hold.id(), tenant);
        hold
    }

    /// The index drops a block.
    fn clear_indexed(&mut self, block: BlockId) {
        if self.pool.clear_indexed(block) {
            self.policy.uncached(block);
            self.policy.freed(block);
            if let Some(windows) = &mut self.windows {
                windows.freed(block);
            }
        }
    }

    fn evict(&mut self) {
        let victim = self.policy.victim().expect("what nobody holds can be evicted");
        let block = self.tree.leaf_block(victim).expect("a victim is a leaf");
        self.policy.evicted(block);
        self.drop_last_block(victim);
        self.num_evicted += 1;
    }

    /// Takes the last block of a leaf, which nobody holds, out of the index.
    pub(crate) fn drop_last_block(&mut self, leaf: NodeId) {
        self.policy.withdraw(leaf);
        self.note_removal(leaf);
        let (block, next) = self.tree.remove_last_block(leaf);
        assert!(!self.pool.is_held(block), "a block in use is never evicted");
        self.clear_indexed(block);
        self.index_version += 1;
        if let Some(next) = next {
            self.policy.exposed(next, path_hash(self.tree.last_key(next)));
            self.refresh(next);
        }
    }

    pub(crate) fn hold_indexed(&mut self, block: BlockId) -> BlockHold {
        if !self.pool.is_held(block) {
            self.policy.uncached(block);
        }
        let hold = self.pool.hold_indexed(block);
        self.refresh(self.tree.node_of(block));
        hold
    }

    fn enter(&mut self, hold: &BlockHold) {
        self.index_version += 1;
        self.pool.set_indexed(hold);
        let node = self.tree.node_of(hold.id());
        self.tree.node_mut(node).used_at_ms = self.now_ms;
        self.refresh(node);
    }

    fn replace(&mut self, indexed: BlockId, own: &BlockHold) {
        self.tree.replace(indexed, own.id());
        self.low.set(own.id(), self.low.is_low(indexed));
        self.clear_indexed(indexed);
        self.enter(own);
    }

    /// Tells the policy what an insertion did to nodes other than the block's own.
    fn apply(&mut self, inserted: &Inserted, tenant: TenantIdx) {
        let Inserted::New { node, parent, split, superseded } = inserted else { return };
        self.policy.place(*node, tenant);
        self.policy.place(*parent, tenant);
        if let Some((upper, lower)) = *split {
            self.part(upper, lower);
        }
        if let Some((tail, block)) = *superseded {
            // The id may stand for the new node already; withdrawing is right either way, `enter` offers again.
            self.policy.withdraw(tail);
            self.clear_indexed(block);
        }
        if node != parent {
            self.policy.used(*node);
            self.refresh(*parent);
        }
    }

    /// `upper` was cut off `lower`: each has a last block of its own now.
    fn part(&mut self, upper: NodeId, lower: NodeId) {
        self.policy.inherit(upper, lower);
        for node in [upper, lower] {
            self.policy.exposed(node, path_hash(self.tree.last_key(node)));
        }
    }

    fn touch_path(&mut self, cursor: &Cursor, num_hits: u32, group: Option<&Arc<str>>) {
        let Some(block) = cursor.last_block else { return };
        if let Some((upper, lower)) = self.tree.split_at(cursor) {
            self.part(upper, lower);
        }
        let mut next = Some(self.tree.node_of(block));
        while let Some(node) = next.filter(|&node| self.tree.node(node).salt.is_none()) {
            self.policy.used(node);
            let node = self.tree.node_mut(node);
            node.num_hits = node.num_hits.saturating_add(num_hits);
            node.used_at_ms = self.now_ms;
            if let Some(group) = group {
                node.note_group(group);
            }
            next = node.parent;
        }
    }

    /// Offers a node to the policy if its last block may be evicted, else withdraws it.
    fn refresh(&mut self, node: NodeId) {
        match self.tree.leaf_block(node) {
            Some(block) if !self.pool.is_held(block) => self.policy.offer(node, self.low.is_low(block)),
            _ => self.policy.withdraw(node),
        }
    }

    fn last_block(&self, node: Option<NodeId>) -> Option<BlockId> {
        node.and_then(|node| self.tree.last_block(node))
    }
}
