//! Attention over K and V as int8, computed with integer dot products.
//!
//! K, V and the queries are transformed by H (`ops/hadamard.rs`), which spreads the few large elements of a head
//! over all elements; q . k = Hq . Hk / n. For each query and head, the preparation is
//!
//! 0. x = H(q * scale), its bytes x8 and their scale from [`quantize_head`], and f = scale * (log2(e) / n), so that
//!    exponents have base 2.
//!
//! Then, for each tile:
//!
//! 1. s[b] = float(sum over d of x8[d] * K8[d][b]) * kscale[b]. The sum is exact.
//! 2. If some s[b] * f >= m + [`SLACK`], which is rare, m' = max of s * f becomes the new m, and l and o are multiplied
//!    by 2^(m - m').
//! 3. p[b] = 2^(s[b] * f - m), with one rounding before the power. l += p, separately for each lane until the segment
//!    ends.
//! 4. w[b] = p[b] * vscale[b]. Positions with the same b % 16 form a lane. The lane with the largest w is rounded to 16
//!    bits and the others to 8 bits: u = max(largest w of the others, largest w / 257), and
//!    v[b] = round(w[b] * (255 / u)), with one rounding.
//! 5. o[d] += float(sum over b of v[b] * V8[b][d]) * (u / 255). The sum is exact, and the rest is rounded once.
//!
//! The result is H(o) / (l * n).
//!
//! With a soft cap, from step 2 on s[b] is tanh(s[b] * f / (cap * log2(e))), and f is cap * log2(e).
//!
//! This takes 2 * D products of bytes per query, head and position. [`GROUP_ROWS`] rows and 64 positions (then 64
//! elements) are computed together, with 24 registers of sums and 4 of K or V, so each load serves six products.

mod products;
mod scales;
mod weigh;

use std::ops::Range;

pub(super) use self::scales::Scales;

use self::products::{accumulate_group, prefetch_rest, score_group};
use self::weigh::{ONES, Row, squash, weigh_row};
use super::{Item, Rows, Scheme, Scratch};
use trunkline_kernels_core::aligned::AlignedFloats;
use trunkline_kernels_core::kv_pool::{KvView, MAX_BLOCK_SIZE, MAX_HEAD_SIZE, QUAD, VALUE_GROUP};
use trunkline_kernels_core::ops::exp2::exp2;
use trunkline_kernels_core::ops::hadamard::{mixed_elements, transform};
use trunkline_kernels_core::ops::quantize_head::{TINY, quantize_head};
use trunkline_kernels_core::vector::{ByteLanes, LANES, MAGIC};

/// The most rows that share loads of K and V.
pub(super) const GROUP_ROWS: usize = 6;
/// The sizes of groups of rows, largest first. Each size has its own instantiation of the kernels.
const GROUP_SIZES: [usize; 5] = [6, 4, 3, 2, 1];
/// Vectors of positions whose bytes form the quads of V.
const VALUE_QUAD: usize = VALUE_GROUP / LANES;
/// Vectors of positions or elements that are computed together.
const WIDE: usize = 4;
/// The unsigned byte of K that represents 0.
const KEY_ZERO: i32 = 128;
const LARGEST_BYTE: f32 = 255.0;
/// The largest 16-bit number divided by [`LARGEST_BYTE`].
const LARGEST_RATIO: f32 = 257.0;

fn group_size<L: ByteLanes>(rows_left: usize) -> usize {
    let most = match (L::IS_WIDE, L::IS_VECTOR) {
        (true, _) => GROUP_ROWS,
        (_, true) => 2,
        _ => 1,
    };
    GROUP_SIZES.into_iter().find(|size| *size <= rows_left.min(most)).unwrap_or(1)
}

/// The queries of an item, and the sums of its rows' probabilities.
#[derive(Debug)]
pub(super) struct Queries {
    /// The bytes x8, `[D / 4][rows of the group][4]` for each group of rows.
    bytes: Vec<i8>,
    /// The start value of each row's sum of products, which compensates for the zero point of K.
    starts: Vec<i32>,
    /// The factor f of each row, positive.
    factors: Vec<f32>,
    /// The lanes of l of each row.
    sums: AlignedFloats,
}

impl Queries {
    pub(super) fn new(rows: usize, quad_elements: usize) -> Self {
        Self {
            bytes: vec![0; rows * quad_elements],
            starts: vec![0; rows],
            factors: vec![0.0; rows],
            sums: AlignedFloats::zeroed(rows * LANES),
        }
    }
}

/// Transforms and quantises the queries of an item. With `factors`, each element is multiplied by its factor first.
///
/// # Safety
/// The conditions are those of [`Scheme::pack_queries`].
#[inline(always)]
pub(super) unsafe fn pack_bytes<L: ByteLanes>(
    head_size: usize,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    factors: Option<&[f32]>,
    scratch: &mut Scratch,
) {
    let (rows, stride) = (item.rows(), head_size.next_multiple_of(LANES));
    let quads = head_size.div_ceil(QUAD);
    let unit = std::f32::consts::LOG2_E / mixed_elements(head_size) as f32;
    let (mut x, mut bytes) = ([0.0f32; MAX_HEAD_SIZE], [0i8; MAX_HEAD_SIZE]);
    let (x, bytes) = (&mut x[..stride], &mut bytes[..stride]);
    let out = &mut scratch.bytes;
    let mut first = 0;
    while first < rows {
        let group = group_size::<L>(rows - first);
        let packed = &mut out.bytes[first * quads * QUAD..(first + group) * quads * QUAD];
        for r in 0..group {
            // SAFETY: the caller guarantees the queries, and `x` is whole vectors.
            unsafe {
                let query = item.query(first + r, head_size, queries);
                x[head_size..].fill(0.0);
                x.iter_mut().zip(query).for_each(|(x, q)| *x = q * item.scale);
                if let Some(factors) = factors {
                    x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
                }
                transform::<L>(x.as_mut_ptr(), head_size);
            }
            let scale = quantize_head(x, bytes);
            // For a query of zeros any factor works except 0, which would turn masked scores into NaN.
            out.factors[first + r] = if scale == 0.0 { 1.0 } else { scale * unit };
            let sum: i32 = bytes.iter().map(|q| i32::from(*q)).sum();
            out.starts[first + r] = -KEY_ZERO * sum;
            for (i, quad) in bytes[..quads * QUAD].chunks_exact(QUAD).enumerate() {
                packed[(i * group + r) * QUAD..][..QUAD].copy_from_slice(quad);
            }
        }
        first += group;
    }
}

/// The scheme for K and V as int8. `LOCAL` adds support for windows and soft caps.
pub struct Int8<const LOCAL: bool>;

impl<const LOCAL: bool> Scheme for Int8<LOCAL> {
    #[inline(always)]
    unsafe fn pack_queries<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    ) {
        // SAFETY: the conditions are the same.
        unsafe { pack_bytes::<L>(kv.geometry().head_size, item, queries, None, scratch) }
    }

    #[inline(always)]
    unsafe fn begin_segment(rows: usize, scratch: &mut Scratch) {
        scratch.bytes.sums[..rows * LANES].fill(0.0);
    }

    #[inline(always)]
    unsafe fn attend_block<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        block: usize,
        scratch: &mut Scratch,
    ) {
        let (g, block_id) = (kv.geometry(), item.block_table[block]);
        let keys = kv.keys(item.layer, block_id, item.kv_head);
        let (next_id, next_head) = item.after(block, g.block_size);
        let next_keys = kv.keys(item.layer, next_id, next_head);
        let ahead = next_keys.addr().wrapping_sub(keys.addr()).cast_signed();
        // SAFETY: the scales are those of a block of the pool, which is not written during the call.
        unsafe { scratch.scales.fill::<L>(g, kv.scales(item.layer, block_id, item.kv_head), ahead) };
        let tile = Tile {
            keys,
            values: kv.values(item.layer, block_id, item.kv_head),
            key_scales: scratch.scales.keys.as_ptr(),
            value_scales: scratch.scales.values.as_ptr(),
            ahead,
            start: block * g.block_size,
            block_size: g.block_size,
            quads: g.key_quads(),
            stride: g.padded_head_size(),
        };
        // SAFETY: the tile points to a block of the pool, which is not written during the call.
        unsafe { attend_tile::<L, LOCAL>(tile, item, scratch) };
    }

    #[inline(always)]
    unsafe fn end_segment<L: ByteLanes>(rows: usize, scratch: &mut Scratch) {
        for (sum, lanes) in scratch.segment.sum[..rows].iter_mut().zip(scratch.bytes.sums.chunks_exact(LANES))
        {
            // SAFETY: only lane arithmetic.
            *sum = unsafe { L::load(lanes.as_ptr()).sum() };
        }
    }

    const SCORE_UNIT: f32 = std::f32::consts::LOG2_E;

    #[inline(always)]
    unsafe fn power<L: ByteLanes>(x: L) -> L {
        // SAFETY: the caller guarantees the conditions of the callee.
        unsafe { exp2(x) }
    }

    #[inline(always)]
    unsafe fn finish_row<L: ByteLanes>(o: *mut f32, sum: f32, head_size: usize, out: *mut f32) {
        // SAFETY: `o` holds the head padded to whole vectors, and `out` holds the head.
        unsafe {
            transform::<L>(o, head_size);
            let factor = L::splat(1.0 / (sum * mixed_elements(head_size) as f32));
            for d in (0..head_size).step_by(LANES) {
                let lanes = (head_size - d).min(LANES);
                L::load(o.add(d)).mul(factor).store_first(out.add(d), lanes);
            }
        }
    }
}

/// A tile, as all groups of rows see it.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) keys: *const u8,
    pub(super) values: *const u8,
    pub(super) key_scales: *const f32,
    pub(super) value_scales: *const f32,
    /// Distance in bytes to the next block, which is prefetched. The hardware prefetcher cannot predict where it is.
    pub(super) ahead: isize,
    pub(super) start: usize,
    pub(super) block_size: usize,
    pub(super) quads: usize,
    pub(super) stride: usize,
}

/// The weights v of one row and tile.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Weights {
    /// The low bytes, in the order of V: `[B / 64][16][4]`.
    low: [u8; MAX_BLOCK_SIZE],
    /// The high bytes, which are 0 except in `lane`.
    high: [u8; MAX_BLOCK_SIZE],
    /// The lane with 16-bit weights.
    lane: usize,
    /// The unit u / 255 of the weights.
    scale: f32,
}

impl Weights {
    pub(super) const ZERO: Self =
        Self { low: [0; MAX_BLOCK_SIZE], high: [0; MAX_BLOCK_SIZE], lane: 0, scale: 0.0 };
}

/// The second half of step 4, for `R` rows at once to hide the latency of the operations.
///
/// `tile` has w of each row in `num_vectors` vectors, and `largest` the largest w of each lane.
#[inline(always)]
unsafe fn round_weights<L: ByteLanes, const R: usize>(
    tile: *const [f32; MAX_BLOCK_SIZE],
    num_vectors: usize,
    largest: &[L],
    weights: &mut [Weights],
) {
    let Some(largest) = largest.first_chunk::<R>() else { unreachable!("a group is of GROUP_ROWS at most") };
    // SAFETY: only lane arithmetic.
    let magic = unsafe { L::splat(MAGIC) };
    let [mut tops, mut steps, mut scales] = [[0.0f32; LANES]; 3];
    // SAFETY: the caller provides R rows of w and weights.
    unsafe {
        let (top, rest) = L::two_largest_each(largest);
        let unit =
            top.select_below(rest.mul(L::splat(LARGEST_RATIO)), rest, top.mul(L::splat(1.0 / LARGEST_RATIO)));
        let step = L::splat(LARGEST_BYTE).div(unit);
        unit.select_below(L::splat(TINY), L::splat(0.0), step).store(steps.as_mut_ptr());
        unit.mul(L::splat(1.0 / LARGEST_BYTE)).store(scales.as_mut_ptr());
        top.store(tops.as_mut_ptr());
        for (r, (weights, largest)) in weights.iter_mut().zip(largest).enumerate() {
            let (w, steps) = (tile.add(r).cast::<f32>(), L::splat(steps[r]));
            for group in 0..num_vectors.div_ceil(VALUE_QUAD) {
                let mut four = [magic; VALUE_QUAD];
                for (k, v) in four.iter_mut().enumerate() {
                    let vector = group * VALUE_QUAD + k;
                    if vector < num_vectors {
                        *v = L::load(w.add(vector * LANES)).fma(steps, magic);
                    }
                }
                L::store_quads::<0>(four, weights.low.as_mut_ptr().add(group * LANES * QUAD));
                L::store_quads::<1>(four, weights.high.as_mut_ptr().add(group * LANES * QUAD));
            }
            // No lane is found if w is NaN. Then l is NaN as well, so any lane will do.
            weights.lane = (largest.at_least(L::splat(tops[r])).trailing_zeros() as usize).min(LANES - 1);
            weights.scale = scales[r];
        }
    }
}

/// Calls `$function::<L, R>` with the constant `R` equal to `$rows`, a result of [`group_size`].
macro_rules! dispatch_group {
    ($rows:expr, $function:ident($($argument:expr),*)) => {
        match $rows {
            6 if L::IS_WIDE => $function::<L, 6>($($argument),*),
            4 if L::IS_WIDE => $function::<L, 4>($($argument),*),
            3 if L::IS_WIDE => $function::<L, 3>($($argument),*),
            2 if L::IS_VECTOR => $function::<L, 2>($($argument),*),
            _ => $function::<L, 1>($($argument),*),
        }
    };
}

/// Processes one tile for all rows of an item.
///
/// # Safety
/// The conditions are those of [`Scheme`]; the tile must point to a block.
#[inline(always)]
pub(super) unsafe fn attend_tile<L: ByteLanes, const LOCAL: bool>(
    mut tile: Tile,
    item: &Item<'_>,
    scratch: &mut Scratch,
) {
    let mut first = 0;
    while first < item.rows() {
        let size = group_size::<L>(item.rows() - first);
        // SAFETY: the caller guarantees the tile, and the states hold the rows.
        unsafe { attend_group::<L, LOCAL>(&tile, item, first..first + size, scratch) };
        first += size;
        // The next block is prefetched only once.
        tile.ahead = 0;
    }
}

#[inline(always)]
unsafe fn attend_group<L: ByteLanes, const LOCAL: bool>(
    tile: &Tile,
    item: &Item<'_>,
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    // If the first row sees the end of the tile, all rows do, and the slow divisions below are skipped.
    let sees_end = item.last_visible(0) + 1 >= tile.start + tile.block_size;
    let sees_front = !LOCAL || item.first_visible(item.rows() - 1) <= tile.start;
    let seen = |row: usize| {
        let end = if sees_end {
            tile.block_size
        } else {
            (item.last_visible(row) + 1 - tile.start).min(tile.block_size)
        };
        let first = if sees_front { 0 } else { item.first_visible(row).saturating_sub(tile.start) };
        first.min(end)..end
    };
    let (first, most) = (rows.start, seen(rows.end - 1).end);
    let scores = scratch.tile.0.as_mut_ptr();
    let weights = &mut scratch.weights[..];
    let queries = &mut scratch.bytes;
    let num_vectors = tile.block_size / LANES;
    // SAFETY: the states hold all rows, the tile's pointers one block, and the scratch GROUP_ROWS rows of a block.
    unsafe {
        let mut largest = [L::splat(0.0); GROUP_ROWS];
        let scored = dispatch_group!(rows.len(), score_group(tile, first, most, queries, scores));
        if first == 0 && most < tile.block_size {
            prefetch_rest::<L>(tile, scored, most);
        }
        let mut scaled = *tile;
        let cap = item.soft_cap.filter(|_| LOCAL).map(|cap| cap * std::f32::consts::LOG2_E);
        if let Some(cap) = cap {
            for (r, index) in rows.clone().enumerate() {
                squash::<L>(scores.add(r).cast(), tile.key_scales, scored, queries.factors[index] / cap);
            }
            scaled.key_scales = ONES.as_ptr();
        }
        let out = scratch.segment.out.as_mut_ptr();
        for (r, index) in rows.clone().enumerate() {
            let row = Row {
                factor: cap.unwrap_or(queries.factors[index]),
                max: scratch.segment.max.as_mut_ptr().add(index),
                sums: queries.sums.as_mut_ptr().add(index * LANES),
                out: out.add(index * tile.stride),
                stride: tile.stride,
            };
            largest[r] = weigh_row::<L, LOCAL>(scores.add(r).cast(), &seen(index), &scaled, &row);
        }
        dispatch_group!(rows.len(), round_weights(scores, num_vectors, &largest, weights));
        dispatch_group!(rows.len(), accumulate_group(tile, most, weights, out.add(first * tile.stride)));
    }
}
