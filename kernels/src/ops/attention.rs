//! Causal attention over blocks: online softmax, arXiv:1805.02867 (algorithm 3), over tiles at absolute positions.
//!
//! # One order of sums
//! The bits of one query's result depend on its position and on K and V up to it, on nothing else. A tile is a block.
//! Per query and head, for each tile in order of position:
//!
//! 1. scores: s[b] = sum over d of (q[d] * scale) * K[d][b], one fused multiply-add after the other in order of d;
//! 2. m' = max(m, max of s), c = exp(m - m'), p[b] = exp(s[b] - m'), l = l * c + (p summed by lanes, then the lane tree);
//! 3. o[d] = o[d] * c, then o[d] += p[b] * V[b][d] in order of b.
//!
//! After each [`SEGMENT_SIZE`] positions the state (m, l, o) is merged into the total and begun anew. Segments exist so
//! that several threads can share one long sequence: they may be computed anywhere and are merged in order.
//!
//! Positions beyond the query are taken out by selection, before anything is computed from them: a stale slot may hold
//! anything, NaN too.
//!
//! # Cost
//! 4 * D flops per query, head and position. All query heads of a KV head and several query rows go together, up to
//! [`GROUP_ROWS`] rows, so one load (and widening from f16) of K or V serves up to 12 multiply-adds.

use super::exp::exp;
use super::vector::{LANES, Lanes, simd_entry};
use crate::kv_pool::{KvView, MAX_BLOCK_SIZE};

/// Positions after which partial states are merged; a multiple of every block size.
pub const SEGMENT_SIZE: usize = 256;
/// Most rows (query rows times query heads of one KV head) that share loads: what 32 vector registers hold.
pub const GROUP_ROWS: usize = 12;
/// Rows that one call of [`attend`] takes at least; more if one KV head has more query heads.
pub const ITEM_ROWS: usize = 96;

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
    /// Query rows.
    pub num_rows: usize,
    /// Factor of the scores, usually 1 / sqrt(D).
    pub scale: f32,
    /// First segment to compute.
    pub first_segment: usize,
    /// One past the last segment to compute.
    pub end_segment: usize,
}

impl Item<'_> {
    /// Rows of the inner kernels.
    fn rows(&self) -> usize {
        self.num_rows * self.heads_per_kv_head
    }
}

/// Segments that hold the positions up to and including `position`.
pub fn num_segments(position: usize) -> usize {
    position / SEGMENT_SIZE + 1
}

/// Number of f32 of one row's state: o, m and l.
pub fn state_size(padded_head_size: usize) -> usize {
    padded_head_size + 2
}

/// Running states of some rows: m, l, and o `[row][D padded]`.
#[derive(Debug, Default)]
struct States {
    max: Vec<f32>,
    sum: Vec<f32>,
    out: Vec<f32>,
}

impl States {
    fn new(rows: usize, padded_head_size: usize) -> Self {
        Self { max: vec![0.0; rows], sum: vec![0.0; rows], out: vec![0.0; rows * padded_head_size] }
    }

    fn clear(&mut self, rows: usize, padded_head_size: usize) {
        self.max[..rows].fill(f32::NEG_INFINITY);
        self.sum[..rows].fill(0.0);
        self.out[..rows * padded_head_size].fill(0.0);
    }
}

/// One thread's working memory, made once for the largest item.
#[derive(Debug)]
pub struct Scratch {
    /// Scaled queries, per group of rows `[D][rows of the group]`.
    queries: Vec<f32>,
    segment: States,
    total: States,
    /// Scores, then probabilities, of one group and tile.
    tile: Box<[[f32; MAX_BLOCK_SIZE]; GROUP_ROWS]>,
}

impl Scratch {
    /// For heads of `head_size` elements and `heads_per_kv_head` query heads of a KV head.
    pub fn new(head_size: usize, heads_per_kv_head: usize) -> Self {
        let rows = ITEM_ROWS.max(heads_per_kv_head);
        let padded = head_size.next_multiple_of(LANES);
        Self {
            queries: vec![0.0; rows * head_size],
            segment: States::new(rows, padded),
            total: States::new(rows, padded),
            tile: Box::new([[0.0; MAX_BLOCK_SIZE]; GROUP_ROWS]),
        }
    }
}

/// Query rows per item: as many as the scratch holds.
pub fn rows_per_item(heads_per_kv_head: usize) -> usize {
    (ITEM_ROWS / heads_per_kv_head).max(1)
}

/// Sizes of the groups into which rows are cut, largest first; each has its own instantiation of the kernels.
const GROUP_SIZES: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

fn group_size(rows_left: usize) -> usize {
    GROUP_SIZES.into_iter().find(|size| *size <= rows_left).unwrap_or(1)
}

/// Copies the item's queries, scaled, into the layout of the score kernel. `query(row)` is that row's `[H * D]`.
fn pack_queries<'q>(item: &Item<'_>, head_size: usize, query: impl Fn(usize) -> &'q [f32], out: &mut [f32]) {
    let rows = item.rows();
    let mut first = 0;
    while first < rows {
        let group = group_size(rows - first);
        let packed = &mut out[first * head_size..(first + group) * head_size];
        for r in 0..group {
            let (row, head) = ((first + r) / item.heads_per_kv_head, (first + r) % item.heads_per_kv_head);
            let start = (item.kv_head * item.heads_per_kv_head + head) * head_size;
            for (d, q) in query(row)[start..start + head_size].iter().enumerate() {
                packed[d * group + r] = q * item.scale;
            }
        }
        first += group;
    }
}

/// Scores of `R` rows and `N` vectors of positions. q: `[D][R]`; k: `[D][B]` at the first position; out: a tile's rows.
#[inline(always)]
unsafe fn scores<L: Lanes, const R: usize, const N: usize>(
    q: *const f32,
    k: *const u16,
    head_size: usize,
    block_size: usize,
    out: *mut [f32; MAX_BLOCK_SIZE],
) {
    // SAFETY: the caller gives R * D queries, N * LANES positions of a block and R rows of a tile.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        for d in 0..head_size {
            let mut keys = [L::splat(0.0); N];
            for (j, key) in keys.iter_mut().enumerate() {
                *key = L::load_f16(k.add(d * block_size + j * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let query = L::splat(*q.add(d * R + r));
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = query.fma(key, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                sum.store(out.add(r).cast::<f32>().add(j * LANES));
            }
        }
    }
}

/// o += p[b] * V[b] for b in `begin..end`, `R` rows and `N` vectors of elements. p: a tile's rows; v: `[B][stride]`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const R: usize, const N: usize>(
    p: *const [f32; MAX_BLOCK_SIZE],
    v: *const u16,
    begin: usize,
    end: usize,
    stride: usize,
    o: *mut f32,
) {
    // SAFETY: the caller gives R rows of a tile and of o, and N * LANES elements of the values begin..end.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = L::load(o.add(r * stride + j * LANES));
            }
        }
        for b in begin..end {
            let mut values = [L::splat(0.0); N];
            for (j, value) in values.iter_mut().enumerate() {
                *value = L::load_f16(v.add(b * stride + j * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let probability = L::splat(*p.add(r).cast::<f32>().add(b));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = probability.fma(value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                sum.store(o.add(r * stride + j * LANES));
            }
        }
    }
}

/// [`accumulate`] over all elements of the head, in pieces that fit the registers.
#[inline(always)]
unsafe fn accumulate_head<L: Lanes, const R: usize>(
    p: *const [f32; MAX_BLOCK_SIZE],
    v: *const u16,
    begin: usize,
    end: usize,
    stride: usize,
    o: *mut f32,
) {
    let mut d = 0;
    // SAFETY: as `accumulate`; d + N * LANES <= stride in each branch.
    unsafe {
        if L::MANY_REGISTERS && R <= 6 {
            while d + 4 * LANES <= stride {
                accumulate::<L, R, 4>(p, v.add(d), begin, end, stride, o.add(d));
                d += 4 * LANES;
            }
        }
        if L::MANY_REGISTERS || R <= 3 {
            while d + 2 * LANES <= stride {
                accumulate::<L, R, 2>(p, v.add(d), begin, end, stride, o.add(d));
                d += 2 * LANES;
            }
        }
        while d < stride {
            accumulate::<L, R, 1>(p, v.add(d), begin, end, stride, o.add(d));
            d += LANES;
        }
    }
}

/// What all groups of one tile have in common.
#[derive(Clone, Copy)]
struct Tile {
    keys: *const u16,
    values: *const u16,
    /// Position of the tile's first slot.
    start: usize,
    head_size: usize,
    stride: usize,
    block_size: usize,
}

/// Rows of one group: pointers to their part of the state.
#[derive(Clone, Copy)]
struct Group {
    queries: *const f32,
    max: *mut f32,
    sum: *mut f32,
    out: *mut f32,
    /// Index of the first row in the item.
    first: usize,
    heads_per_kv_head: usize,
    first_position: usize,
}

impl Group {
    /// Positions of the tile that row `r` of the group may see, at least 1.
    #[inline(always)]
    fn num_visible(&self, tile: &Tile, r: usize) -> usize {
        let position = self.first_position + (self.first + r) / self.heads_per_kv_head;
        (position + 1 - tile.start).min(tile.block_size)
    }
}

/// Step 2 of the module's order for one row: turns scores into probabilities. Returns the row's new maximum.
///
/// `old_max` goes in; the sum of the probabilities comes out in `tile_sum`.
#[inline(always)]
unsafe fn softmax_row<L: Lanes>(row: *mut f32, num_visible: usize, old_max: f32, tile_sum: &mut f32) -> f32 {
    let lowest = f32::NEG_INFINITY;
    let num_vectors = num_visible.div_ceil(LANES);
    // SAFETY: the row is MAX_BLOCK_SIZE long, and num_visible is at most that.
    unsafe {
        let mut tile_max = L::splat(lowest);
        for j in 0..num_vectors {
            let visible = (num_visible - j * LANES).min(LANES);
            let s = L::select_first(visible, L::load(row.add(j * LANES)), L::splat(lowest));
            s.store(row.add(j * LANES));
            tile_max = tile_max.max(s);
        }
        let tile_max = tile_max.max_lane();
        let new_max = if tile_max > old_max { tile_max } else { old_max };
        let mut sum = L::splat(0.0);
        for j in 0..num_vectors {
            let p = exp(L::load(row.add(j * LANES)).sub(L::splat(new_max)));
            p.store(row.add(j * LANES));
            sum = sum.add(p);
        }
        *tile_sum = sum.sum();
        new_max
    }
}

/// One tile for one group of `R` rows.
#[inline(always)]
unsafe fn attend_tile<L: Lanes, const R: usize>(
    tile: &Tile,
    group: &Group,
    p: &mut [[f32; MAX_BLOCK_SIZE]; GROUP_ROWS],
) {
    let p = p.as_mut_ptr();
    let fewest = group.num_visible(tile, 0);
    let most = group.num_visible(tile, R - 1);
    // SAFETY: the state pointers hold R rows, the tile's pointers one block, p holds R rows of a block.
    unsafe {
        let mut b = 0;
        while b < most {
            let out = p.cast::<f32>().add(b).cast::<[f32; MAX_BLOCK_SIZE]>();
            let keys = tile.keys.add(b);
            if L::MANY_REGISTERS && b + 2 * LANES <= tile.block_size {
                scores::<L, R, 2>(group.queries, keys, tile.head_size, tile.block_size, out);
                b += 2 * LANES;
            } else {
                scores::<L, R, 1>(group.queries, keys, tile.head_size, tile.block_size, out);
                b += LANES;
            }
        }
        let (mut tile_sums, mut corrections) = ([0.0f32; LANES], [0.0f32; LANES]);
        for r in 0..R {
            let visible = if fewest == tile.block_size { fewest } else { group.num_visible(tile, r) };
            let old_max = *group.max.add(r);
            let new_max = softmax_row::<L>(p.add(r).cast(), visible, old_max, &mut tile_sums[r]);
            corrections[r] = old_max - new_max;
            *group.max.add(r) = new_max;
        }
        exp(L::load(corrections.as_ptr())).store(corrections.as_mut_ptr());
        for r in 0..R {
            let correction = L::splat(corrections[r]);
            let sum = group.sum.add(r);
            *sum = (*sum).mul_add(corrections[r], tile_sums[r]);
            // A factor of exactly 1 leaves every bit.
            if corrections[r] != 1.0 {
                let o = group.out.add(r * tile.stride);
                for d in (0..tile.stride).step_by(LANES) {
                    L::load(o.add(d)).mul(correction).store(o.add(d));
                }
            }
        }
        accumulate_head::<L, R>(p, tile.values, 0, fewest, tile.stride, group.out);
        if most > fewest {
            for r in 0..R {
                let visible = group.num_visible(tile, r);
                let o = group.out.add(r * tile.stride);
                accumulate_head::<L, 1>(p.add(r), tile.values, fewest, visible, tile.stride, o);
            }
        }
    }
}

/// All groups of an item for one tile.
#[inline(always)]
unsafe fn attend_groups<L: Lanes>(tile: &Tile, item: &Item<'_>, scratch: &mut Scratch) {
    let rows = item.rows();
    let mut first = 0;
    while first < rows {
        let size = group_size(rows - first);
        let states = &mut scratch.segment;
        let group = Group {
            queries: scratch.queries[first * tile.head_size..].as_ptr(),
            max: states.max[first..].as_mut_ptr(),
            sum: states.sum[first..].as_mut_ptr(),
            out: states.out[first * tile.stride..].as_mut_ptr(),
            first,
            heads_per_kv_head: item.heads_per_kv_head,
            first_position: item.first_position,
        };
        let p = &mut *scratch.tile;
        // SAFETY: the states hold first + size rows.
        unsafe {
            match size {
                12 => attend_tile::<L, 12>(tile, &group, p),
                8 => attend_tile::<L, 8>(tile, &group, p),
                6 => attend_tile::<L, 6>(tile, &group, p),
                4 => attend_tile::<L, 4>(tile, &group, p),
                3 => attend_tile::<L, 3>(tile, &group, p),
                2 => attend_tile::<L, 2>(tile, &group, p),
                _ => attend_tile::<L, 1>(tile, &group, p),
            }
        }
        first += size;
    }
}

/// Computes one segment's states into `scratch.segment`.
#[inline(always)]
unsafe fn attend_segment<L: Lanes>(kv: &KvView<'_>, item: &Item<'_>, segment: usize, scratch: &mut Scratch) {
    let g = *kv.geometry();
    let stride = g.padded_head_size();
    scratch.segment.clear(item.rows(), stride);
    let last_block = item.first_position / g.block_size;
    let blocks_per_segment = SEGMENT_SIZE / g.block_size;
    let first_block = segment * blocks_per_segment;
    for block in first_block..(first_block + blocks_per_segment).min(last_block + 1) {
        let block_id = item.block_table[block];
        let tile = Tile {
            keys: kv.keys(item.layer, block_id, item.kv_head),
            values: kv.values(item.layer, block_id, item.kv_head),
            start: block * g.block_size,
            head_size: g.head_size,
            stride,
            block_size: g.block_size,
        };
        // SAFETY: the tile points at one block of the pool, which nobody writes now.
        unsafe { attend_groups::<L>(&tile, item, scratch) };
    }
}

/// Merges a row's state into the total of row `r`, which comes first in order.
#[inline(always)]
unsafe fn merge_row<L: Lanes>(total: &mut States, r: usize, max: f32, sum: f32, out: &[f32]) {
    let old_max = total.max[r];
    let new_max = if max > old_max { max } else { old_max };
    let mut factors = [0.0f32; LANES];
    (factors[0], factors[1]) = (old_max - new_max, max - new_max);
    let into = &mut total.out[r * out.len()..(r + 1) * out.len()];
    // SAFETY: both rows have the same whole number of vectors.
    unsafe {
        exp(L::load(factors.as_ptr())).store(factors.as_mut_ptr());
        total.max[r] = new_max;
        total.sum[r] = total.sum[r].mul_add(factors[0], sum * factors[1]);
        let (a, b) = (L::splat(factors[0]), L::splat(factors[1]));
        for d in (0..out.len()).step_by(LANES) {
            let o = into.as_mut_ptr().add(d);
            L::load(o).fma(a, L::load(out.as_ptr().add(d)).mul(b)).store(o);
        }
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
    /// The state of each computed segment, `[segment][row][state_size]`, for [`finish_states`].
    States(*mut f32),
}

#[inline(always)]
unsafe fn attend_generic<L: Lanes>(
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    let g = *kv.geometry();
    let (rows, stride) = (item.rows(), g.padded_head_size());
    assert!(rows * stride <= scratch.total.out.len() && rows * g.head_size <= scratch.queries.len());
    let width = (item.kv_head + 1) * item.heads_per_kv_head * g.head_size;
    // SAFETY: the caller's rows hold the heads up to this KV head's last one.
    let query = |row| unsafe { std::slice::from_raw_parts(queries.pointer.add(row * queries.stride), width) };
    pack_queries(item, g.head_size, query, &mut scratch.queries);
    for segment in item.first_segment..item.end_segment {
        // SAFETY: nobody writes the slots that the item sees.
        unsafe { attend_segment::<L>(kv, item, segment, scratch) };
        let index = segment - item.first_segment;
        match target {
            Target::Rows(_) if index == 0 => std::mem::swap(&mut scratch.segment, &mut scratch.total),
            Target::Rows(_) => {
                for r in 0..rows {
                    let part = &scratch.segment;
                    let out = &part.out[r * stride..(r + 1) * stride];
                    // SAFETY: lane arithmetic only.
                    unsafe { merge_row::<L>(&mut scratch.total, r, part.max[r], part.sum[r], out) };
                }
            }
            Target::States(states) => {
                // SAFETY: the caller's states hold every row of every segment of the item.
                let states = unsafe {
                    let size = rows * state_size(stride);
                    std::slice::from_raw_parts_mut(states.add(index * size), size)
                };
                for (r, state) in states.chunks_exact_mut(state_size(stride)).enumerate() {
                    (state[0], state[1]) = (scratch.segment.max[r], scratch.segment.sum[r]);
                    state[2..].copy_from_slice(&scratch.segment.out[r * stride..(r + 1) * stride]);
                }
            }
        }
    }
    if let Target::Rows(out) = target {
        // SAFETY: the caller's rows hold this KV head's part.
        unsafe { finish_rows::<L>(item, g.head_size, &scratch.total, out) };
    }
}

#[inline(always)]
unsafe fn finish_states_generic<L: Lanes>(
    head_size: usize,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    let (rows, stride) = (item.rows(), head_size.next_multiple_of(LANES));
    for index in 0..item.end_segment - item.first_segment {
        for r in 0..rows {
            // SAFETY: the caller's states hold every row of every segment of the item.
            let state = unsafe {
                let start = (index * rows + r) * state_size(stride);
                std::slice::from_raw_parts(states.add(start), state_size(stride))
            };
            if index == 0 {
                (scratch.total.max[r], scratch.total.sum[r]) = (state[0], state[1]);
                scratch.total.out[r * stride..(r + 1) * stride].copy_from_slice(&state[2..]);
            } else {
                // SAFETY: lane arithmetic only.
                unsafe { merge_row::<L>(&mut scratch.total, r, state[0], state[1], &state[2..]) };
            }
        }
    }
    // SAFETY: the caller's rows hold this KV head's part.
    unsafe { finish_rows::<L>(item, head_size, &scratch.total, out) };
}

/// Writes o / l of every row of an item to its place.
#[inline(always)]
unsafe fn finish_rows<L: Lanes>(item: &Item<'_>, head_size: usize, total: &States, out: Rows<*mut f32>) {
    let stride = head_size.next_multiple_of(LANES);
    for r in 0..item.rows() {
        let (row, head) = (r / item.heads_per_kv_head, r % item.heads_per_kv_head);
        let head = item.kv_head * item.heads_per_kv_head + head;
        let o = &total.out[r * stride..(r + 1) * stride];
        // SAFETY: the caller's row holds the head; `o` holds the head size rounded up to whole vectors.
        unsafe {
            let destination = out.pointer.add(row * out.stride + head * head_size);
            for d in (0..head_size).step_by(LANES) {
                let lanes = (head_size - d).min(LANES);
                L::load(o.as_ptr().add(d)).div(L::splat(total.sum[r])).store_first(destination.add(d), lanes);
            }
        }
    }
}

simd_entry! {
    /// Attention of one item, as the module says.
    ///
    /// `queries`: rows `[H * D]`, row 0 the item's first; `scratch` made for this head size and group. Panics if the
    /// item names blocks, layers or heads that are not there, or more rows than [`rows_per_item`].
    ///
    /// # Safety
    /// `queries` and `target` point to all rows of the item, which nobody else writes (nor reads, for `target`)
    /// meanwhile; nobody writes K and V of the item's layer and visible positions.
    pub unsafe fn attend = attend_generic(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
        target: Target,
    );
}

simd_entry! {
    /// Merges the states that [`attend`] left for an item (here with all its segments) in order, and writes the rows.
    ///
    /// # Safety
    /// `states` holds the state of every segment and row of the item; `out` as `target` of [`attend`].
    pub unsafe fn finish_states = finish_states_generic(
        head_size: usize,
        item: &Item<'_>,
        states: *const f32,
        scratch: &mut Scratch,
        out: Rows<*mut f32>,
    );
}

#[cfg(test)]
mod tests;
