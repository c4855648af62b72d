//! Operations on the blocks of one sequence.

use std::ops::Range;
use std::sync::Arc;

use trunkline_contract::{BlockId, BlockKey};

use super::window_needs::WindowNeeds;
use super::{BlockHold, BlockTable, DeviceTier, PrefixHit, Shadow, WindowParts};
use crate::evict::{CachePriority, path_hash};
use crate::index::{Cursor, Inserted, PrefixMatch};
use crate::salt::Salt;
use crate::store::{StoreProgress, StoredHit};

impl DeviceTier {
    /// Returns the prefix of `usable` that is on the device, up to where all window parts are there.
    pub(crate) fn find(&self, salt: &Salt, usable: &[u32]) -> PrefixMatch {
        let mut found = self.tree.find(salt, usable);
        found.num_known_blocks = found.blocks.len();
        let Some(windows) = &self.windows else { return found };
        let end = windows.usable_blocks(&found.blocks);
        // Without all its blocks, the sequence would not reach the block to copy from.
        let is_whole = end == found.blocks.len() && !windows.is_recurrent();
        if !is_whole || found.partial.is_some_and(|partial| !windows.is_there(partial.block)) {
            found.partial = None;
        }
        found.blocks.truncate(end);
        found
    }

    /// Makes a hit of what device and store found of `usable`.
    pub(crate) fn hit(&self, found: PrefixMatch, stored: Vec<StoredHit>, usable: &[u32]) -> PrefixHit {
        PrefixHit {
            found,
            stored,
            block_size: self.block_size,
            index_version: self.index_version,
            num_prompt_blocks: usable.len().div_ceil(self.block_size as usize) as u32,
            num_whole_prompt_blocks: (usable.len() / self.block_size as usize) as u32,
        }
    }

    /// Begins a sequence that holds the blocks of a hit. Panics if the index has changed since the lookup.
    pub(crate) fn open(&mut self, salt: &Salt, hit: &PrefixHit, priority: CachePriority) -> BlockTable {
        assert_eq!(hit.index_version, self.index_version, "a hit is used before the index changes");
        self.settle();
        let found = &hit.found.blocks;
        if priority == CachePriority::Normal {
            found.iter().for_each(|&block| self.low_priority.set(block, false));
        }
        let blocks: Vec<BlockHold> = found.iter().map(|&block| self.hold_indexed(block)).collect();
        let copy_source = hit.partial().map(|(block, _)| self.hold_indexed(block));
        let tenant = self.tenants.tenant(salt);
        let mut trail = self.tenants.begin(tenant, hit.num_prompt_blocks);
        for (block_idx, &block) in found.iter().enumerate() {
            let path = path_hash(self.tree.block_key(block, block_idx));
            self.tenants.visit(self.tree.node_of(block), path, &mut trail);
        }
        let cursor = hit.found.cursor();
        let key = self.key_before(salt, &cursor);
        let windows =
            self.windows.as_mut().map_or_else(WindowNeeds::default, |windows| windows.begin(hit, &blocks));
        BlockTable {
            salt: salt.clone(),
            tenant,
            blocks,
            shadows: Vec::new(),
            copy_source,
            cursor,
            trail,
            key,
            windows,
            priority,
            group: None,
            store: StoreProgress::default(),
        }
    }

    /// Releases the block that a sequence copied from, once the step with the copy is acknowledged.
    pub fn release_copy_source(&mut self, table: &mut BlockTable) {
        if table.copy_source.take().is_some()
            && let Some(windows) = &mut self.windows
        {
            windows.release_copy_source(&mut table.windows);
        }
    }

    /// Marks the blocks of a hit as used now. The cost is O(nodes on the path).
    pub fn touch(&mut self, hit: &PrefixHit) {
        self.touch_path(&hit.found.cursor(), 1, None);
        if let Some(partial) = hit.found.partial {
            self.tenants.touch(partial.node);
        }
    }

    /// Sets the group of a sequence's requests. Records it at the nodes that the sequence shares, and later at those
    /// that it computes. Must follow [`DeviceTier::touch`].
    pub fn set_group(&mut self, table: &mut BlockTable, group: Option<Arc<str>>) {
        if let (Some(group), Some(last)) = (&group, table.cursor.last_block) {
            let mut next = Some(self.tree.node_of(last));
            while let Some(node) = next {
                self.tree.record_group(node, group);
                next = self.tree.parent(node);
            }
        }
        table.group = group;
    }

    /// Adds `num_blocks` reserved blocks to a table, and evicts blocks if none is free.
    ///
    /// Returns false and adds no blocks if not enough are available.
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

    /// Records a planned step that writes `num_tokens` positions from `first_position` on.
    pub fn begin_fill(&mut self, table: &BlockTable, first_position: u32, num_tokens: u32) {
        let first = (first_position / self.block_size) as usize;
        let end = (first_position + num_tokens).div_ceil(self.block_size) as usize;
        for hold in &table.blocks[first..end] {
            self.pool.begin_fill(hold);
        }
    }

    /// Adds the whole blocks of `computed` to the index that the table has not added yet. The cost is O(new tokens).
    ///
    /// `computed` has the sequence's leading tokens whose steps are acknowledged. Calls `on_indexed` with the index,
    /// the key and the parent of each block.
    pub(crate) fn index(
        &mut self,
        table: &mut BlockTable,
        computed: &[u32],
        mut on_indexed: impl FnMut(&mut StoreProgress, usize, BlockKey, Option<BlockKey>),
    ) {
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
            let block = table.cursor.last_block.expect("a whole block was inserted");
            let key = self.tree.block_key(block, block_idx);
            let parent = (block_idx > 0).then_some(table.key);
            self.tenants.visit(self.tree.node_of(block), path_hash(key), &mut table.trail);
            let is_new = matches!(inserted, Inserted::New { .. });
            self.low_priority.record_computed(block, table.priority, is_new);
            match inserted {
                Inserted::New { .. } => {
                    self.set_indexed(hold);
                    self.note_stored(&table.salt, parent, (block_idx, key), tokens);
                }
                Inserted::Existing(existing) if self.pool.is_held(existing) => {
                    let is_offered = table.windows.is_end(block_idx as u32)
                        && self.windows.as_mut().is_some_and(|windows| windows.begin_copy(hold.id()));
                    let indexed = self.hold_indexed(existing);
                    table.shadows.push(Shadow { block_idx, indexed, is_offered });
                }
                Inserted::Existing(existing) => {
                    self.replace(existing, hold);
                    table.cursor.last_block = Some(hold.id());
                }
            }
            table.key = key;
            on_indexed(&mut table.store, block_idx, key, parent);
        }
        self.touch_path(&table.cursor, 0, table.group.as_ref());
    }

    /// Ends a sequence whose whole blocks are indexed: adds its partly filled last block as a tail, and releases all
    /// blocks.
    ///
    /// No step in flight may still write positions of `computed`.
    pub(crate) fn close(&mut self, mut table: BlockTable, computed: &[u32]) {
        let block_idx = computed.len() / self.block_size as usize;
        let tail = &computed[block_idx * self.block_size as usize..];
        // `computed` can be shorter than the hit that the table began with, if no step followed it.
        let is_recurrent = self.windows.as_ref().is_some_and(WindowParts::is_recurrent);
        if !tail.is_empty() && table.num_indexed_blocks() == block_idx && !is_recurrent {
            self.index_tail(&table, block_idx, tail);
        }
        if let Some(windows) = &mut self.windows {
            windows.release_all(&mut table.windows, &table.blocks);
            if is_recurrent {
                windows.close_states(&table, block_idx);
            }
        }
        drop(table);
        self.settle();
    }

    fn index_tail(&mut self, table: &BlockTable, block_idx: usize, tokens: &[u32]) {
        let hold = &table.blocks[block_idx];
        self.pool.mark_computed(hold);
        let mut cursor = table.cursor;
        let inserted = self.tree.insert(&table.salt, &mut cursor, tokens, hold.id());
        self.apply(&inserted, table.tenant);
        match inserted {
            Inserted::New { node, .. } => {
                self.low_priority.record_computed(hold.id(), table.priority, true);
                self.set_indexed(hold);
                self.tenants.touch(node);
                self.tenants.set_last_block(node, path_hash(self.tree.last_key(node)));
                if let Some(group) = &table.group {
                    self.tree.record_group(node, group);
                }
            }
            Inserted::Existing(block) => {
                let node = self.tree.node_of(block);
                self.tenants.touch(node);
                self.low_priority.record_computed(block, table.priority, false);
                self.update_candidate(node);
            }
        }
    }

    /// Replaces blocks of the index by the sequence's own equal blocks, where only this sequence holds the former.
    ///
    /// The replaced blocks become free. A sequence that runs alone then holds no blocks that it does not use. Returns
    /// the number of freed blocks.
    pub fn shed_shadows(&mut self, table: &mut BlockTable) -> u32 {
        self.settle();
        let shadows = std::mem::take(&mut table.shadows);
        let (shed, kept): (Vec<Shadow>, Vec<Shadow>) =
            shadows.into_iter().partition(|shadow| self.pool.num_holds(shadow.indexed.id()) == 1);
        table.shadows = kept;
        for shadow in &shed {
            let (indexed, own) = (shadow.indexed.id(), &table.blocks[shadow.block_idx]);
            if shadow.is_offered
                && let Some(windows) = &mut self.windows
            {
                windows.end_copy(own.id());
            }
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

    /// Gives window parts to the blocks that a step is about to write at `first_position ..`.
    ///
    /// Returns how many of its `num_tokens` positions have parts, or may be in one chunk if layers are recurrent.
    pub fn reserve_parts(&mut self, table: &mut BlockTable, first_position: u32, num_tokens: u32) -> u32 {
        let Some(windows) = &mut self.windows else { return num_tokens };
        windows.reserve(&mut table.windows, &table.blocks, first_position, num_tokens)
    }

    /// Releases the window parts that no position from `position` on attends to.
    ///
    /// The plan that computes `position` must follow.
    pub fn pass_window(&mut self, table: &mut BlockTable, position: u32) {
        if let Some(windows) = &mut self.windows {
            windows.pass(&mut table.windows, &table.blocks, position);
        }
    }

    /// Returns how many of the window parts that a hit would need some sequence needs already.
    pub fn num_shared_parts(&self, hit: &PrefixHit) -> u32 {
        let Some(windows) = &self.windows else { return 0 };
        let copy_source = hit.partial().map(|(source, _)| source);
        windows.num_shared(hit.next_position(), &hit.found.blocks, copy_source)
    }

    /// Gives window parts to the blocks that are restored behind a hit, where the next position attends to them.
    ///
    /// Returns the index of the first block with a part. Panics if there are not enough parts.
    pub(crate) fn reserve_restored(
        &mut self,
        table: &mut BlockTable,
        hit: &PrefixHit,
        restored: Range<usize>,
    ) -> usize {
        let Some(windows) = &mut self.windows else { return 0 };
        let restored = restored.start as u32..restored.end as u32;
        windows.reserve_restored(&mut table.windows, &table.blocks, hit.next_position(), restored)
    }

    /// Releases the window parts of restored blocks that no sequence waits for.
    pub(crate) fn release_restored(&mut self, blocks: impl Iterator<Item = BlockId>) {
        if let Some(windows) = &mut self.windows {
            blocks.for_each(|block| windows.release_restored(block));
        }
    }

    /// Returns the key of the block that the index has for the table's block `block_idx`, and that of the one before.
    pub(crate) fn indexed_keys(&self, table: &BlockTable, block_idx: usize) -> (BlockKey, Option<BlockKey>) {
        let key = |block_idx| self.tree.block_key(table.indexed_block(block_idx), block_idx);
        (key(block_idx), block_idx.checked_sub(1).map(key))
    }

    /// Records that requests used the path up to a cursor now, and that `num_hits` more of them found it.
    fn touch_path(&mut self, cursor: &Cursor, num_hits: u32, group: Option<&Arc<str>>) {
        let Some(block) = cursor.last_block else { return };
        if let Some((upper, lower)) = self.tree.split_at(cursor) {
            self.record_split(upper, lower);
        }
        let mut next = Some(self.tree.node_of(block));
        while let Some(node) = next {
            self.tenants.touch(node);
            self.tree.record_use(node, num_hits, self.now_ms);
            if let Some(group) = group {
                self.tree.record_group(node, group);
            }
            next = self.tree.parent(node);
        }
    }
}
