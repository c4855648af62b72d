//! One tile of attention for one group of rows: scores, softmax, weighted values. The order of sums is the parent's.

use super::GROUP_ROWS;
use crate::kv_pool::MAX_BLOCK_SIZE;
use crate::ops::exp::exp;
use crate::ops::vector::{LANES, Lanes};

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
pub(super) struct Tile {
    pub(super) keys: *const u16,
    pub(super) values: *const u16,
    /// Position of the tile's first slot.
    pub(super) start: usize,
    pub(super) head_size: usize,
    pub(super) stride: usize,
    pub(super) block_size: usize,
}

/// Rows of one group: pointers to their part of the state.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) queries: *const f32,
    pub(super) max: *mut f32,
    pub(super) sum: *mut f32,
    pub(super) out: *mut f32,
    /// Index of the first row in the item.
    pub(super) first: usize,
    pub(super) heads_per_kv_head: usize,
    pub(super) first_position: usize,
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
pub(super) unsafe fn attend_tile<L: Lanes, const R: usize>(
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
