//! The kernels of integer weights, in a file for each instruction set.
//!
//! Every file has the same functions, which give the same bits in every file: integer sums are exact, and float
//! operations follow the order that [`super`] defines. `scalar` is the reference.
//!
//! # Safety
//! For all kernels, the CPU must have the instruction set. The tile and the rows of `linear_int` must have
//! `in_features` elements, and its output must be writable for these rows and `num_lanes` lanes.

// A build for one machine leaves most sets unused (`build.rs`), but they are still type-checked.
#![cfg_attr(not(feature = "every-isa"), allow(dead_code, unused_imports))]

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_quantize;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx_vnni;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod half_tile;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon_i8mm;
pub(super) mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::quantized::GROUP_QUADS;
use trunkline_kernels_core::pack::int::IntFormat;

/// Calls a kernel in the file of an [`Isa`]. A new instruction set needs a file with all kernels, and a line here.
macro_rules! call_isa {
    ($isa:expr, $kernel:ident $(::<$format:ident>)? ($($argument:expr),* $(,)?)) => {
        { use trunkline_kernels_core::isa::IsaKind; match $isa.kind() {
            #[cfg(isa = "scalar")]
            IsaKind::Scalar => $crate::kernels::scalar::$kernel $(::<$format>)?($($argument),*),
            #[cfg(isa = "avx2")]
            IsaKind::Avx2 => $crate::kernels::avx2::$kernel $(::<$format>)?($($argument),*),
            #[cfg(isa = "avx_vnni")]
            IsaKind::AvxVnni => $crate::kernels::avx_vnni::$kernel $(::<$format>)?($($argument),*),
            #[cfg(isa = "avx512")]
            IsaKind::Avx512 | IsaKind::Avx512Bf16 | IsaKind::Amx => $crate::kernels::avx512::$kernel $(::<$format>)?($($argument),*),
            #[cfg(isa = "neon")]
            IsaKind::Neon => $crate::kernels::neon::$kernel $(::<$format>)?($($argument),*),
            #[cfg(isa = "neon_i8mm")]
            IsaKind::NeonI8mm => $crate::kernels::neon_i8mm::$kernel $(::<$format>)?($($argument),*),
            kind => unreachable!("{kind:?}: an `Isa` exists only if the CPU has it"),
        } }
    };
}
pub(super) use call_isa;

#[derive(Debug, Clone, Copy)]
pub(super) struct TileOutput<'a> {
    /// Pointer to lane 0 of row 0.
    pub(super) values: *mut f32,
    pub(super) row_stride: usize,
    /// Number of lanes that are output features, 1 to 16.
    pub(super) num_lanes: usize,
    pub(super) bias: Option<&'a [f32]>,
    /// If set, sums of integer weights continue from those in the output instead of from their start values.
    pub(super) continues: bool,
}

/// Vectors of weights that a group of activations multiplies.
pub(super) const fn run_vectors<F: IntFormat>() -> usize {
    if F::NIBBLES { GROUP_QUADS / 2 } else { GROUP_QUADS }
}

impl TileOutput<'_> {
    /// The destination from row `row` on.
    pub(super) fn row(&self, row: usize) -> Self {
        Self { values: self.values.wrapping_add(row * self.row_stride), ..*self }
    }
}

/// Rows of the input, up to [`PANEL`](super::PANEL). The kernel of AMX takes any number.
#[derive(Debug, Clone, Copy)]
pub(super) struct FloatPanel<'a> {
    pub(super) num_rows: usize,
    pub(super) in_features: usize,
    /// The elements from the first of row 0 to the last of the last row.
    pub(super) values: &'a [f32],
    pub(super) row_stride: usize,
}
