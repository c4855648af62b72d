//! The entry points of attention, which choose the crate that is compiled for a pool's dtype.
//! `trunkline-kernels-attention` describes the order of operations.

pub use trunkline_kernels_attention::{
    Item, Rows, SEGMENT_SIZE, Scratch, Target, Window, num_segments, rows_per_item, state_size,
};
use trunkline_kernels_attention_float as float;
use trunkline_kernels_attention_int as int;

use crate::isa::Isa;
use crate::kv_pool::{KvDtype, KvGeometry, KvView};

/// Computes the attention of one item.
///
/// Row 0 of `queries`, of shape `[H * D]`, is the item's first row. `scratch` must be made for this head size and
/// number of query heads.
///
/// # Panics
/// Panics if a block, layer or head of the item does not exist, or if it has more rows than [`rows_per_item`].
///
/// # Safety
/// `queries` and `target` must point to all rows of the item. During the call, no other thread may write `queries`,
/// read or write `target`, or write K and V of the item's layer and visible positions.
pub unsafe fn attend(
    isa: Isa,
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    // SAFETY: the conditions are the same.
    unsafe {
        match kv.geometry().dtype {
            KvDtype::Int8 | KvDtype::Int4 => int::attend(isa, kv, item, queries, scratch, target),
            KvDtype::F16 | KvDtype::Bf16 => float::attend(isa, kv, item, queries, scratch, target),
        }
    }
}

/// Merges the states that [`attend`] computed for the parts of an item, in order, and writes the finished rows.
/// `item` has all segments.
///
/// # Safety
/// `states` must hold the state of every segment and row of the item. The conditions for `out` are those of `target` in
/// [`attend`].
pub unsafe fn finish_states(
    isa: Isa,
    geometry: &KvGeometry,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    // SAFETY: the conditions are the same.
    unsafe {
        match geometry.dtype {
            KvDtype::Int8 | KvDtype::Int4 => int::finish_states(isa, geometry, item, states, scratch, out),
            KvDtype::F16 | KvDtype::Bf16 => float::finish_states(isa, geometry, item, states, scratch, out),
        }
    }
}
