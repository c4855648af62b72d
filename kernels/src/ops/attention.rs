//! Causal attention over blocks: online softmax, arXiv:1805.02867 (algorithm 3), over tiles at absolute positions.
//!
//! # One order of sums
//! The bits of one query's result depend on its position and on K and V up to it, on nothing else. A tile is a block.
//! Tiles follow each other in order of position; what happens in one is said by the scheme of the pool's dtype
//! (`attention/float.rs`, `attention/int8.rs`, `attention/int4.rs`). Each leaves a state per query and head: a
//! reference m of the exponents, the sum l of the probabilities and the weighted sum o of the values, all relative to
//! m.
//!
//! After each [`SEGMENT_SIZE`] positions the state (m, l, o) is merged into the total and begun anew. Segments exist so
//! that several threads can share one long sequence: they may be computed anywhere and are merged in order.
//!
//! Positions beyond the query are taken out by selection, before anything is computed from them: a stale slot may hold
//! anything, NaN too.
//!
//! # Windows and soft caps
//! Where a layer has a sliding window ([`Window`]), tiles that no row of an item sees are not looked at, and segments
//! begin with a row's first visible one. A tile that a row does not see leaves the row's state as it is, to the bit;
//! positions before its window are taken out like those beyond the query. With a soft cap a score s becomes
//! cap * tanh(s / cap) before anything else is done with it.

mod float;
mod int4;
mod int8;
mod states;
mod window;

pub use self::states::state_size;
pub use self::window::Window;

use self::float::{Bf16, F16, Float};
use self::int4::Int4;
use self::int8::Int8;
use self::states::{Parts, States, merge_rows};
use super::vector::{ByteLanes, LANES, simd_entry};
use crate::isa::Isa;
use crate::kv_pool::{KvDtype, KvView, MAX_BLOCK_SIZE, QUAD};

/// Positions after which partial states are merged; a multiple of every block size.
pub const SEGMENT_SIZE: usize = 512;
/// Rows that one call of [`attend`] takes at least; more if one KV head has more query heads.
pub const ITEM_ROWS: usize = 48;

/// One piece of attention: some query rows of one chunk whose positions lie in one block, one KV head, some segments.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    /// Blocks of the sequence, covering every position up to the last query.
    pub block_table: &'a [u32],
    /// Layer whose K and V are read.
    pub layer: usize,
    /// KV head, below G.
    pub kv_head: usize,
    /// Query heads of this KV head, H / G.
    pub heads_per_kv_head: usize,
    /// Position of the first query row; all rows lie in its block.
    pub first_position: usize,
    pub num_rows: usize,
    /// Factor of the scores, usually 1 / sqrt(D).
    pub scale: f32,
    /// Keeps scores between this and its negative.
    pub soft_cap: Option<f32>,
    /// What the rows see. Their first segments are the same: [`Window::rows_together`].
    pub window: Window,
    /// First segment to compute.
    pub first_segment: usize,
    /// One past the last segment to compute.
    pub end_segment: usize,
    /// Block and KV head that this thread will probably read next: asked for during the last block.
    pub next: Option<(u32, usize)>,
}

impl Item<'_> {
    /// Block and KV head that are read after the `block`-th block of the sequence, or that one again.
    fn after(&self, block: usize, block_size: usize) -> (u32, usize) {
        let end = (self.end_segment * SEGMENT_SIZE / block_size).min(self.first_position / block_size + 1);
        if block + 1 < end {
            (self.block_table[block + 1], self.kv_head)
        } else {
            self.next.unwrap_or((self.block_table[block], self.kv_head))
        }
    }

    /// Whether it has a window or a soft cap.
    fn is_local(&self) -> bool {
        self.window != Window::NONE || self.soft_cap.is_some()
    }

    /// The first position that inner row `row` sees.
    #[inline(always)]
    fn first_visible(&self, row: usize) -> usize {
        self.window.first_visible(self.first_position + row / self.heads_per_kv_head)
    }

    /// Rows of the inner kernels: each query row once per query head of the KV head.
    fn rows(&self) -> usize {
        self.num_rows * self.heads_per_kv_head
    }

    /// The query `[D]` of inner row `row`.
    ///
    /// # Safety
    /// `queries` are the item's, each `[H * D]`.
    #[inline(always)]
    unsafe fn query<'q>(&self, row: usize, head_size: usize, queries: Rows<*const f32>) -> &'q [f32] {
        let (row, head) = (row / self.heads_per_kv_head, row % self.heads_per_kv_head);
        let start = (self.kv_head * self.heads_per_kv_head + head) * head_size;
        // SAFETY: inside the row by the contract.
        unsafe { std::slice::from_raw_parts(queries.pointer.add(row * queries.stride + start), head_size) }
    }
}

/// Segments that hold the positions up to and including `position`.
pub fn num_segments(position: usize) -> usize {
    position / SEGMENT_SIZE + 1
}

/// Begins at a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Aligned<T>(T);

/// One thread's working memory, made once for the largest item.
#[derive(Debug)]
pub struct Scratch {
    /// Scaled queries in f32, per group of rows `[D][rows of the group]`.
    queries: Vec<f32>,
    /// Queries in int8, and what belongs to them.
    bytes: int8::Queries,
    /// Scales of a tile of int8 or int4.
    scales: int8::Scales,
    /// A tile of int4 as one of int8.
    unpacked: int4::Unpacked,
    turning: int4::Turning,
    segment: States,
    total: States,
    /// Scores, then probabilities, of one group and tile.
    tile: Box<Aligned<[[f32; MAX_BLOCK_SIZE]; float::GROUP_ROWS]>>,
    /// Probabilities in bytes, of one group and tile.
    weights: [int8::Weights; int8::GROUP_ROWS],
}

impl Scratch {
    /// For heads of `head_size` elements and `heads_per_kv_head` query heads of a KV head.
    pub fn new(head_size: usize, heads_per_kv_head: usize) -> Self {
        let rows = ITEM_ROWS.max(heads_per_kv_head);
        let padded = head_size.next_multiple_of(LANES);
        Self {
            queries: vec![0.0; rows * head_size],
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

/// What differs between the dtypes of K and V.
///
/// # Safety
/// Of all functions: the CPU has the instruction set of `L`; pointers hold what the item says, and nobody writes it.
trait Scheme<L> {
    /// Copies the item's queries into the scratch, in the layout of the score kernel.
    unsafe fn pack_queries(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    );
    /// Begins the states of a segment, which `scratch.segment` holds already.
    unsafe fn begin_segment(rows: usize, scratch: &mut Scratch);
    /// Takes the `block`-th block of the sequence into `scratch.segment`.
    unsafe fn attend_block(kv: &KvView<'_>, item: &Item<'_>, block: usize, scratch: &mut Scratch);
    /// Completes the states of a segment.
    unsafe fn end_segment(rows: usize, scratch: &mut Scratch);
    /// The exponential by which m is understood.
    unsafe fn power(x: L) -> L;
    /// Writes the result `[D]` of a row whose total is `o` `[D padded]` and `sum`; may change `o`.
    unsafe fn finish_row(o: *mut f32, sum: f32, head_size: usize, out: *mut f32);
}

/// Query rows per item: as many as the scratch holds.
pub fn rows_per_item(heads_per_kv_head: usize) -> usize {
    (ITEM_ROWS / heads_per_kv_head).max(1)
}

/// Computes one segment's states into `scratch.segment`.
#[inline(always)]
unsafe fn attend_segment<L: ByteLanes, K: Scheme<L>>(
    kv: &KvView<'_>,
    item: &Item<'_>,
    segment: usize,
    scratch: &mut Scratch,
) {
    let g = kv.geometry();
    scratch.segment.clear(item.rows(), g.padded_head_size());
    let last_block = item.first_position / g.block_size;
    let blocks_per_segment = SEGMENT_SIZE / g.block_size;
    let first_of_segment = segment * blocks_per_segment;
    let first_block = first_of_segment.max(item.first_visible(0) / g.block_size);
    // SAFETY: by the caller's contract.
    unsafe {
        K::begin_segment(item.rows(), scratch);
        for block in first_block..(first_of_segment + blocks_per_segment).min(last_block + 1) {
            K::attend_block(kv, item, block, scratch);
        }
        K::end_segment(item.rows(), scratch);
    }
}

/// Rows of a buffer: row i begins at `pointer + i * stride`.
#[derive(Clone, Copy)]
pub struct Rows<P> {
    /// Row 0.
    pub pointer: P,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// Where [`attend`] puts an item's result.
#[derive(Clone, Copy)]
pub enum Target {
    /// All segments are computed: finished rows `[H * D]`, of which this KV head's part is written.
    Rows(Rows<*mut f32>),
    /// The state of each computed segment, for [`finish_states`]: m and l of each row, then o `[row][D padded]`.
    States(*mut f32),
}

/// [`attend`] for one scheme: a function of its own for each, since a larger one would not be inlined into whole.
macro_rules! scheme_entry {
    ($name:ident, $generic:ident, $scheme:ty) => {
        #[inline(always)]
        unsafe fn $generic<L: ByteLanes>(
            kv: &KvView<'_>,
            item: &Item<'_>,
            queries: Rows<*const f32>,
            scratch: &mut Scratch,
            target: Target,
        ) {
            // SAFETY: by the caller's contract.
            unsafe { attend_scheme::<L, $scheme>(kv, item, queries, scratch, target) }
        }

        simd_entry! {
            /// # Safety
            /// As [`attend`].
            unsafe fn $name = $generic(
                kv: &KvView<'_>,
                item: &Item<'_>,
                queries: Rows<*const f32>,
                scratch: &mut Scratch,
                target: Target,
            );
        }
    };
}

scheme_entry!(attend_int8, attend_int8_generic, Int8<false>);
scheme_entry!(attend_int4, attend_int4_generic, Int4<false>);
scheme_entry!(attend_f16, attend_f16_generic, Float<F16, false>);
scheme_entry!(attend_bf16, attend_bf16_generic, Float<Bf16, false>);
// Windows and soft caps cost others up to 5 % if they are in the same functions.
scheme_entry!(attend_int8_local, attend_int8_local_generic, Int8<true>);
scheme_entry!(attend_int4_local, attend_int4_local_generic, Int4<true>);
scheme_entry!(attend_f16_local, attend_f16_local_generic, Float<F16, true>);
scheme_entry!(attend_bf16_local, attend_bf16_local_generic, Float<Bf16, true>);

#[inline(always)]
unsafe fn attend_scheme<L: ByteLanes, K: Scheme<L>>(
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    let g = *kv.geometry();
    let (rows, stride) = (item.rows(), g.padded_head_size());
    assert!(rows * stride <= scratch.total.out.len() && rows * g.head_size <= scratch.queries.len());
    // SAFETY: the caller's rows hold all heads.
    unsafe { K::pack_queries(kv, item, queries, scratch) };
    for segment in item.first_segment..item.end_segment {
        // SAFETY: nobody writes the slots that the item sees.
        unsafe { attend_segment::<L, K>(kv, item, segment, scratch) };
        let index = segment - item.first_segment;
        match target {
            Target::Rows(_) if index == 0 => std::mem::swap(&mut scratch.segment, &mut scratch.total),
            Target::Rows(_) => {
                // SAFETY: lane arithmetic only.
                unsafe { merge_rows::<L, K>(&mut scratch.total, scratch.segment.parts(rows, stride)) };
            }
            Target::States(states) => {
                // SAFETY: the caller's states hold every row of every segment of the item.
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
        // SAFETY: the caller's rows hold this KV head's part.
        unsafe { finish_rows::<L, K>(item, g.head_size, &mut scratch.total, out) };
    }
}

#[inline(always)]
unsafe fn finish_states_generic<L: ByteLanes>(
    dtype: KvDtype,
    head_size: usize,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    // SAFETY: by the caller's contract.
    unsafe {
        match dtype {
            KvDtype::Int8 => finish_scheme::<L, Int8<false>>(head_size, item, states, scratch, out),
            KvDtype::Int4 => finish_scheme::<L, Int4<false>>(head_size, item, states, scratch, out),
            KvDtype::F16 => finish_scheme::<L, Float<F16, false>>(head_size, item, states, scratch, out),
            KvDtype::Bf16 => finish_scheme::<L, Float<Bf16, false>>(head_size, item, states, scratch, out),
        }
    }
}

#[inline(always)]
unsafe fn finish_scheme<L: ByteLanes, K: Scheme<L>>(
    head_size: usize,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    let (rows, stride) = (item.rows(), head_size.next_multiple_of(LANES));
    for index in 0..item.end_segment - item.first_segment {
        // SAFETY: the caller's states hold every row of every segment of the item.
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
            // SAFETY: lane arithmetic only.
            unsafe { merge_rows::<L, K>(&mut scratch.total, parts) };
        }
    }
    // SAFETY: the caller's rows hold this KV head's part.
    unsafe { finish_rows::<L, K>(item, head_size, &mut scratch.total, out) };
}

/// Writes the result of every row of an item to its place.
#[inline(always)]
unsafe fn finish_rows<L: ByteLanes, K: Scheme<L>>(
    item: &Item<'_>,
    head_size: usize,
    total: &mut States,
    out: Rows<*mut f32>,
) {
    let stride = head_size.next_multiple_of(LANES);
    for r in 0..item.rows() {
        let (row, head) = (r / item.heads_per_kv_head, r % item.heads_per_kv_head);
        let head = item.kv_head * item.heads_per_kv_head + head;
        let o = &mut total.out[r * stride..(r + 1) * stride];
        // SAFETY: the caller's row holds the head; `o` holds the head size rounded up to whole vectors.
        unsafe {
            let destination = out.pointer.add(row * out.stride + head * head_size);
            K::finish_row(o.as_mut_ptr(), total.sum[r], head_size, destination);
        }
    }
}

/// Attention of one item, as the module says.
///
/// `queries`: rows `[H * D]`, row 0 the item's first; `scratch` made for this head size and group. Panics if the item
/// names blocks, layers or heads that are not there, or more rows than [`rows_per_item`].
///
/// # Safety
/// `queries` and `target` point to all rows of the item, which nobody else writes (nor reads, for `target`) meanwhile;
/// nobody writes K and V of the item's layer and visible positions.
pub unsafe fn attend(
    isa: Isa,
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    // SAFETY: by the caller's contract.
    unsafe {
        match (kv.geometry().dtype, item.is_local()) {
            (KvDtype::Int8, false) => attend_int8(isa, kv, item, queries, scratch, target),
            (KvDtype::Int4, false) => attend_int4(isa, kv, item, queries, scratch, target),
            (KvDtype::F16, false) => attend_f16(isa, kv, item, queries, scratch, target),
            (KvDtype::Bf16, false) => attend_bf16(isa, kv, item, queries, scratch, target),
            (KvDtype::Int8, true) => attend_int8_local(isa, kv, item, queries, scratch, target),
            (KvDtype::Int4, true) => attend_int4_local(isa, kv, item, queries, scratch, target),
            (KvDtype::F16, true) => attend_f16_local(isa, kv, item, queries, scratch, target),
            (KvDtype::Bf16, true) => attend_bf16_local(isa, kv, item, queries, scratch, target),
        }
    }
}

simd_entry! {
    /// Merges the states that [`attend`] left for an item (here with all its segments) in order, and writes the rows.
    ///
    /// # Safety
    /// `states` holds the state of every segment and row of the item; `out` as `target` of [`attend`].
    pub unsafe fn finish_states = finish_states_generic(
        dtype: KvDtype,
        head_size: usize,
        item: &Item<'_>,
        states: *const f32,
        scratch: &mut Scratch,
        out: Rows<*mut f32>,
    );
}
