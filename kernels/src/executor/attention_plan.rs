//! Divides the attention of a step into work items for the threads. All layers with the same window share a plan.

use std::sync::atomic::{AtomicU32, Ordering};

use super::rows::{AcceptedChunk, StepRows};
use crate::attention::{SEGMENT_SIZE, Window, num_segments, rows_per_item, state_size};
use crate::kv_pool::KvGeometry;
use crate::program::RowSet;

/// With fewer items per thread than this, long items are split at segments.
const WANTED_ITEMS_PER_THREAD: usize = 3;

/// With latents, an item is divided down to this many heads. Each part reads the keys anew.
const LEAST_HEADS: usize = 4;

/// A work item: query rows of one chunk, one KV head and a range of segments. With latents, all query
/// heads share KV head 0, and items may have a part of them; `kv_head` is then the index of the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanItem {
    pub chunk: usize,
    pub first_row: usize,
    pub num_rows: usize,
    pub first_position: usize,
    /// The last position that the last row sees.
    pub last_visible: usize,
    pub kv_head: usize,
    /// Query heads of this KV head, or of this part of them.
    pub num_heads: usize,
    pub first_segment: usize,
    pub end_segment: usize,
    /// Index of the split that this item is a part of.
    pub split: Option<usize>,
}

impl PlanItem {
    fn num_segments(&self) -> usize {
        self.end_segment - self.first_segment
    }

    fn cost(&self, window: Window) -> usize {
        // In positions: the last segment may be partly filled, and the first partly outside the window.
        let end = (self.end_segment * SEGMENT_SIZE).min(self.last_visible + 1);
        let begin = (self.first_segment * SEGMENT_SIZE).max(window.first_visible(self.first_position));
        self.num_rows * (end - begin)
    }
}

/// An item that several threads compute in parts. The thread that finishes last merges the parts.
#[derive(Debug)]
pub struct Split {
    pub item: PlanItem,
    /// Offset of the partial states, in f32 elements.
    pub first_state: usize,
    num_parts: u32,
    remaining: AtomicU32,
}

impl Split {
    /// Marks one part as finished. Returns true for the last part, whose caller then sees all states. The count is
    /// reset for the next layer.
    pub fn finish_part(&self) -> bool {
        let is_last = self.remaining.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.remaining.store(self.num_parts, Ordering::Release);
        }
        is_last
    }
}

/// The items in descending order of cost. Threads take them in this order.
#[derive(Debug)]
pub struct AttentionPlan {
    pub window: Window,
    pub items: Vec<PlanItem>,
    pub splits: Vec<Split>,
}

/// The plans of a step for one window, by row set.
#[derive(Debug)]
struct WindowPlans {
    tokens: AttentionPlan,
    samples: AttentionPlan,
}

/// The plans of a step, indexed by window.
#[derive(Debug)]
pub(super) struct Plans(Vec<WindowPlans>);

impl Plans {
    pub(super) fn for_steps(
        windows: &[Window],
        limits: &PlanLimits,
        max_tokens: usize,
        max_chunks: usize,
    ) -> Self {
        let plans = windows.iter().map(|window| WindowPlans {
            tokens: AttentionPlan::for_steps(*window, limits, max_tokens, max_chunks),
            samples: AttentionPlan::for_steps(*window, limits, max_chunks, max_chunks),
        });
        Self(plans.collect())
    }

    pub(super) fn rebuild(&mut self, rows: &StepRows, limits: &PlanLimits) {
        let piece = |chunk: usize, first_position, num_rows| {
            let AcceptedChunk { first_position: first, num_tokens, .. } = rows.chunks[chunk];
            PlanChunk { chunk, first_position, num_rows, last_position: first + num_tokens - 1 }
        };
        for WindowPlans { tokens, samples } in &mut self.0 {
            let chunks = rows.chunks.iter().enumerate();
            tokens.rebuild(chunks.map(|(i, chunk)| piece(i, chunk.first_position, chunk.num_tokens)), limits);
            let sampled = rows.samples.iter().zip(&rows.sample_chunks);
            samples
                .rebuild(sampled.map(|(row, chunk)| piece(*chunk, rows.positions[*row] as usize, 1)), limits);
        }
    }

    pub(super) fn of(&self, rows: RowSet, window: usize) -> &AttentionPlan {
        match rows {
            RowSet::Tokens => &self.0[window].tokens,
            RowSet::Samples => &self.0[window].samples,
            RowSet::TokenRoutes { .. } | RowSet::SampleRoutes { .. } => unreachable!("experts do not attend"),
        }
    }
}

/// Consecutive rows of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct PlanChunk {
    /// The index of the chunk.
    pub chunk: usize,
    pub first_position: usize,
    pub num_rows: usize,
    /// The last position of the whole chunk, which an encoder's rows may see.
    pub last_position: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct PlanLimits {
    pub geometry: KvGeometry,
    pub heads_per_kv_head: usize,
    pub num_threads: usize,
    /// f32 elements available for partial states.
    pub state_capacity: usize,
}

impl PlanLimits {
    /// The f32 elements needed to split one row of every item when a step has too few items.
    pub fn wanted_state_capacity(&self, num_blocks: usize) -> usize {
        let max_segments = num_segments(num_blocks * self.geometry.block_size);
        let row = self.heads_per_kv_head * state_size(self.geometry.padded_value_size());
        WANTED_ITEMS_PER_THREAD * self.num_threads * max_segments * row
    }
}

impl AttentionPlan {
    pub fn for_steps(window: Window, limits: &PlanLimits, max_tokens: usize, max_chunks: usize) -> Self {
        let block_size = limits.geometry.block_size;
        let pieces_per_block = block_size.div_ceil(rows_per_item(limits.heads_per_kv_head));
        // A chunk may begin and end inside a block, and the windows of its rows may begin in different segments.
        let num_blocks = max_tokens / block_size + 2 * max_chunks;
        let num_cuts = if !window.is_bounded() { 0 } else { max_tokens / SEGMENT_SIZE + max_chunks };
        let num_pieces =
            (num_blocks * pieces_per_block + num_cuts).min(max_tokens) * limits.geometry.num_kv_heads;
        let wanted = WANTED_ITEMS_PER_THREAD * limits.num_threads;
        Self {
            window,
            items: Vec::with_capacity(num_pieces + 2 * wanted),
            splits: Vec::with_capacity(wanted),
        }
    }

    fn begin(&mut self) {
        self.items.clear();
        self.splits.clear();
    }

    /// Adds an item for each `num_heads` query heads of the rows of `piece`, the first of which is row `first_row`.
    fn push_items(&mut self, piece: PlanChunk, first_row: usize, num_heads: usize, limits: &PlanLimits) {
        let PlanChunk { chunk, first_position, num_rows, last_position } = piece;
        let last_visible = self.window.last_visible(first_position + num_rows - 1, last_position);
        let num_parts = limits.geometry.num_kv_heads * limits.heads_per_kv_head / num_heads;
        for kv_head in 0..num_parts {
            self.items.push(PlanItem {
                chunk,
                first_row,
                num_rows,
                first_position,
                last_visible,
                kv_head,
                num_heads,
                first_segment: self.window.first_segment(first_position),
                end_segment: num_segments(last_visible),
                split: None,
            });
        }
    }

    fn finish(&mut self, limits: &PlanLimits) {
        self.cut_long_items(limits);
        // A stable sort would allocate.
        self.items.sort_unstable_by_key(|item| {
            (std::cmp::Reverse(item.cost(self.window)), item.first_row, item.kv_head, item.first_segment)
        });
    }

    /// Replaces the plan by one for `chunks`, whose rows are consecutive. Costs O(n log n) for n items.
    pub fn rebuild(&mut self, chunks: impl Iterator<Item = PlanChunk> + Clone, limits: &PlanLimits) {
        let mut num_heads = limits.heads_per_kv_head;
        self.fill(chunks.clone(), num_heads, limits);
        // Segments are better parts, because each is read once for all heads, but a short context has few.
        while limits.geometry.latent_size.is_some()
            && num_heads.is_multiple_of(2)
            && num_heads > LEAST_HEADS
            && self.items.iter().map(PlanItem::num_segments).sum::<usize>() < limits.num_threads
        {
            num_heads /= 2;
            self.fill(chunks.clone(), num_heads, limits);
        }
        self.finish(limits);
    }

    /// Replaces the items by whole ones with `num_heads` query heads each.
    fn fill(&mut self, chunks: impl Iterator<Item = PlanChunk>, num_heads: usize, limits: &PlanLimits) {
        self.begin();
        let most_rows = rows_per_item(num_heads);
        let mut first_row = 0;
        for chunk in chunks {
            let mut done = 0;
            while done < chunk.num_rows {
                let first_position = chunk.first_position + done;
                let num_rows = (chunk.num_rows - done)
                    .min(self.window.rows_together(first_position, limits.geometry.block_size))
                    .min(most_rows);
                let piece = PlanChunk { first_position, num_rows, ..chunk };
                self.push_items(piece, first_row + done, num_heads, limits);
                done += num_rows;
            }
            first_row += chunk.num_rows;
        }
    }

    /// Splits items at segments if there are too few for the threads.
    fn cut_long_items(&mut self, limits: &PlanLimits) {
        let wanted = WANTED_ITEMS_PER_THREAD * limits.num_threads;
        let num_items = self.items.len();
        if limits.num_threads == 1 || num_items >= wanted || num_items == 0 {
            return;
        }
        let parts_per_item = wanted.div_ceil(num_items);
        let mut first_state = 0;
        for index in 0..num_items {
            let item = self.items[index];
            let state = item.num_heads * state_size(limits.geometry.padded_value_size());
            let num_parts = parts_per_item.min(item.num_segments());
            let num_states = item.num_rows * item.num_segments() * state;
            if num_parts < 2 || first_state + num_states > limits.state_capacity {
                continue;
            }
            let split = self.splits.len();
            for part in 0..num_parts {
                let range = crate::threads::split(0..item.num_segments(), num_parts, part);
                let part_item = PlanItem {
                    first_segment: item.first_segment + range.start,
                    end_segment: item.first_segment + range.end,
                    split: Some(split),
                    ..item
                };
                if part == 0 {
                    self.items[index] = part_item;
                } else {
                    self.items.push(part_item);
                }
            }
            let num_parts = num_parts as u32;
            self.splits.push(Split { item, first_state, num_parts, remaining: AtomicU32::new(num_parts) });
            first_state += num_states;
        }
    }

    /// The offset of the partial states of `item`, a part of `split`, in f32 elements.
    pub(super) fn state_offset(&self, item: &PlanItem, split: usize, limits: &PlanLimits) -> usize {
        let state = item.num_heads * state_size(limits.geometry.padded_value_size());
        let split = &self.splits[split];
        split.first_state + (item.first_segment - split.item.first_segment) * item.num_rows * state
    }
}
