//! Window parts: K and V of the layers that see only the last positions, of which there is room for fewer blocks.
//!
//! A block has its part from when a step first writes it until the part is dropped; its other layers stay. Sequences
//! need the parts that their next positions look at; what none needs may be dropped when another block wants a part:
//!
//! ```text
//! passed   ◀ oldest ... newest     a window moved on from it: found again only by who branches off just there
//! kept     ◀ oldest ... newest     the end of a turn, or found by a hit before: dropped when `passed` is empty
//! ```
//!
//! Dropping disregards the tree: a hole costs only the hits that would begin right behind it.

use trunkline_contract::BlockId;

use crate::cache::KvCache;
use crate::hit::PrefixHit;
use crate::radix::{Cursor, PrefixMatch};
use crate::table::BlockTable;
use crate::tiers::RestoredBlock;

/// How many window parts a pool has, and how far a window reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimits {
    /// Blocks that may have their part at a time; at least [`WindowLimits::least_parts`].
    pub num_parts: u32,
    /// The query at position p looks at positions max(0, p - `window_size` + 1) to p. At least 1.
    pub window_size: u32,
}

impl WindowLimits {
    /// The first block that the query at `position` looks at.
    pub fn first_needed_block(&self, position: u32, block_size: u32) -> u32 {
        (position + 1).saturating_sub(self.window_size) / block_size
    }

    /// Parts that let one sequence run: its window, the block that it writes, and one that it copies from.
    pub fn least_parts(&self, block_size: u32) -> u32 {
        (self.window_size - 1).div_ceil(block_size) + 2
    }
}

/// Where the parts are; `free + droppable + needed = total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// No block has them.
    pub free: u32,
    /// A block has them, but no sequence needs them.
    pub droppable: u32,
    /// At least one sequence needs them.
    pub needed: u32,
    /// All.
    pub total: u32,
    /// Dropped so far for want of one, not with their blocks.
    pub dropped: u64,
}

const NIL: u32 = u32::MAX;

/// Which list a droppable part is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worth {
    Passed,
    Kept,
}

/// One block's part.
#[derive(Clone, Copy, Debug)]
struct Part {
    is_there: bool,
    /// A hit needed it.
    was_found: bool,
    num_needs: u32,
    /// The list that it is in, with its neighbours there.
    list: Option<Worth>,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
    len: u32,
}

/// The parts of all blocks. Every change costs O(1).
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
    fn new(limits: WindowLimits, num_blocks: u32, block_size: u32) -> Self {
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

    fn available(&self) -> u32 {
        self.num_free + self.lists[0].len + self.lists[1].len
    }

    pub(crate) fn is_there(&self, block: BlockId) -> bool {
        self.parts[block.index()].is_there
    }

    /// One sequence more needs a part that is there.
    fn need(&mut self, block: BlockId, is_hit: bool) {
        self.unlink(block);
        let part = &mut self.parts[block.index()];
        assert!(part.is_there, "block {} has the window part that is needed", block.0);
        part.num_needs += 1;
        part.was_found |= is_hit;
    }

    /// One sequence less needs it: with the last one it may be dropped.
    fn release(&mut self, block: BlockId, is_end: bool) {
        let part = &mut self.parts[block.index()];
        assert!(part.num_needs > 0, "who needed the part of block {} is counted", block.0);
        part.num_needs -= 1;
        if part.num_needs == 0 {
            let worth = if is_end || part.was_found { Worth::Kept } else { Worth::Passed };
            self.link(block, worth);
        }
    }

    /// A block that has no part gets one, and a sequence needs it. Panics if none is available.
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

    /// The block is free: so is its part.
    pub(crate) fn freed(&mut self, block: BlockId) {
        let part = &self.parts[block.index()];
        assert_eq!(part.num_needs, 0, "nobody needs a part of block {}, which is free", block.0);
        if part.is_there {
            self.take_back(block);
        }
    }

    fn link(&mut self, block: BlockId, worth: Worth) {
        let list = &mut self.lists[worth as usize];
        let before = std::mem::replace(&mut list.newest, block.0);
        list.len += 1;
        match before {
            NIL => list.oldest = block.0,
            before => self.parts[before as usize].after = block.0,
        }
        let part = &mut self.parts[block.index()];
        (part.list, part.before, part.after) = (Some(worth), before, NIL);
    }

    fn unlink(&mut self, block: BlockId) {
        let part = &mut self.parts[block.index()];
        let Some(worth) = part.list.take() else { return };
        let (before, after) = (part.before, part.after);
        match before {
            NIL => self.lists[worth as usize].oldest = after,
            before => self.parts[before as usize].after = after,
        }
        match after {
            NIL => self.lists[worth as usize].newest = before,
            after => self.parts[after as usize].before = before,
        }
        self.lists[worth as usize].len -= 1;
    }

    /// How many leading blocks a hit may have: the most such that all parts that the next position needs are there.
    /// Cost: O(window) for the first candidate, O(blocks) for all.
    fn usable_blocks(&self, blocks: &[BlockId]) -> usize {
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

    fn counts(&self) -> WindowCounts {
        let droppable = self.lists[0].len + self.lists[1].len;
        WindowCounts {
            free: self.num_free,
            droppable,
            needed: self.limits.num_parts - self.num_free - droppable,
            total: self.limits.num_parts,
            dropped: self.num_dropped,
        }
    }

    pub(crate) fn check_invariants(&self, is_free: impl Fn(BlockId) -> bool) {
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

impl KvCache {
    /// Blocks are in two parts. Called before anything else is; panics if a sequence could not run.
    pub fn set_windows(&mut self, limits: WindowLimits) {
        assert!(limits.num_parts >= limits.least_parts(self.block_size), "one sequence can run: {limits:?}");
        let counts = self.counts();
        assert_eq!(counts.free, counts.total, "nothing is in the blocks yet");
        self.windows = Some(WindowParts::new(limits, counts.total, self.block_size));
    }

    /// Where the window parts are; none if blocks are in one piece.
    pub fn window_counts(&self) -> Option<WindowCounts> {
        self.windows.as_ref().map(WindowParts::counts)
    }

    /// Needs of all sequences together, recounted: for tests. Cost: O(blocks).
    pub fn num_window_needs(&self) -> u64 {
        let parts = self.windows.iter().flat_map(|windows| &windows.parts);
        parts.map(|part| u64::from(part.num_needs)).sum()
    }

    /// Window parts that [`KvCache::reserve_parts`] can give; as many as you like if blocks are in one piece.
    pub fn available_parts(&self) -> u32 {
        self.windows.as_ref().map_or(u32::MAX, WindowParts::available)
    }

    /// A step is to write positions `first_position ..`, `num_tokens` of them, in blocks that the table has: gives
    /// these their window parts. Returns for how many positions there are parts.
    pub fn reserve_parts(&mut self, table: &mut BlockTable, first_position: u32, num_tokens: u32) -> u32 {
        let Some(windows) = &mut self.windows else { return num_tokens };
        let wanted = (first_position + num_tokens).div_ceil(self.block_size);
        let end = wanted.min(table.needed.end.saturating_add(windows.available()));
        for block_idx in table.needed.end..end {
            windows.give(table.blocks[block_idx as usize].id());
        }
        table.needed.end = table.needed.end.max(end);
        // Less than nothing if even the block that is copied to has none.
        num_tokens.min((table.needed.end * self.block_size).saturating_sub(first_position))
    }

    /// The next position that a table's sequence computes is `position`, in a plan to come: lets go what it does not
    /// look at any more.
    pub fn pass_window(&mut self, table: &mut BlockTable, position: u32) {
        let Some(windows) = &mut self.windows else { return };
        let first = windows.limits.first_needed_block(position, self.block_size).min(table.needed.end);
        for block_idx in table.needed.start..first {
            windows.release(table.blocks[block_idx as usize].id(), false);
        }
        table.needed.start = table.needed.start.max(first);
    }

    /// Blocks whose window parts are taken back since the last call: the shard drops them before it does anything else
    /// that a plan says.
    pub fn take_window_drops(&mut self) -> Vec<BlockId> {
        self.windows.as_mut().map_or_else(Vec::new, |windows| std::mem::take(&mut windows.drops))
    }

    /// Window parts that a hit would need and that a sequence needs already.
    pub fn num_shared_parts(&self, hit: &PrefixHit) -> u32 {
        let Some(windows) = &self.windows else { return 0 };
        let first = self.first_needed_after(windows, hit) as usize;
        let blocks = hit.found.blocks.get(first..).unwrap_or_default();
        let is_shared = |block: &&BlockId| windows.parts[block.index()].num_needs > 0;
        blocks.iter().chain(hit.found.partial.as_ref().map(|(source, _)| source)).filter(is_shared).count()
            as u32
    }

    /// Cuts a match to where all that the next position looks at is there.
    pub(crate) fn fit_window(&self, found: &mut PrefixMatch) {
        let Some(windows) = &self.windows else { return };
        let end = windows.usable_blocks(&found.blocks);
        let is_whole = end == found.blocks.len();
        // The copy is not made without the blocks that would be needed without it: it may still be left out.
        if !is_whole || found.partial.is_some_and(|(source, _)| !windows.is_there(source)) {
            (found.partial, found.partial_node) = (None, None);
        }
        if !is_whole {
            found.blocks.truncate(end);
            found.cursor = Cursor { last_block: found.blocks.last().copied(), num_blocks: end as u32 };
        }
    }

    /// A sequence begins with a hit: it needs what it looks at first.
    pub(crate) fn need_hit(&mut self, table: &mut BlockTable, hit: &PrefixHit) {
        let Some(windows) = &self.windows else { return };
        let first = self.first_needed_after(windows, hit);
        let Some(windows) = &mut self.windows else { return };
        let end = table.blocks.len() as u32;
        table.needed = first.min(end)..end;
        for block_idx in table.needed.clone() {
            windows.need(table.blocks[block_idx as usize].id(), true);
        }
        table.needed_source = hit.partial().map(|(source, _)| source);
        if let Some(source) = table.needed_source {
            windows.need(source, true);
        }
    }

    /// The first block that is looked at by the position which follows a hit with what the store has of it.
    fn first_needed_after(&self, windows: &WindowParts, hit: &PrefixHit) -> u32 {
        let num_tokens = match hit.num_stored_tokens() {
            0 => hit.num_tokens(),
            // A partly matching block is not copied where a stored one follows.
            num_stored_tokens => hit.num_block_tokens() + num_stored_tokens,
        };
        windows.limits.first_needed_block(num_tokens, self.block_size)
    }

    /// Gives the blocks that are to be restored behind a hit their window parts, if the next position looks at them.
    /// Returns the first that has one. Panics if there are not enough.
    pub(crate) fn give_restored(&mut self, table: &mut BlockTable, hit: &PrefixHit) -> usize {
        let Some(windows) = &self.windows else { return 0 };
        let first_stored = hit.num_blocks() as u32;
        let first = self.first_needed_after(windows, hit).max(first_stored);
        let end = first_stored + hit.stored().len() as u32;
        let Some(windows) = &mut self.windows else { return 0 };
        (first..end).for_each(|block_idx| windows.give(table.blocks[block_idx as usize].id()));
        table.needed = if table.needed.is_empty() { first } else { table.needed.start }..end;
        first as usize
    }

    /// Nobody waits for restored blocks any longer: nobody needs their parts.
    pub(crate) fn release_restored(&mut self, restored: &[RestoredBlock]) {
        let Some(windows) = &mut self.windows else { return };
        let windowed = restored.iter().filter(|block| !block.base_only);
        windowed.for_each(|block| windows.release(block.block, false));
    }

    pub(crate) fn release_needed_source(&mut self, table: &mut BlockTable) {
        if let Some(windows) = &mut self.windows
            && let Some(source) = table.needed_source.take()
        {
            windows.release(source, true);
        }
    }

    /// A sequence ends: where it stood is what its next turn begins with.
    pub(crate) fn release_needs(&mut self, table: &mut BlockTable) {
        self.release_needed_source(table);
        let Some(windows) = &mut self.windows else { return };
        for block_idx in std::mem::take(&mut table.needed) {
            windows.release(table.blocks[block_idx as usize].id(), true);
        }
    }
}
