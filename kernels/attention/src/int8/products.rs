//! The integer dot products of a tile, steps 1 and 5.

use std::ops::Range;

use super::{Queries, Tile, WIDE, Weights};
use trunkline_kernels_core::kv_pool::{MAX_BLOCK_SIZE, QUAD, VALUE_GROUP};
use trunkline_kernels_core::vector::{ByteLanes, LANES};

/// Step 1 without the scales, for `R` rows and `N` vectors of positions.
///
/// `q` is `[D / 4][R][4]`, `starts` is `[R]`, `k` points to the first vector of positions, and `out` to the rows of a
/// tile. Prefetches the bytes at a distance of `ahead`.
#[inline(always)]
unsafe fn dots<L: ByteLanes, const R: usize, const N: usize>(
    q: *const i8,
    starts: *const i32,
    k: *const u8,
    (quads, ahead): (usize, isize),
    out: *mut [f32; MAX_BLOCK_SIZE],
) {
    // SAFETY: the caller provides R queries, N vectors of positions and R rows of a tile.
    unsafe {
        let mut sums = [[L::splat_int(0); N]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            *sums = [L::splat_int(*starts.add(r)); N];
        }
        for i in 0..quads {
            let mut keys = [L::load_bytes(k.add(i * LANES * QUAD)); N];
            for (j, keys) in keys.iter_mut().enumerate() {
                let key = k.add((j * quads + i) * LANES * QUAD);
                L::prefetch(key.wrapping_offset(ahead));
                *keys = L::load_bytes(key);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let query = L::splat_quad(q.add((i * R + r) * QUAD).cast());
                for (sum, key) in sums.iter_mut().zip(keys) {
                    *sum = L::dot(*sum, key, query);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                L::floats(*sum).store(out.add(r).cast::<f32>().add(j * LANES));
            }
        }
    }
}

/// Adds the products of the high bytes of one group of 64 positions.
#[inline(always)]
unsafe fn add_high<L: ByteLanes, const R: usize, const N: usize>(
    sums: &mut [[L::Ints; N]; R],
    weights: &[Weights; R],
    v: *const u8,
    group: usize,
    stride: usize,
) {
    for (sums, weights) in sums.iter_mut().zip(weights) {
        let quad = group * LANES + weights.lane;
        // SAFETY: the conditions are those of `accumulate`.
        unsafe {
            let high = L::splat_quad(weights.high.as_ptr().add(quad * QUAD));
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = L::dot(*sum, high, L::load_bytes(v.add((quad * stride + j * LANES) * QUAD)));
            }
        }
    }
}

/// Adds the products of the low bytes of `quads`, within one group of 64 positions.
#[inline(always)]
unsafe fn add_low<L: ByteLanes, const R: usize, const N: usize>(
    sums: &mut [[L::Ints; N]; R],
    weights: &[Weights; R],
    v: *const u8,
    quads: Range<usize>,
    (stride, ahead): (usize, isize),
) {
    for quad in quads {
        // SAFETY: the conditions are those of `accumulate`.
        unsafe {
            let mut values = [L::load_bytes(v.add(quad * stride * QUAD)); N];
            for (j, values) in values.iter_mut().enumerate() {
                let value = v.add((quad * stride + j * LANES) * QUAD);
                L::prefetch(value.wrapping_offset(ahead));
                *values = L::load_bytes(value);
            }
            for (sums, weights) in sums.iter_mut().zip(weights) {
                let low = L::splat_quad(weights.low.as_ptr().add(quad * QUAD));
                for (sum, values) in sums.iter_mut().zip(values) {
                    *sum = L::dot(*sum, low, values);
                }
            }
        }
    }
}

/// Step 5 for `R` rows and `N` vectors of elements. `v` points to the first element in the tile's V, and `ahead` is as
/// in [`dots`]. Only the first `most` positions have weights other than 0.
#[inline(always)]
unsafe fn accumulate<L: ByteLanes, const R: usize, const N: usize>(
    weights: &[Weights; R],
    v: *const u8,
    (most, ahead): (usize, isize),
    stride: usize,
    o: *mut f32,
) {
    // SAFETY: the caller provides R rows of o, and N * LANES elements of the tile's values.
    unsafe {
        let mut sums = [[L::splat_int(0); N]; R];
        add_high::<L, R, N>(&mut sums, weights, v, 0, stride);
        if most > VALUE_GROUP {
            add_high::<L, R, N>(&mut sums, weights, v, 1, stride);
        }
        for sums in &mut sums {
            for sum in sums {
                *sum = L::times_256(*sum);
            }
        }
        add_low::<L, R, N>(&mut sums, weights, v, 0..most.min(LANES), (stride, ahead));
        if most > VALUE_GROUP {
            let end = LANES + (most - VALUE_GROUP).min(LANES);
            add_low::<L, R, N>(&mut sums, weights, v, LANES..end, (stride, ahead));
        }
        for (r, (sums, weights)) in sums.iter().zip(weights).enumerate() {
            let scale = L::splat(weights.scale);
            for (j, sum) in sums.iter().enumerate() {
                let o = o.add(r * stride + j * LANES);
                L::floats(*sum).fma(scale, L::load(o)).store(o);
            }
        }
    }
}

/// Computes the scores, without the scales, of `R` rows and at least the first `most` positions of a tile. Returns the
/// number of positions.
#[inline(always)]
pub(super) unsafe fn score_group<L: ByteLanes, const R: usize>(
    tile: &Tile,
    first: usize,
    most: usize,
    queries: &Queries,
    out: *mut [f32; MAX_BLOCK_SIZE],
) -> usize {
    // SAFETY: the queries hold first + R rows, the tile's pointers one block, and `out` R rows of a block.
    unsafe {
        let q = queries.bytes.as_ptr().add(first * tile.quads * QUAD);
        let starts = queries.starts.as_ptr().add(first);
        let mut b = 0;
        while b < most {
            let out = out.cast::<f32>().add(b).cast();
            let keys = tile.keys.add(b * tile.quads * QUAD);
            if L::IS_WIDE && b + WIDE * LANES <= tile.block_size && b + WIDE / 2 * LANES < most {
                dots::<L, R, WIDE>(q, starts, keys, (tile.quads, tile.ahead), out);
                b += WIDE * LANES;
            } else {
                dots::<L, R, 1>(q, starts, keys, (tile.quads, tile.ahead), out);
                b += LANES;
            }
        }
        b
    }
}

/// Prefetches the part of the next block that the products do not prefetch: K after `scored` positions, and V after
/// `most` positions.
#[inline(always)]
pub(super) unsafe fn prefetch_rest<L: ByteLanes>(tile: &Tile, scored: usize, most: usize) {
    let prefetch = |start: *const u8, lines: Range<usize>| {
        for line in lines {
            // SAFETY: a prefetch accepts any address.
            unsafe { L::prefetch(start.wrapping_add(line * LANES * QUAD).wrapping_offset(tile.ahead)) };
        }
    };
    let vectors = |positions: usize| positions / LANES * tile.quads;
    prefetch(tile.keys, vectors(scored)..vectors(tile.block_size));
    for (group, first) in (0..tile.block_size).step_by(VALUE_GROUP).enumerate() {
        let quads = |quad: usize| (group * LANES + quad) * tile.stride / LANES;
        prefetch(tile.values, quads(most.saturating_sub(first).min(LANES))..quads(LANES));
    }
}

/// Step 5 for `R` rows and the first `most` positions of a tile.
#[inline(always)]
pub(super) unsafe fn accumulate_group<L: ByteLanes, const R: usize>(
    tile: &Tile,
    most: usize,
    weights: &[Weights],
    out: *mut f32,
) {
    let Some(weights) = weights.first_chunk() else { unreachable!("a group is of GROUP_ROWS at most") };
    let most = (most, tile.ahead);
    let mut d = 0;
    while d < tile.stride {
        // SAFETY: the tile's pointers hold one block, and the others R rows.
        unsafe {
            let (values, out) = (tile.values.add(d * QUAD), out.add(d));
            if L::IS_WIDE && d + WIDE * LANES <= tile.stride {
                accumulate::<L, R, WIDE>(weights, values, most, tile.stride, out);
                d += WIDE * LANES;
            } else {
                accumulate::<L, R, 1>(weights, values, most, tile.stride, out);
                d += LANES;
            }
        }
    }
}
