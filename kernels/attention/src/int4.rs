//! Attention over K and V as int4: each tile is unpacked to int8 and then processed as in `int8.rs`.
//!
//! Levels ([`LEVELS`]) are integers that fit in bytes, so a table of 16 entries maps nibbles to bytes. The first key of
//! a block is stored as bytes and replaces its nibbles in the tile. Keys were shifted by their mean and scaled before
//! they were rounded (`KeyScaling` of the KV pool), so queries are divided by the same factors. The unpacked tile
//! stays in the first-level cache and is computed once for all rows of an item.
//!
//! If the mean m of keys rotates from block to block (`KeyTurns` of the KV pool), the scores of a tile lack `q . m`.
//! Instead of adding it to every score, the row's reference of exponents is shifted by it during the tile. `q . m` is
//! a . cos + b . sin of the rotation, where a = q1 m1 + q2 m2 and b = q2 m1 - q1 m2 of each pair are computed once per
//! item.

use super::int8::{Int8, Tile, attend_tile, pack_bytes};
use super::{Item, Rows, Scheme, Scratch};
use trunkline_kernels_core::aligned::AlignedBytes;
use trunkline_kernels_core::kv_pool::{KvView, MAX_BLOCK_SIZE, NIBBLES, QUAD, VALUE_GROUP};
use trunkline_kernels_core::ops::quantize_nibbles::LEVELS;
use trunkline_kernels_core::vector::{ByteLanes, LANES, each_vector};

const VECTOR_BYTES: usize = LANES * QUAD;
/// The unsigned byte of K that represents 0.
const KEY_ZERO: u8 = 128;
/// The levels of K's nibbles as unsigned bytes.
const KEY_TABLE: [u8; 16] = {
    let mut table = [0; 16];
    let mut i = 0;
    while i < table.len() {
        table[i] = LEVELS[i].cast_unsigned() ^ KEY_ZERO;
        i += 1;
    }
    table
};

/// A tile in the int8 layout.
#[derive(Debug)]
pub(super) struct Unpacked {
    keys: AlignedBytes,
    values: AlignedBytes,
}

impl Unpacked {
    pub(super) fn new(head_size: usize) -> Self {
        Self {
            keys: AlignedBytes::zeroed(MAX_BLOCK_SIZE * head_size.next_multiple_of(QUAD)),
            values: AlignedBytes::zeroed(MAX_BLOCK_SIZE * head_size.next_multiple_of(LANES)),
        }
    }
}

/// The contribution of a rotating mean of keys to the scores.
#[derive(Debug)]
pub(super) struct Turning {
    /// The vectors a, then b, of each row, in units of exponents of 2.
    products: Vec<f32>,
    /// The shift of each row's scores in the current tile.
    shifts: Vec<f32>,
    /// The reference of each row before the shift.
    references: Vec<f32>,
}

impl Turning {
    pub(super) fn new(rows: usize, head_size: usize) -> Self {
        Self { products: vec![0.0; rows * head_size], shifts: vec![0.0; rows], references: vec![0.0; rows] }
    }

    /// Computes a and b of a row's query, of which `pairs` pairs of elements are rotated.
    #[inline(always)]
    fn pack(&mut self, row: usize, query: &[f32], mean: &[f32], unit: f32, pairs: usize) {
        let ((q1, q2), (m1, m2)) = (query.split_at(pairs), mean.split_at(pairs));
        let (a, b) = self.products[2 * pairs * row..][..2 * pairs].split_at_mut(pairs);
        for (i, (a, b)) in a.iter_mut().zip(b).enumerate() {
            *a = (q1[i] * m1[i] + q2[i] * m2[i]) * unit;
            *b = (q2[i] * m1[i] - q1[i] * m2[i]) * unit;
        }
    }

    /// Shifts the references of all rows for a tile whose mean is rotated by `turn`.
    #[inline(always)]
    unsafe fn begin_tile<L: ByteLanes>(&mut self, turn: &[f32], references: &mut [f32]) {
        for (row, reference) in references.iter_mut().enumerate() {
            let products = &self.products[turn.len() * row..][..turn.len()];
            // SAFETY: both slices have the same length.
            let shift = unsafe {
                let mut sum = L::splat(0.0);
                each_vector!(turn.len(), |i, lanes| {
                    let x = L::load_first(products.as_ptr().add(i), lanes);
                    sum = x.fma(L::load_first(turn.as_ptr().add(i), lanes), sum);
                });
                sum.sum()
            };
            self.shifts[row] = shift;
            self.references[row] = *reference;
            *reference -= shift;
        }
    }

    /// Undoes [`Turning::begin_tile`]. A reference that the tile did not change, as for rows that do not see it, is
    /// restored to the bit.
    #[inline(always)]
    fn end_tile(&self, references: &mut [f32]) {
        for ((reference, before), shift) in references.iter_mut().zip(&self.references).zip(&self.shifts) {
            let is_moved = *reference != before - shift;
            *reference = if is_moved { *reference + shift } else { *before };
        }
    }
}

/// Unpacks rows of `vectors` vectors each. The lower nibbles of 64 bytes are one vector and the upper nibbles the next.
/// Prefetches the bytes at a distance of `ahead`.
///
/// # Safety
/// The CPU must have the instruction set of `L`, and `from` must point to the packed rows.
#[inline(always)]
unsafe fn unpack<L: ByteLanes>(
    from: *const u8,
    ahead: isize,
    table: &[u8; 16],
    (rows, vectors): (usize, usize),
    to: &mut [u8],
) {
    assert!(to.len() >= rows * vectors * VECTOR_BYTES);
    let (mut from, mut to) = (from, to.as_mut_ptr());
    // SAFETY: the caller guarantees the packed rows, and the assertion ensures room for the unpacked ones.
    unsafe {
        let table = L::load_table(table.as_ptr());
        for _ in 0..rows {
            for _ in 0..vectors / NIBBLES {
                L::prefetch(from.wrapping_offset(ahead));
                let [low, high] = L::look_up(table, L::load_bytes(from));
                L::store_bytes(low, to);
                L::store_bytes(high, to.add(VECTOR_BYTES));
                from = from.add(VECTOR_BYTES);
                to = to.add(NIBBLES * VECTOR_BYTES);
            }
            if !vectors.is_multiple_of(NIBBLES) {
                L::prefetch(from.wrapping_offset(ahead));
                let [low, _nothing] = L::look_up(table, L::load_bytes(from));
                L::store_bytes(low, to);
                from = from.add(VECTOR_BYTES);
                to = to.add(VECTOR_BYTES);
            }
        }
    }
}

/// The scheme for K and V as int4. `LOCAL` adds support for windows and soft caps.
pub struct Int4<const LOCAL: bool>;

impl<const LOCAL: bool> Scheme for Int4<LOCAL> {
    #[inline(always)]
    unsafe fn pack_queries<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    ) {
        let (head_size, scaling) = (kv.geometry().head_size, kv.head_scaling(item.layer, item.kv_head));
        let pairs = kv.key_turn(item.layer, 0).len() / 2;
        if pairs > 0 {
            let unit = item.scale * std::f32::consts::LOG2_E;
            for row in 0..item.rows() {
                // SAFETY: the conditions are the same.
                let query = unsafe { item.query(row, head_size, queries) };
                scratch.turning.pack(row, query, scaling.mean, unit, pairs);
            }
        }
        // SAFETY: the conditions are the same.
        unsafe { pack_bytes::<L>(head_size, item, queries, Some(scaling.inverse), scratch) }
    }

    #[inline(always)]
    unsafe fn begin_segment(rows: usize, scratch: &mut Scratch) {
        // SAFETY: the conditions are the same.
        unsafe { Int8::<LOCAL>::begin_segment(rows, scratch) }
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
        let values = kv.values(item.layer, block_id, item.kv_head);
        let (next_id, next_head) = item.after(block, g.block_size);
        let ahead = kv.keys(item.layer, next_id, next_head).addr().wrapping_sub(keys.addr()).cast_signed();
        let scales = kv.scales(item.layer, block_id, item.kv_head);
        let unpacked = &mut scratch.unpacked;
        // SAFETY: the pointers point to a block of the pool, which is not written during the call.
        unsafe {
            scratch.scales.fill::<L>(g, scales, ahead);
            let key_vectors = (g.block_size / LANES, g.key_quads());
            unpack::<L>(keys, ahead, &KEY_TABLE, key_vectors, unpacked.keys.as_mut_slice());
            let first_key = kv.first_key(item.layer, block_id, item.kv_head);
            L::prefetch(first_key.wrapping_offset(ahead));
            for quad in 0..g.key_quads() {
                let to = unpacked.keys.as_mut_slice()[quad * VECTOR_BYTES..][..QUAD].as_mut_ptr();
                std::ptr::copy_nonoverlapping(first_key.add(quad * QUAD), to, QUAD);
            }
            let value_table = LEVELS.map(i8::cast_unsigned);
            let value_vectors = (g.block_size.div_ceil(VALUE_GROUP) * LANES, g.padded_head_size() / LANES);
            unpack::<L>(values, ahead, &value_table, value_vectors, unpacked.values.as_mut_slice());
        }
        let tile = Tile {
            keys: unpacked.keys.as_slice().as_ptr(),
            values: unpacked.values.as_slice().as_ptr(),
            key_scales: scratch.scales.keys.as_ptr(),
            value_scales: scratch.scales.values.as_ptr(),
            ahead: 0,
            start: block * g.block_size,
            block_size: g.block_size,
            quads: g.key_quads(),
            stride: g.padded_head_size(),
        };
        let turn = kv.key_turn(item.layer, block);
        if turn.is_empty() {
            // SAFETY: the tile points to a block.
            unsafe { attend_tile::<L, LOCAL>(tile, item, scratch) }
            return;
        }
        let rows = item.rows();
        // SAFETY: the CPU has the instruction set, and the tile points to a block.
        unsafe {
            scratch.turning.begin_tile::<L>(turn, &mut scratch.segment.max[..rows]);
            attend_tile::<L, LOCAL>(tile, item, scratch);
            scratch.turning.end_tile(&mut scratch.segment.max[..rows]);
        }
    }

    #[inline(always)]
    unsafe fn end_segment<L: ByteLanes>(rows: usize, scratch: &mut Scratch) {
        // SAFETY: the conditions are the same.
        unsafe { Int8::<LOCAL>::end_segment::<L>(rows, scratch) }
    }

    const SCORE_UNIT: f32 = std::f32::consts::LOG2_E;

    #[inline(always)]
    unsafe fn power<L: ByteLanes>(x: L) -> L {
        // SAFETY: the conditions are the same.
        unsafe { Int8::<LOCAL>::power(x) }
    }

    #[inline(always)]
    unsafe fn finish_row<L: ByteLanes>(o: *mut f32, sum: f32, head_size: usize, out: *mut f32) {
        // SAFETY: the conditions are the same. Padding is cleared because no level is 0.
        unsafe {
            for d in head_size..head_size.next_multiple_of(LANES) {
                *o.add(d) = 0.0;
            }
            Int8::<LOCAL>::finish_row::<L>(o, sum, head_size, out);
        }
    }
}
