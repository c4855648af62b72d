//! Attention over keys whose last elements are the value, as 16-bit floats, computed in f32 ("latent attention",
//! arXiv:2405.04434).
//!
//! A key is a row, because it is also a value. Step 1 of [`super::float`] is therefore different: each lane adds up the
//! products of every 16th element in order, with fused multiply-adds, and the lanes are added by the tree of
//! [`Lanes::sum`](trunkline_kernels_core::vector::Lanes::sum). The other steps are the same.
//!
//! All query heads share one key, so a tile is read once for many rows, and the sums over lanes, one for each row and
//! position, cost little beside the products of whole keys.

use std::marker::PhantomData;

use super::float::{Tile, attend_groups, divide_row};
use super::{Item, Rows, Scheme, Scratch};
use trunkline_kernels_core::kv_pool::KvView;
use trunkline_kernels_core::ops::exp::exp;
use trunkline_kernels_core::pack::float::FloatFormat;
use trunkline_kernels_core::vector::ByteLanes;

/// The scheme for keys with elements `E`.
pub struct Latent<E>(PhantomData<E>);

impl<E: FloatFormat> Scheme for Latent<E> {
    #[inline(always)]
    unsafe fn pack_queries<L: ByteLanes>(
        kv: &KvView<'_>,
        item: &Item<'_>,
        queries: Rows<*const f32>,
        scratch: &mut Scratch,
    ) {
        let (head_size, stride) = (kv.geometry().head_size, kv.geometry().padded_head_size());
        for (row, packed) in scratch.queries.chunks_exact_mut(stride).take(item.rows()).enumerate() {
            // SAFETY: the caller guarantees the conditions of the callee.
            let query = unsafe { item.query(row, head_size, queries) };
            packed.iter_mut().zip(query).for_each(|(packed, q)| *packed = q * item.scale);
            packed[head_size..].fill(0.0);
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
            keys: kv.keys(item.layer, block_id, 0).cast(),
            values: kv.values(item.layer, block_id, 0).cast(),
            start: block * g.block_size,
            query_stride: g.padded_head_size(),
            value_stride: g.padded_head_size(),
            stride: g.padded_value_size(),
            block_size: g.block_size,
        };
        // SAFETY: the tile points to a block of the pool, which is not written during the call.
        unsafe { attend_groups::<L, E, true, true>(&tile, item, scratch) };
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
