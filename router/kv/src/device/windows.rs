//! Window parts: K and V of the layers that attend only to the last positions. The pool has fewer of them than blocks.
//!
//! A block gets its part when a step first writes it and keeps it until the part is dropped. The other layers' K and V
//! stay in the block. Sequences need the parts that their next positions attend to. A part that no sequence needs may
//! be dropped when another block needs one:
//!
//! ```text
//! passed   ◀ oldest ... newest     a window moved past it; only a prompt that branches off right there would find it
//! kept     ◀ oldest ... newest     the end of a sequence, or found by a hit before; dropped when `passed` is empty
//! ```
//!
//! The order of drops ignores the tree: a missing part only costs the hits that would begin right after it.
//!
//! In a model with recurrent layers, a block's part is their state after the last position that was computed in the
//! block. There `window_size` is 2, because a position needs the state after the one before it, and a chunk gives parts
//! only to the last two blocks that it writes. [`states`](super::states) chooses which of them stay for later prompts.

use std::ops::Range;

use trunkline_contract::BlockId;

use super::hit::PrefixHit;
use super::hold::BlockHold;
use super::window_needs::WindowNeeds;

/// The number of window parts of a pool, and the reach of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Blocks that can have their part at the same time, at least [`WindowLimits::least_parts`].
    pub num_parts: u32,
    /// The query at position p attends to positions max(0, p - `window_size` + 1) to p. It is at least 1.
    pub window_size: u32,
    /// True if parts hold the states of recurrent layers. Then `window_size` is 2.
    pub is_recurrent: bool,
}

impl WindowLimits {
    /// Returns the first block that the query at `position` attends to.
    pub fn first_needed_block(&self, position: u32, block_size: u32) -> u32 {
        (position + 1).saturating_sub(self.window_size) / block_size
    }

    /// Returns the parts that one sequence needs to run: its window, the block that it writes, and one to copy from.
    pub fn least_parts(&self, block_size: u32) -> u32 {
        (self.window_size - 1).div_ceil(block_size) + 2
    }
}

/// The number of parts in each state: `free + droppable + needed = total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    pub free: u32,
    /// Parts that a block has and no sequence needs.
    pub droppable: u32,
    pub needed: u32,
    pub total: u32,
    /// Parts dropped so far to give them to other blocks, and not because their blocks were freed.
    pub dropped: u64,
}

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DropList {
    Passed,
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    is_there: bool,
    /// True if a hit needed the part.
    was_found: bool,
    num_needs: u32,
    /// Set while the part is droppable, with its neighbours in that list.
    list: Option<DropList>,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// The parts of all blocks. Every change of a part costs O(1).
#[derive(Debug)]
pub(crate) struct WindowParts {
    limits: WindowLimits,
    block_size: u32,
    parts: Vec<Part>,
    num_free: u32,
    lists: [List; 2],
    drops: Vec<BlockId>,
    num_dropped: u64,
}

impl WindowParts {
    pub(super) fn new(limits: WindowLimits, num_blocks: u32, block_size: u32) -> Self {
        assert!(limits.num_parts >= limits.least_parts(block_size), "one sequence can run: {limits:?}");
        let none =
            Part { is_there: false, was_found: false, num_needs: 0, list: None, before: NIL, after: NIL };
        Self {
            limits,
            block_size,
            parts: vec![none; num_blocks as usize],
            num_free: limits.num_parts,
            lists: [List { oldest: NIL, newest: NIL, len: 0 }; 2],
            drops: Vec::new(),
            num_dropped: 0,
        }
    }

    pub(super) fn is_recurrent(&self) -> bool {
        self.limits.is_recurrent
    }

    pub(super) fn counts(&self) -> WindowCounts {
        let droppable = self.lists[0].len + self.lists[1].len;
        WindowCounts {
            free: self.num_free,
            droppable,
            needed: self.limits.num_parts - self.num_free - droppable,
            total: self.limits.num_parts,
            dropped: self.num_dropped,
        }
    }

    /// Returns the number of parts that no sequence needs.
    pub(super) fn available(&self) -> u32 {
        self.num_free + self.lists[0].len + self.lists[1].len
    }

    /// Recounts the needs of all sequences, for tests. The cost is O(blocks).
    pub(super) fn num_needs(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.num_needs)).sum()
    }

    pub(crate) fn is_there(&self, block: BlockId) -> bool {
        self.parts[block.index()].is_there
    }

    /// Returns the blocks whose parts were dropped since the last call.
    pub(crate) fn take_drops(&mut self) -> Vec<BlockId> {
        std::mem::take(&mut self.drops)
    }

    /// Returns how many of a hit's leading blocks are usable: the most for which the next position has all its parts.
    ///
    /// The cost is O(window) if all parts are there, and O(blocks) otherwise.
    pub(super) fn usable_blocks(&self, blocks: &[BlockId]) -> usize {
        let (mut end, mut index) = (blocks.len(), blocks.len());
        let first_needed = |end: usize| {
            self.limits.first_needed_block(end as u32 * self.block_size, self.block_size) as usize
        };
        let mut first = first_needed(end);
        while index > first {
            index -= 1;
            if !self.is_there(blocks[index]) {
                end = index;
                first = first_needed(end);
            }
        }
        end
    }

    /// Counts the parts that a hit would need and that some sequence needs already.
    pub(super) fn num_shared(
        &self,
        next_position: u32,
        blocks: &[BlockId],
        copy_source: Option<BlockId>,
    ) -> u32 {
        let first = self.limits.first_needed_block(next_position, self.block_size) as usize;
        let blocks = blocks.get(first..).unwrap_or_default();
        let is_shared = |block: &&BlockId| self.parts[block.index()].num_needs > 0;
        blocks.iter().chain(copy_source.as_ref()).filter(is_shared).count() as u32
    }

    /// Returns what a sequence needs that begins with these blocks and then computes `next_position`.
    pub(super) fn begin(&mut self, hit: &PrefixHit, blocks: &[BlockHold]) -> WindowNeeds {
        let first = self.limits.first_needed_block(hit.next_position(), self.block_size);
        let end = blocks.len() as u32;
        let copy_source = hit.partial().map(|(source, _)| source);
        let ends = if self.limits.is_recurrent { hit.ends() } else { [None; 2] };
        let needs = WindowNeeds { blocks: first.min(end)..end, stateless: 0..0, copy_source, ends };
        for block_idx in needs.blocks.clone() {
            self.need(blocks[block_idx as usize].id(), true);
        }
        if let Some(source) = copy_source {
            self.need(source, true);
        }
        needs
    }

    /// Gives parts to the blocks that a step is about to write at `first_position ..`. Returns how many of its
    /// `num_tokens` positions have parts.
    pub(super) fn reserve(
        &mut self,
        needs: &mut WindowNeeds,
        blocks: &[BlockHold],
        first_position: u32,
        num_tokens: u32,
    ) -> u32 {
        if self.limits.is_recurrent {
            return self.reserve_states(needs, blocks, first_position, num_tokens);
        }
        let wanted = (first_position + num_tokens).div_ceil(self.block_size);
        let end = wanted.min(needs.blocks.end.saturating_add(self.available()));
        for block_idx in needs.blocks.end..end {
            self.give(blocks[block_idx as usize].id());
        }
        needs.blocks.end = needs.blocks.end.max(end);
        // The difference is negative if even the block that is copied to has no part.
        num_tokens.min((needs.blocks.end * self.block_size).saturating_sub(first_position))
    }

    /// Gives parts to the last two blocks that a step is about to write. If too few parts are available, the step ends
    /// with the first block.
    fn reserve_states(
        &mut self,
        needs: &mut WindowNeeds,
        blocks: &[BlockHold],
        first_position: u32,
        num_tokens: u32,
    ) -> u32 {
        if num_tokens == 0 {
            return 0;
        }
        let mut num_tokens = needs.up_to_end(first_position, num_tokens, self.block_size);
        let end = needs.blocks.end;
        let last_of = |num_tokens: u32| (first_position + num_tokens - 1) / self.block_size;
        // The block before the first one written has its part already.
        let first_given = |last: u32| end.max(last.saturating_sub(1));
        let mut last = last_of(num_tokens);
        if (last + 1).saturating_sub(first_given(last)) > self.available() {
            num_tokens = num_tokens.min(self.block_size - first_position % self.block_size);
            last = last_of(num_tokens);
            if (last + 1).saturating_sub(first_given(last)) > self.available() {
                return 0;
            }
        }
        let first = first_given(last);
        for block_idx in first..=last {
            self.give(blocks[block_idx as usize].id());
        }
        if first > end {
            needs.stateless = end..first;
        }
        needs.blocks.end = end.max(last + 1);
        num_tokens
    }

    /// Gives parts to those of the `restored` blocks that `next_position` attends to. Returns the first of them.
    ///
    /// Panics if there are not enough parts.
    pub(super) fn reserve_restored(
        &mut self,
        needs: &mut WindowNeeds,
        blocks: &[BlockHold],
        next_position: u32,
        restored: Range<u32>,
    ) -> usize {
        let first = self.limits.first_needed_block(next_position, self.block_size).max(restored.start);
        for block_idx in first..restored.end {
            self.give(blocks[block_idx as usize].id());
        }
        needs.blocks = if needs.blocks.is_empty() { first } else { needs.blocks.start }..restored.end;
        first as usize
    }

    /// Releases the parts that no position from `position` on attends to.
    pub(super) fn pass(&mut self, needs: &mut WindowNeeds, blocks: &[BlockHold], position: u32) {
        let first = self.limits.first_needed_block(position, self.block_size).min(needs.blocks.end);
        for block_idx in needs.blocks_with_parts().take_while(|block_idx| *block_idx < first) {
            let list = if needs.is_end(block_idx) { DropList::Kept } else { DropList::Passed };
            self.release(blocks[block_idx as usize].id(), list);
        }
        needs.blocks.start = needs.blocks.start.max(first);
    }

    pub(super) fn release_copy_source(&mut self, needs: &mut WindowNeeds) {
        if let Some(source) = needs.copy_source.take() {
            self.release(source, DropList::Kept);
        }
    }

    /// Releases all parts at the end of a sequence. They are kept, because its next turn begins with them.
    pub(super) fn release_all(&mut self, needs: &mut WindowNeeds, blocks: &[BlockHold]) {
        self.release_copy_source(needs);
        for block_idx in needs.blocks_with_parts() {
            self.release(blocks[block_idx as usize].id(), DropList::Kept);
        }
        needs.blocks = 0..0;
    }

    /// Counts the part of a block among the kept ones, if no sequence needs it.
    pub(super) fn keep(&mut self, block: BlockId) {
        if self.parts[block.index()].list == Some(DropList::Passed) {
            self.unlink(block);
            self.link(block, DropList::Kept);
        }
    }

    /// Needs the part of a block for a copy. Returns false if the block has none.
    pub(super) fn begin_copy(&mut self, source: BlockId) -> bool {
        let is_there = self.is_there(source);
        if is_there {
            self.need(source, false);
        }
        is_there
    }

    /// Gives a part to a block that will have a copy of another's. Returns false if it has one or none is available.
    pub(super) fn give_copy(&mut self, destination: BlockId) -> bool {
        let is_given = !self.is_there(destination) && self.available() > 0;
        if is_given {
            self.give(destination);
        }
        is_given
    }

    /// Releases a part that was needed for a copy, or is one.
    pub(super) fn end_copy(&mut self, block: BlockId) {
        self.release(block, DropList::Kept);
    }

    /// Releases the part of a restored block that no sequence waits for.
    pub(super) fn release_restored(&mut self, block: BlockId) {
        self.release(block, DropList::Passed);
    }

    /// Frees the part of a block that is free, if it has one.
    pub(super) fn record_freed(&mut self, block: BlockId) {
        let part = &self.parts[block.index()];
        assert_eq!(part.num_needs, 0, "nobody needs a part of block {}, which is free", block.0);
        if part.is_there {
            self.take_back(block);
        }
    }

    /// Counts one more sequence that needs a part.
    fn need(&mut self, block: BlockId, is_hit: bool) {
        self.unlink(block);
        let part = &mut self.parts[block.index()];
        assert!(part.is_there, "block {} has the window part that is needed", block.0);
        part.num_needs += 1;
        part.was_found |= is_hit;
    }

    /// Counts one sequence less that needs a part. Without any, the part is added to `list`, or to the kept ones if a
    /// hit found it before.
    fn release(&mut self, block: BlockId, list: DropList) {
        let part = &mut self.parts[block.index()];
        assert!(part.num_needs > 0, "a sequence needs the part of block {}", block.0);
        part.num_needs -= 1;
        if part.num_needs == 0 {
            let list = if part.was_found { DropList::Kept } else { list };
            self.link(block, list);
        }
    }

    /// Gives a part to a block without one, for a sequence that needs it. Panics if none is available.
    fn give(&mut self, block: BlockId) {
        assert!(!self.is_there(block), "block {} is written for the first time", block.0);
        if self.num_free == 0 {
            let oldest = self.lists.iter().map(|list| list.oldest).find(|&oldest| oldest != NIL);
            self.take_back(BlockId(oldest.expect("parts were counted before they are given")));
            self.num_dropped += 1;
        }
        self.num_free -= 1;
        let part = &mut self.parts[block.index()];
        (part.is_there, part.was_found) = (true, false);
        self.need(block, false);
    }

    fn take_back(&mut self, block: BlockId) {
        self.unlink(block);
        self.parts[block.index()].is_there = false;
        self.num_free += 1;
        self.drops.push(block);
    }

    fn link(&mut self, block: BlockId, drop_list: DropList) {
        let list = &mut self.lists[drop_list as usize];
        let before = std::mem::replace(&mut list.newest, block.0);
        list.len += 1;
        match before {
            NIL => list.oldest = block.0,
            before => self.parts[before as usize].after = block.0,
        }
        let part = &mut self.parts[block.index()];
        (part.list, part.before, part.after) = (Some(drop_list), before, NIL);
    }

    fn unlink(&mut self, block: BlockId) {
        let part = &mut self.parts[block.index()];
        let Some(drop_list) = part.list.take() else { return };
        let (before, after) = (part.before, part.after);
        let list = &mut self.lists[drop_list as usize];
        list.len -= 1;
        match before {
            NIL => list.oldest = after,
            before => self.parts[before as usize].after = after,
        }
        match after {
            NIL => list.newest = before,
            after => self.parts[after as usize].before = before,
        }
    }

    pub(super) fn check_invariants(&self, is_free: impl Fn(BlockId) -> bool) {
        let (mut there, mut needed) = (0, 0);
        for (index, part) in self.parts.iter().enumerate() {
            there += u32::from(part.is_there);
            needed += u32::from(part.num_needs > 0);
            assert!(
                part.num_needs == 0 || part.is_there,
                "the part of block {index} that is needed is there"
            );
            let is_droppable = part.is_there && part.num_needs == 0;
            assert_eq!(
                part.list.is_some(),
                is_droppable,
                "block {index} is listed if its part may be dropped"
            );
            assert!(!part.is_there || !is_free(BlockId(index as u32)), "free block {index} has no part");
        }
        let counts = self.counts();
        assert_eq!(there + counts.free, counts.total, "windowed + free = all window parts");
        assert_eq!(needed, counts.needed, "needed window parts");
    }
}
