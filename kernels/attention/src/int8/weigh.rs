//! Turns the scores of one row and tile into weights: steps 2, 3 and the first half of 4.

use std::ops::Range;

use super::Tile;
use trunkline_kernels_core::kv_pool::MAX_BLOCK_SIZE;
use trunkline_kernels_core::ops::exp2::exp2;
use trunkline_kernels_core::ops::tanh::tanh;
use trunkline_kernels_core::vector::{ByteLanes, LANES};

/// The amount by which exponents may exceed m before m is raised, so that probabilities stay below 2^8.
const SLACK: f32 = 8.0;
/// Scales of K for scores to which the scales are already applied.
pub(super) static ONES: [f32; MAX_BLOCK_SIZE] = [1.0; MAX_BLOCK_SIZE];

pub(super) struct Row {
    pub(super) factor: f32,
    pub(super) max: *mut f32,
    pub(super) sums: *mut f32,
    pub(super) out: *mut f32,
    pub(super) stride: usize,
}

/// Replaces lanes of vector `j` of a tile by `nothing`: those before `seen` if `FRONT`, and those after it if `BACK`.
#[inline(always)]
unsafe fn mask<L: ByteLanes, const FRONT: bool, const BACK: bool>(
    mut x: L,
    seen: &Range<usize>,
    j: usize,
    nothing: L,
) -> L {
    let lanes = |position: usize| position.saturating_sub(j * LANES).min(LANES);
    // SAFETY: only lane arithmetic.
    unsafe {
        if BACK {
            x = L::select_first(lanes(seen.end), x, nothing);
        }
        if FRONT {
            x = L::select_first(lanes(seen.start), nothing, x);
        }
    }
    x
}

/// Steps 2, 3 and w for one row and `N` vectors of positions. Replaces the scores by w and returns the largest w of
/// each lane.
///
/// Positions before `seen` are masked if `FRONT`, and positions after it if `BACK`.
#[inline(always)]
unsafe fn weigh<L: ByteLanes, const N: usize, const FRONT: bool, const BACK: bool>(
    scores: *mut f32,
    seen: &Range<usize>,
    tile: &Tile,
    row: &Row,
) -> L {
    // SAFETY: the caller provides N vectors of scores and scales, and a row of the states.
    unsafe {
        let lowest = L::splat(f32::NEG_INFINITY);
        let mut s = [lowest; N];
        let mut largest = lowest;
        for (j, s) in s.iter_mut().enumerate() {
            *s = L::load(scores.add(j * LANES)).mul(L::load(tile.key_scales.add(j * LANES)));
            *s = mask::<L, FRONT, BACK>(*s, seen, j, lowest);
            largest = s.max(largest);
        }
        let factor = L::splat(row.factor);
        let reached = largest.mul(factor);
        if reached.at_least(L::splat(*row.max + SLACK)) != 0 {
            move_max::<L>(row, reached.max_lane());
        }
        let minus_max = L::splat(-*row.max);
        let mut sum = L::load(row.sums);
        largest = L::splat(0.0);
        for (j, s) in s.iter().enumerate() {
            let p = exp2(s.fma(factor, minus_max));
            let w = p.mul(L::load(tile.value_scales.add(j * LANES)));
            let p = mask::<L, FRONT, BACK>(p, seen, j, L::splat(0.0));
            let w = mask::<L, FRONT, BACK>(w, seen, j, L::splat(0.0));
            sum = sum.add(p);
            largest = w.max(largest);
            w.store(scores.add(j * LANES));
        }
        sum.store(row.sums);
        largest
    }
}

/// Makes l and o of a row relative to the new reference `max`.
#[inline(always)]
unsafe fn move_max<L: ByteLanes>(row: &Row, max: f32) {
    // SAFETY: the caller guarantees the row's pointers.
    unsafe {
        let factor = exp2(L::splat(*row.max - max));
        *row.max = max;
        L::load(row.sums).mul(factor).store(row.sums);
        for d in (0..row.stride).step_by(LANES) {
            L::load(row.out.add(d)).mul(factor).store(row.out.add(d));
        }
    }
}

/// Calls [`weigh`] for a tile of any size.
#[inline(always)]
pub(super) unsafe fn weigh_row<L: ByteLanes, const LOCAL: bool>(
    scores: *mut f32,
    seen: &Range<usize>,
    tile: &Tile,
    row: &Row,
) -> L {
    let is_whole = seen.end == tile.block_size;
    // SAFETY: as for `weigh`; a tile has 1, 2, 4 or 8 vectors.
    unsafe {
        if LOCAL && seen.start > 0 {
            return weigh_front::<L>(scores, seen, tile, row);
        }
        match (tile.block_size / LANES, is_whole) {
            (1, true) => weigh::<L, 1, false, false>(scores, seen, tile, row),
            (1, false) => weigh::<L, 1, false, true>(scores, seen, tile, row),
            (2, true) => weigh::<L, 2, false, false>(scores, seen, tile, row),
            (2, false) => weigh::<L, 2, false, true>(scores, seen, tile, row),
            (4, true) => weigh::<L, 4, false, false>(scores, seen, tile, row),
            (4, false) => weigh::<L, 4, false, true>(scores, seen, tile, row),
            (_, true) => weigh::<L, 8, false, false>(scores, seen, tile, row),
            (_, false) => weigh::<L, 8, false, true>(scores, seen, tile, row),
        }
    }
}

/// Calls [`weigh`] for a tile whose first positions the row does not see. If it sees none, l and m are unchanged.
#[inline(always)]
unsafe fn weigh_front<L: ByteLanes>(scores: *mut f32, seen: &Range<usize>, tile: &Tile, row: &Row) -> L {
    // SAFETY: as for `weigh_row`.
    unsafe {
        let num_vectors = tile.block_size / LANES;
        if seen.is_empty() {
            for j in 0..num_vectors {
                L::splat(0.0).store(scores.add(j * LANES));
            }
            return L::splat(0.0);
        }
        match num_vectors {
            1 => weigh::<L, 1, true, true>(scores, seen, tile, row),
            2 => weigh::<L, 2, true, true>(scores, seen, tile, row),
            4 => weigh::<L, 4, true, true>(scores, seen, tile, row),
            _ => weigh::<L, 8, true, true>(scores, seen, tile, row),
        }
    }
}

/// Multiplies `num_positions` scores, whole vectors, by their scales and by `factor`, and applies tanh.
#[inline(always)]
pub(super) unsafe fn squash<L: ByteLanes>(
    scores: *mut f32,
    key_scales: *const f32,
    num_positions: usize,
    factor: f32,
) {
    // SAFETY: the caller provides as many scores and scales.
    unsafe {
        for position in (0..num_positions).step_by(LANES) {
            let s = L::load(scores.add(position)).mul(L::load(key_scales.add(position)));
            tanh(s.mul(L::splat(factor))).store(scores.add(position));
        }
    }
}
