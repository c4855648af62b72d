//! Attention over the blocks of a sequence, causal or that of an encoder, with online softmax (arXiv:1805.02867,
//! algorithm 3).
//!
//! This crate has the generic functions, and the schemes of the dtypes in a file each. Nothing is compiled here: the
//! crates `int` and `float` in this folder compile the schemes side by side, and `trunkline-kernels` chooses between
//! them. It uses only `trunkline-kernels-core`. Begin with [`Item`] and [`Scheme`], then [`attend_as`] and a scheme.
//!
//! # Order of operations
//! The bits of a query's result depend only on its position and on K and V of the positions that it sees. Attention
//! processes one tile, which is a block, after the other in order of position. The scheme of the pool's dtype
//! (`float.rs`, `int8.rs`, `int4.rs`) defines the operations within a tile. They update a state per query and head:
//! the reference m of the exponents, the sum l of the probabilities and the weighted sum o of the values, both relative
//! to m.
//!
//! After every [`SEGMENT_SIZE`] positions the state (m, l, o) is merged into the total and reset. Several threads can
//! share a long sequence because segments can be computed independently; they are always merged in order.
//!
//! Positions behind the last one that a query sees are masked by selection before anything is computed from them,
//! because unused slots may hold anything, including NaN. The last one is the query's own, or a later one in encoders.
//!
//! # Windows and soft caps
//! With a sliding window ([`Window`]), tiles that no row of an item sees are skipped, and the first segment is the one
//! with the first visible position. A tile that a row does not see leaves the row's state unchanged to the bit, and
//! positions before the row's window are masked like those behind it. With a soft cap, each score s is replaced
//! by cap * tanh(s / cap).
//!
//! # Sinks
//! The sink of a head is merged into the total behind the last segment, like a segment of one position whose score is
//! the sink and whose value is 0.
#![allow(clippy::missing_safety_doc, reason = "traits state the conditions of their functions")]

mod float;
mod int4;
mod int8;
mod latent;
mod row_scores;
mod states;
mod window;

pub use self::float::Float;
pub use self::int4::Int4;
pub use self::int8::Int8;
pub use self::latent::Latent;
pub use self::states::state_size;
pub use self::window::Window;

use self::states::{Parts, States, merge_rows};
use trunkline_kernels_core::kv_pool::{KvGeometry, KvView, MAX_BLOCK_SIZE, QUAD};
use trunkline_kernels_core::vector::{ByteLanes, LANES, simd_entry};

/// Positions per segment; a multiple of every block size.
pub const SEGMENT_SIZE: usize = 512;
/// Rows of an item: query rows times query heads of a KV head. An item has more if one KV head has more query heads.
const ITEM_ROWS: usize = 48;

/// A work item: query rows of one chunk that can be computed together ([`Window::rows_together`]), one KV head and a
/// range of segments.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Block ids of the sequence, at least up to the block of the last position that a row sees.
    pub block_table: &'a [u32],
    pub layer: usize,
    pub kv_head: usize,
    /// Query heads per KV head, H / G. With latents, an item may have a part of the query heads, all of which share KV
    /// head 0: part `kv_head`, of this size.
    pub heads_per_kv_head: usize,
    /// Position of the first query row.
    pub first_position: usize,
    /// The last position whose K and V are stored. Only rows of encoders see behind their own.
    pub last_position: usize,
    pub num_rows: usize,
    /// The factor of the scores, usually 1 / sqrt(D).
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// The window of the layer.
    pub window: Window,
    /// The sinks of all heads, `[H]`.
    pub sinks: Option<&'a [f32]>,
    pub first_segment: usize,
    pub end_segment: usize,
    /// The block and KV head that this thread will probably read next. They are prefetched during the last block.
    pub next: Option<(u32, usize)>,
}

impl Item<'_> {
    /// The block and KV head that are read after block `block` of the sequence; the same ones again if nothing is
    /// known.
    #[inline]
    fn after(&self, block: usize, block_size: usize) -> (u32, usize) {
        let end = (self.end_segment * SEGMENT_SIZE / block_size).min(self.last_visible(0) / block_size + 1);
        if block + 1 < end {
            (self.block_table[block + 1], self.kv_head)
        } else {
            self.next.unwrap_or((self.block_table[block], self.kv_head))
        }
    }

    /// The query head of inner row `row`.
    #[inline(always)]
    fn head(&self, row: usize) -> usize {
        self.kv_head * self.heads_per_kv_head + row % self.heads_per_kv_head
    }

    #[inline]
    pub fn is_local(&self) -> bool {
        self.window.is_bounded() || self.soft_cap.is_some()
    }

    /// The first position that inner row `row` sees.
    #[inline(always)]
    fn first_visible(&self, row: usize) -> usize {
        self.window.first_visible(self.position(row))
    }

    /// The last position that inner row `row` sees.
    #[inline(always)]
    fn last_visible(&self, row: usize) -> usize {
        self.window.last_visible(self.position(row), self.last_position)
    }

    /// The position of inner row `row`.
    #[inline(always)]
    fn position(&self, row: usize) -> usize {
        self.first_position + row / self.heads_per_kv_head
    }

    /// Number of inner rows: query rows times query heads of the KV head.
    #[inline]
    fn rows(&self) -> usize {
        self.num_rows * self.heads_per_kv_head
    }

    /// The query `[D]` of inner row `row`.
    ///
    /// # Safety
    /// `queries` must hold the item's query rows, each `[H * D]`.
    #[inline(always)]
    unsafe fn query<'q>(&self, row: usize, head_size: usize, queries: Rows<*const f32>) -> &'q [f32] {
        let start = self.head(row) * head_size;
        let row = row / self.heads_per_kv_head;
        // SAFETY: the caller guarantees that the row holds all heads.
        unsafe { std::slice::from_raw_parts(queries.pointer.add(row * queries.stride + start), head_size) }
    }
}

/// Number of segments that hold the positions up to and including `position`.
pub fn num_segments(position: usize) -> usize {
    position / SEGMENT_SIZE + 1
}

#[derive(Debug)]
#[repr(align(64))]
struct Aligned<T>(T);

/// The working memory of one thread, allocated once for the largest item.
#[derive(Debug)]
pub struct Scratch {
    /// Scaled queries as f32, `[D][rows of the group]` for each group of rows.
    queries: Vec<f32>,
    bytes: int8::Queries,
    scales: int8::Scales,
    unpacked: int4::Unpacked,
    turning: int4::Turning,
    segment: States,
    total: States,
    /// Scores, later probabilities, of one group and tile.
    tile: Box<Aligned<[[f32; MAX_BLOCK_SIZE]; float::GROUP_ROWS]>>,
    /// Probabilities of one group and tile as bytes.
    weights: [int8::Weights; int8::GROUP_ROWS],
}

impl Scratch {
    /// Allocates the memory for heads of a pool and `heads_per_kv_head` query heads per KV head.
    pub fn new(geometry: &KvGeometry, heads_per_kv_head: usize) -> Self {
        let rows = ITEM_ROWS.max(heads_per_kv_head);
        let (head_size, padded) = (geometry.head_size, geometry.padded_value_size());
        Self {
            queries: vec![0.0; rows * geometry.padded_head_size()],
            bytes: int8::Queries::new(rows, head_size.next_multiple_of(QUAD)),
            scales: int8::Scales::ZERO,
            unpacked: int4::Unpacked::new(head_size),
            turning: int4::Turning::new(rows, head_size),
            segment: States::new(rows, padded),
            total: States::new(rows, padded),
            tile: Box::new(Aligned([[0.0; MAX_BLOCK_SIZE]; float::GROUP_ROWS])),
            weights: [int8::Weights::ZERO; int8::GROUP_ROWS],
        }
    }
}

/// The operations that differ between the dtypes of K and V.
///
/// # Safety
/// For all functions, the CPU must have the instruction set of `L`, and pointers must be valid for the item's elements,
/// which no other thread may write.
pub trait Scheme {
    /// Copies the item's queries to `scratch`, in the layout of the score kernel.
    unsafe fn pack_queries<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    );
    /// Resets this scheme's own state of a segment; `scratch.segment` is already reset.
    unsafe fn begin_segment(rows: usize, scratch: &mut Scratch);
    /// Updates `scratch.segment` with block `block` of the sequence.
    unsafe fn attend_block<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        block: usize,
        scratch: &mut Scratch,
    );
    unsafe fn end_segment<L: ByteLanes>(rows: usize, scratch: &mut Scratch);
    /// m of a score of 1: the logarithm of e to the base of [`Scheme::power`].
    const SCORE_UNIT: f32;

    /// The exponential function of the scheme, e^x or 2^x, which defines the unit of m.
    unsafe fn power<L: ByteLanes>(x: L) -> L;
    /// Writes the result of a row, `value_size` elements, from its totals `o`, which are padded to whole vectors, and
    /// `sum`. May overwrite `o`.
    unsafe fn finish_row<L: ByteLanes>(o: *mut f32, sum: f32, value_size: usize, out: *mut f32);
}

/// The most query rows per item, which is as many as fit in [`Scratch`].
pub fn rows_per_item(heads_per_kv_head: usize) -> usize {
    (ITEM_ROWS / heads_per_kv_head).max(1)
}

/// Computes the states of one segment in `scratch.segment`.
#[inline(always)]
unsafe fn attend_segment<L: ByteLanes, K: Scheme>(
    kv: &KvView<'_>,
    item: &Item<'_>,
    segment: usize,
    scratch: &mut Scratch,
) {
    let g = kv.geometry();
    scratch.segment.clear(item.rows(), g.padded_value_size());
    let last_block = item.last_visible(0) / g.block_size;
    let blocks_per_segment = SEGMENT_SIZE / g.block_size;
    let first_of_segment = segment * blocks_per_segment;
    let first_block = first_of_segment.max(item.first_visible(0) / g.block_size);
    // SAFETY: the caller guarantees the conditions of the callee.
    unsafe {
        K::begin_segment(item.rows(), scratch);
        for block in first_block..(first_of_segment + blocks_per_segment).min(last_block + 1) {
            K::attend_block::<L>(kv, item, block, scratch);
        }
        K::end_segment::<L>(item.rows(), scratch);
    }
}

/// A pointer to rows: row i begins at `pointer + i * stride`.
#[derive(Clone, Copy)]
pub struct Rows<P> {
    pub pointer: P,
    /// Distance between rows, in elements.
    pub stride: usize,
}

#[derive(Clone, Copy)]
pub enum Target {
    /// Finished rows of all heads, of which the part of this KV head is written. The item must have all segments.
    Rows(Rows<*mut f32>),
    /// The state of each segment, for [`finish_as`]: m of each row, l of each row, then o, whose rows are padded.
    States(*mut f32),
}

#[inline(always)]
unsafe fn attend_generic<L: ByteLanes, K: Scheme>(
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    let g = *kv.geometry();
    let (rows, stride) = (item.rows(), g.padded_value_size());
    assert!(rows * stride <= scratch.total.out.len());
    assert!(rows * g.padded_head_size() <= scratch.queries.len());
    // SAFETY: the caller guarantees that the rows hold all heads.
    unsafe { K::pack_queries::<L>(kv, item, queries, scratch) };
    for segment in item.first_segment..item.end_segment {
        // SAFETY: the caller guarantees that the slots that the item sees are not written.
        unsafe { attend_segment::<L, K>(kv, item, segment, scratch) };
        let index = segment - item.first_segment;
        match target {
            Target::Rows(_) if index == 0 => std::mem::swap(&mut scratch.segment, &mut scratch.total),
            Target::Rows(_) => {
                // SAFETY: only lane arithmetic.
                unsafe { merge_rows::<L, K>(&mut scratch.total, scratch.segment.parts(rows, stride)) };
            }
            Target::States(states) => {
                // SAFETY: the caller guarantees room for every row of every segment of the item.
                let states = unsafe {
                    let size = rows * state_size(stride);
                    std::slice::from_raw_parts_mut(states.add(index * size), size)
                };
                let Parts { max, sum, out } = scratch.segment.parts(rows, stride);
                states[..rows].copy_from_slice(max);
                states[rows..2 * rows].copy_from_slice(sum);
                states[2 * rows..].copy_from_slice(out);
            }
        }
    }
    if let Target::Rows(out) = target {
        // SAFETY: the caller guarantees that the rows hold this KV head's part.
        unsafe { finish_rows::<L, K>(item, g.value_size(), scratch, out) };
    }
}

#[inline(always)]
unsafe fn finish_states_generic<L: ByteLanes, K: Scheme>(
    value_size: usize,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    let (rows, stride) = (item.rows(), value_size.next_multiple_of(LANES));
    for index in 0..item.end_segment - item.first_segment {
        // SAFETY: the caller guarantees room for every row of every segment of the item.
        let state = unsafe {
            let size = rows * state_size(stride);
            std::slice::from_raw_parts(states.add(index * size), size)
        };
        let parts = Parts::new(state, rows);
        if index == 0 {
            scratch.total.max[..rows].copy_from_slice(parts.max);
            scratch.total.sum[..rows].copy_from_slice(parts.sum);
            scratch.total.out[..rows * stride].copy_from_slice(parts.out);
        } else {
            // SAFETY: only lane arithmetic.
            unsafe { merge_rows::<L, K>(&mut scratch.total, parts) };
        }
    }
    // SAFETY: the caller guarantees that the rows hold this KV head's part.
    unsafe { finish_rows::<L, K>(item, value_size, scratch, out) };
}

/// Merges the sinks into the totals, and writes the result of every row of an item to `out`.
#[inline(always)]
unsafe fn finish_rows<L: ByteLanes, K: Scheme>(
    item: &Item<'_>,
    value_size: usize,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    let (rows, stride) = (item.rows(), value_size.next_multiple_of(LANES));
    if let Some(sinks) = item.sinks {
        scratch.segment.clear(rows, stride);
        for row in 0..rows {
            scratch.segment.max[row] = sinks[item.head(row)] * K::SCORE_UNIT;
            scratch.segment.sum[row] = 1.0;
        }
        // SAFETY: only lane arithmetic.
        unsafe { merge_rows::<L, K>(&mut scratch.total, scratch.segment.parts(rows, stride)) };
    }
    let total = &mut scratch.total;
    for r in 0..rows {
        let (row, head) = (r / item.heads_per_kv_head, item.head(r));
        let o = &mut total.out[r * stride..(r + 1) * stride];
        // SAFETY: the caller's row holds the head, and `o` holds the head padded to whole vectors.
        unsafe {
            let destination = out.pointer.add(row * out.stride + head * value_size);
            K::finish_row::<L>(o.as_mut_ptr(), total.sum[r], value_size, destination);
        }
    }
}

simd_entry! {
    /// Computes the attention of one item with one scheme. A single function for all schemes would be too large for
    /// complete inlining.
    ///
    /// # Panics
    /// Panics if a block, layer or head of the item does not exist, or if it has more rows than [`rows_per_item`].
    ///
    /// # Safety
    /// `queries` and `target` must point to all rows of the item. During the call, no other thread may write `queries`,
    /// read or write `target`, or write K and V of the item's layer and visible positions.
    pub unsafe fn attend_as<K: Scheme> = attend_generic(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
        target: Target,
    );
}

simd_entry! {
    /// Merges the states that [`attend_as`] computed for the parts of an item, in order, and writes the finished rows.
    /// `item` has all segments.
    ///
    /// # Safety
    /// `states` must hold the state of every segment and row of the item. The conditions for `out` are those of
    /// `target` in [`attend_as`].
    pub unsafe fn finish_as<K: Scheme> = finish_states_generic(
        value_size: usize,
        item: &Item<'_>,
        states: *const f32,
        scratch: &mut Scratch,
        out: Rows<*mut f32>,
    );
}
