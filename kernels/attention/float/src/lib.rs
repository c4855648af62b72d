//! Attention to K and V of 16-bit floats, f16 and bf16, and to latents, compiled for each instruction set.
//!
//! The code is that of `trunkline-kernels-attention`. Instantiations of its functions take a large part of a build, so
//! two crates divide them and are compiled side by side: this one and `trunkline-kernels-attention-int`, which says why
//! they are divided by dtype. It uses only the generic code and `trunkline-kernels-core`; `trunkline-kernels` uses it.
//!
//! Begin with [`attend`].

use trunkline_kernels_attention::{Float, Item, Latent, Rows, Scratch, Target, attend_as, finish_as};
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::kv_pool::{KvDtype, KvGeometry, KvView};
use trunkline_kernels_core::pack::float::{Bf16, F16};

/// Computes the attention of one item of a pool of floats.
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
        match (kv.geometry().dtype, kv.geometry().latent_size.is_some(), item.is_local()) {
            (KvDtype::F16, true, _) => attend_as::<Latent<F16>>(isa, kv, item, queries, scratch, target),
            (KvDtype::Bf16, true, _) => attend_as::<Latent<Bf16>>(isa, kv, item, queries, scratch, target),
            (KvDtype::F16, false, false) => {
                attend_as::<Float<F16, false>>(isa, kv, item, queries, scratch, target)
            }
            (KvDtype::F16, false, true) => {
                attend_as::<Float<F16, true>>(isa, kv, item, queries, scratch, target)
            }
            (KvDtype::Bf16, false, false) => {
                attend_as::<Float<Bf16, false>>(isa, kv, item, queries, scratch, target)
            }
            (KvDtype::Bf16, false, true) => {
                attend_as::<Float<Bf16, true>>(isa, kv, item, queries, scratch, target)
            }
            (dtype, _, _) => unreachable!("a pool of {dtype}"),
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
            // All schemes of floats finish alike.
            KvDtype::F16 => finish_as::<Float<F16, false>>(isa, size, item, states, scratch, out),
            KvDtype::Bf16 => finish_as::<Float<Bf16, false>>(isa, size, item, states, scratch, out),
            dtype => unreachable!("a pool of {dtype}"),
        }
    }
}
