//! Attention over K and V as 16-bit floats, computed in f32.
//!
//! For each query, head and tile:
//!
//! 1. The scores are s[b] = sum over d of (q[d] * scale) * K[d][b], with fused multiply-adds in order of d.
//! 2. m' = max(m, max of s), c = exp(m - m'), p[b] = exp(s[b] - m'), and l = l * c + sum of p. The sum adds vectors
//!    first, then lanes by the tree of [`Lanes::sum`].
//! 3. o[d] = o[d] * c, then o[d] += p[b] * V[b][d] in order of b.
//!
//! This takes 4 * D flops per query, head and position. Up to [`GROUP_ROWS`] rows, of several queries and all query
//! heads of a KV head, are computed together, so each load (and widening) of K or V serves up to 12 multiply-adds.

use std::marker::PhantomData;

use super::row_scores::tile_scores;
use super::{Item, Rows, Scheme, Scratch, Window};
use trunkline_kernels_core::kv_pool::{KvView, MAX_BLOCK_SIZE};
use trunkline_kernels_core::ops::exp::exp;
use trunkline_kernels_core::ops::tanh::soft_cap;
use trunkline_kernels_core::pack::float::FloatFormat;
use trunkline_kernels_core::vector::{ByteLanes, LANES, Lanes};

/// The most rows (query rows times query heads of a KV head) that share loads, limited by 32 vector registers.
pub(super) const GROUP_ROWS: usize = 12;
/// The sizes of groups of rows, largest first. Each size has its own instantiation of the kernels.
const GROUP_SIZES: [usize; 5] = [12, 6, 3, 2, 1];

pub(super) fn group_size<L: Lanes>(rows_left: usize) -> usize {
    let most = match (L::IS_WIDE, L::IS_VECTOR) {
        (true, _) => GROUP_ROWS,
        (_, true) => 6,
        _ => 1,
    };
    GROUP_SIZES.into_iter().find(|size| *size <= rows_left.min(most)).unwrap_or(1)
}

/// The scheme for K and V with elements `E`. `LOCAL` adds support for windows and soft caps.
pub struct Float<E, const LOCAL: bool>(PhantomData<E>);

impl<E: FloatFormat, const LOCAL: bool> Scheme for Float<E, LOCAL> {
    #[inline(always)]
    unsafe fn pack_queries<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    ) {
        let head_size = kv.geometry().head_size;
        let rows = item.rows();
        let mut first = 0;
        while first < rows {
            let group = group_size::<L>(rows - first);
            let packed = &mut scratch.queries[first * head_size..(first + group) * head_size];
            for r in 0..group {
                // SAFETY: the caller guarantees the conditions of the callee.
                let query = unsafe { item.query(first + r, head_size, queries) };
                for (d, q) in query.iter().enumerate() {
                    packed[d * group + r] = q * item.scale;
                }
            }
            first += group;
        }
    }

    #[inline(always)]
    unsafe fn begin_segment(_rows: usize, _scratch: &mut Scratch) {}

    #[inline(always)]
    unsafe fn attend_block<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        block: usize,
        scratch: &mut Scratch,
    ) {
        let (g, block_id) = (kv.geometry(), item.block_table[block]);
        let tile = Tile {
            keys: kv.keys(item.layer, block_id, item.kv_head).cast(),
            values: kv.values(item.layer, block_id, item.kv_head).cast(),
            start: block * g.block_size,
            query_stride: g.head_size,
            value_stride: g.padded_head_size(),
            stride: g.padded_head_size(),
            block_size: g.block_size,
        };
        // SAFETY: the tile points to a block of the pool, which is not written during the call.
        unsafe { attend_groups::<L, E, LOCAL, false>(&tile, item, scratch) };
    }

    #[inline(always)]
    unsafe fn end_segment<L: ByteLanes>(_rows: usize, _scratch: &mut Scratch) {}

    const SCORE_UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn power<L: ByteLanes>(x: L) -> L {
        // SAFETY: the caller guarantees the conditions of the callee.
        unsafe { exp(x) }
    }

    #[inline(always)]
    unsafe fn finish_row<L: ByteLanes>(o: *mut f32, sum: f32, value_size: usize, out: *mut f32) {
        // SAFETY: the conditions are the same.
        unsafe { divide_row::<L>(o, sum, value_size, out) };
    }
}

/// Divides the sums of a row by the sum of its probabilities.
#[inline(always)]
pub(super) unsafe fn divide_row<L: Lanes>(o: *const f32, sum: f32, value_size: usize, out: *mut f32) {
    for d in (0..value_size).step_by(LANES) {
        let lanes = (value_size - d).min(LANES);
        // SAFETY: `o` holds the row padded to whole vectors, and `out` holds the row.
        unsafe { L::load(o.add(d)).div(L::splat(sum)).store_first(out.add(d), lanes) };
    }
}

/// Updates `scratch.segment` with a tile. With `LATENT`, keys are rows, and so are the queries.
#[inline(always)]
pub(super) unsafe fn attend_groups<L: Lanes, E: FloatFormat, const LOCAL: bool, const LATENT: bool>(
    tile: &Tile,
    item: &Item<'_>,
    scratch: &mut Scratch,
) {
    let rows = item.rows();
    let mut first = 0;
    while first < rows {
        let size = group_size::<L>(rows - first);
        let states = &mut scratch.segment;
        let group = Group {
            queries: scratch.queries[first * tile.query_stride..].as_ptr(),
            max: states.max[first..].as_mut_ptr(),
            sum: states.sum[first..].as_mut_ptr(),
            out: states.out[first * tile.stride..].as_mut_ptr(),
            first,
            heads_per_kv_head: item.heads_per_kv_head,
            first_position: item.first_position,
            last_position: item.last_position,
            window: item.window,
            soft_cap: item.soft_cap,
        };
        let p = &mut scratch.tile.0;
        // SAFETY: the states hold at least first + size rows.
        unsafe {
            match size {
                12 if L::IS_WIDE => attend_tile::<L, E, LOCAL, LATENT, 12>(tile, &group, p),
                6 if L::IS_VECTOR => attend_tile::<L, E, LOCAL, LATENT, 6>(tile, &group, p),
                3 if L::IS_VECTOR => attend_tile::<L, E, LOCAL, LATENT, 3>(tile, &group, p),
                2 if L::IS_VECTOR => attend_tile::<L, E, LOCAL, LATENT, 2>(tile, &group, p),
                _ => attend_tile::<L, E, LOCAL, LATENT, 1>(tile, &group, p),
            }
        }
        first += size;
    }
}

/// Computes the scores of `R` rows and `N` vectors of positions. `q` is `[D][R]`, `k` points to the first position in
/// `[D][B]`, and `out` points to the rows of a tile.
#[inline(always)]
unsafe fn scores<L: Lanes, E: FloatFormat, const R: usize, const N: usize>(
    q: *const f32,
    k: *const u16,
    head_size: usize,
    block_size: usize,
    out: *mut [f32; MAX_BLOCK_SIZE],
) {
    // SAFETY: the caller provides R * D query elements, N * LANES positions of a block and R rows of a tile.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; R];
        for d in 0..head_size {
            let mut keys = [L::splat(0.0); N];
            for (j, key) in keys.iter_mut().enumerate() {
                *key = E::load::<L>(k.add(d * block_size + j * LANES).cast());
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

/// Computes o += p[b] * V[b] for b in `begin..end`, `R` rows and `N` vectors of elements. `p` points to the rows of a
/// tile, `v` to elements of `[B][value_stride]`, and `o` to elements of `[R][stride]`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, E: FloatFormat, const R: usize, const N: usize>(
    p: *const [f32; MAX_BLOCK_SIZE],
    v: *const u16,
    (begin, end): (usize, usize),
    (value_stride, stride): (usize, usize),
    o: *mut f32,
) {
    // SAFETY: the caller provides R rows of a tile and of o, and N * LANES elements of the values begin..end.
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
                *value = E::load::<L>(v.add(b * value_stride + j * LANES).cast());
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

/// Applies [`accumulate`] to all elements of the head, as many at a time as fit in registers.
#[inline(always)]
unsafe fn accumulate_head<L: Lanes, E: FloatFormat, const R: usize>(
    p: *const [f32; MAX_BLOCK_SIZE],
    tile: &Tile,
    range: (usize, usize),
    o: *mut f32,
) {
    let (v, strides, stride) = (tile.values, (tile.value_stride, tile.stride), tile.stride);
    let mut d = 0;
    // SAFETY: as for `accumulate`; d + N * LANES is at most `stride` in each branch.
    unsafe {
        if L::IS_WIDE && const { R <= 6 } {
            while d + 4 * LANES <= stride {
                accumulate::<L, E, R, 4>(p, v.add(d), range, strides, o.add(d));
                d += 4 * LANES;
            }
        }
        if L::IS_WIDE || const { R <= 3 } {
            while d + 2 * LANES <= stride {
                accumulate::<L, E, R, 2>(p, v.add(d), range, strides, o.add(d));
                d += 2 * LANES;
            }
        }
        while d < stride {
            accumulate::<L, E, R, 1>(p, v.add(d), range, strides, o.add(d));
            d += LANES;
        }
    }
}

/// A tile, as all groups of rows see it.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) keys: *const u16,
    pub(super) values: *const u16,
    pub(super) start: usize,
    /// Elements of a packed query.
    pub(super) query_stride: usize,
    /// Distance between the values of positions, in elements.
    pub(super) value_stride: usize,
    /// Distance between rows of o.
    pub(super) stride: usize,
    pub(super) block_size: usize,
}

/// A group of rows, with pointers to its part of the states.
#[derive(Clone, Copy)]
struct Group {
    queries: *const f32,
    max: *mut f32,
    sum: *mut f32,
    out: *mut f32,
    first: usize,
    heads_per_kv_head: usize,
    first_position: usize,
    last_position: usize,
    window: Window,
    soft_cap: Option<f32>,
}

impl Group {
    /// The position of row `r` of the group.
    #[inline(always)]
    fn position(&self, r: usize) -> usize {
        self.first_position + (self.first + r) / self.heads_per_kv_head
    }

    /// Number of positions at the front of the tile that row `r` of the group does not see.
    #[inline(always)]
    fn num_hidden(&self, tile: &Tile, r: usize) -> usize {
        self.window.first_visible(self.position(r)).saturating_sub(tile.start).min(tile.block_size)
    }

    /// Number of positions of the tile up to the last one that row `r` of the group sees; at least 1.
    #[inline(always)]
    fn num_visible(&self, tile: &Tile, r: usize) -> usize {
        (self.window.last_visible(self.position(r), self.last_position) + 1 - tile.start).min(tile.block_size)
    }
}

/// Step 2 for one row: replaces scores by probabilities. Returns the new maximum of the row, and the sum of the
/// probabilities in `tile_sum`.
#[inline(always)]
unsafe fn softmax_row<L: Lanes>(row: *mut f32, num_visible: usize, old_max: f32, tile_sum: &mut f32) -> f32 {
    let lowest = f32::NEG_INFINITY;
    let num_vectors = num_visible.div_ceil(LANES);
    // SAFETY: the row is MAX_BLOCK_SIZE long, and `num_visible` is not larger.
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

/// Applies the soft cap to the scores from `begin` to `end`, rounded up to whole vectors.
#[inline(always)]
unsafe fn cap_row<L: Lanes>(row: *mut f32, begin: usize, end: usize, cap: f32) {
    for b in (begin..end).step_by(LANES) {
        // SAFETY: the row is MAX_BLOCK_SIZE long, which is whole vectors.
        unsafe { soft_cap(L::load(row.add(b)), cap, 1.0 / cap).store(row.add(b)) };
    }
}

#[inline(always)]
unsafe fn hide_front(row: *mut f32, hidden: usize) {
    // SAFETY: the row is MAX_BLOCK_SIZE long.
    (0..hidden).for_each(|b| unsafe { *row.add(b) = f32::NEG_INFINITY });
}

#[inline(always)]
unsafe fn attend_tile<L: Lanes, E: FloatFormat, const LOCAL: bool, const LATENT: bool, const R: usize>(
    tile: &Tile,
    group: &Group,
    p: &mut [[f32; MAX_BLOCK_SIZE]; GROUP_ROWS],
) {
    let p = p.as_mut_ptr();
    let fewest = group.num_visible(tile, 0);
    let most = group.num_visible(tile, R - 1);
    // The last row has the most hidden positions.
    let hidden = if LOCAL { group.num_hidden(tile, R - 1) } else { 0 };
    let num_hidden = |r: usize| if hidden == 0 { 0 } else { group.num_hidden(tile, r) };
    // SAFETY: the states hold R rows, the tile's pointers one block, and p R rows of a block.
    unsafe {
        let begin = num_hidden(0) / LANES * LANES;
        let mut b = begin;
        if LATENT {
            tile_scores::<L, E, R>(group.queries, tile.keys, tile.query_stride, begin, most, p);
            b = most.next_multiple_of(LANES);
        }
        while b < most {
            let out = p.cast::<f32>().add(b).cast::<[f32; MAX_BLOCK_SIZE]>();
            let keys = tile.keys.add(b);
            if L::IS_WIDE && b + 2 * LANES <= tile.block_size {
                scores::<L, E, R, 2>(group.queries, keys, tile.query_stride, tile.block_size, out);
                b += 2 * LANES;
            } else {
                scores::<L, E, R, 1>(group.queries, keys, tile.query_stride, tile.block_size, out);
                b += LANES;
            }
        }
        if let Some(cap) = group.soft_cap.filter(|_| LOCAL) {
            for r in 0..R {
                cap_row::<L>(p.add(r).cast(), begin, b, cap);
            }
        }
        let (mut tile_sums, mut corrections) = ([0.0f32; LANES], [0.0f32; LANES]);
        for r in 0..R {
            let visible = if fewest == tile.block_size { fewest } else { group.num_visible(tile, r) };
            if hidden > 0 {
                if num_hidden(r) >= visible {
                    // The row sees nothing: a sum of 0 and a correction of e^0 leave the state unchanged.
                    continue;
                }
                hide_front(p.add(r).cast(), num_hidden(r));
            }
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
            // A factor of exactly 1 changes no bit.
            if corrections[r] != 1.0 {
                let o = group.out.add(r * tile.stride);
                for d in (0..tile.stride).step_by(LANES) {
                    L::load(o.add(d)).mul(correction).store(o.add(d));
                }
            }
        }
        // In order of position: positions that only some rows see, then those that all rows see, then again those that
        // only some rows see.
        if hidden > 0 {
            for r in 0..R {
                let range = (num_hidden(r), hidden.min(group.num_visible(tile, r)));
                accumulate_head::<L, E, 1>(p.add(r), tile, range, group.out.add(r * tile.stride));
            }
        }
        accumulate_head::<L, E, R>(p, tile, (hidden, fewest), group.out);
        if most > fewest {
            for r in 0..R {
                let range = (fewest.max(hidden), group.num_visible(tile, r));
                accumulate_head::<L, E, 1>(p.add(r), tile, range, group.out.add(r * tile.stride));
            }
        }
    }
}
