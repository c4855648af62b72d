//! Attention to K and V of integers, int8 and int4, compiled for each instruction set.
//!
//! The code is that of `trunkline-kernels-attention`. Instantiations of its functions take a large part of a build, so
//! two crates divide them and are compiled side by side: this one and `trunkline-kernels-attention-float`. They are
//! divided by dtype, not by instruction set, because a local build has only one set. It uses only the generic code and
//! `trunkline-kernels-core`; `trunkline-kernels` uses it.
//!
//! Begin with [`attend`].

use trunkline_kernels_attention::{Int4, Int8, Item, Rows, Scratch, Target, attend_as, finish_as};
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::kv_pool::{KvDtype, KvGeometry, KvView};

/// Computes the attention of one item of a pool of integers.
///
/// # Panics
/// Panics if the pool has another dtype, and as [`attend_as`] does.
///
/// # Safety
/// The conditions are those of [`attend_as`].
pub unsafe fn attend(
    isa: Isa,
    kv: &KvView<'_>,
    item: &Item<'_>,
    queries: Rows<*const f32>,
    scratch: &mut Scratch,
    target: Target,
) {
    // Separate instantiations: support for windows and soft caps would slow down other layers by up to 5 %.
    // SAFETY: the conditions are the same.
    unsafe {
        match (kv.geometry().dtype, item.is_local()) {
            (KvDtype::Int8, false) => attend_as::<Int8<false>>(isa, kv, item, queries, scratch, target),
            (KvDtype::Int8, true) => attend_as::<Int8<true>>(isa, kv, item, queries, scratch, target),
            (KvDtype::Int4, false) => attend_as::<Int4<false>>(isa, kv, item, queries, scratch, target),
            (KvDtype::Int4, true) => attend_as::<Int4<true>>(isa, kv, item, queries, scratch, target),
            (dtype, _) => unreachable!("a pool of {dtype}"),
        }
    }
}

/// Merges the states of an item's parts and writes the finished rows; see [`finish_as`].
///
/// # Panics
/// Panics if the pool has another dtype.
///
/// # Safety
/// The conditions are those of [`finish_as`].
pub unsafe fn finish_states(
    isa: Isa,
    geometry: &KvGeometry,
    item: &Item<'_>,
    states: *const f32,
    scratch: &mut Scratch,
    out: Rows<*mut f32>,
) {
    let size = geometry.value_size();
    // SAFETY: the conditions are the same.
    unsafe {
        match geometry.dtype {
            KvDtype::Int8 => finish_as::<Int8<false>>(isa, size, item, states, scratch, out),
            KvDtype::Int4 => finish_as::<Int4<false>>(isa, size, item, states, scratch, out),
            dtype => unreachable!("a pool of {dtype}"),
        }
    }
}
