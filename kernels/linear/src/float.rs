//! Products with float weights, written once for all instruction sets.

use super::PANEL;
use super::bf16::has_pairs;
#[cfg(all(target_arch = "x86_64", isa = "avx512"))]
use super::kernels::avx512_bf16;
use super::kernels::{FloatPanel, TileOutput};
use trunkline_kernels_core::isa::Isa;
use trunkline_kernels_core::pack::float::{FloatFormat, RUN};
use trunkline_kernels_core::pack::{TILE, Tile};
use trunkline_kernels_core::vector::{LANES, Lanes, simd_entry};

/// Distance in bytes at which weights are prefetched, the same as in the kernels of integer weights.
const PREFETCH_BYTES: usize = 8 << 10;

const _: () = assert!(LANES == TILE);

#[inline(always)]
unsafe fn linear_float_generic<L: Lanes, F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    assert!(tile.quants.len() >= F::num_vectors(panel.in_features) * TILE * F::LANE_BYTES);
    assert!(panel.values.len() >= (panel.num_rows - 1) * panel.row_stride + panel.in_features);
    // The most rows whose sums fit in registers.
    let most = match (L::IS_WIDE, L::IS_VECTOR) {
        (true, _) => PANEL,
        (_, true) => 3,
        _ => 1,
    };
    let mut first = 0;
    while first < panel.num_rows {
        let rows = most.min(panel.num_rows - first);
        // SAFETY: the lengths are checked; the caller guarantees the output.
        unsafe {
            match rows {
                8 if L::IS_WIDE => multiply_rows::<L, F, 8>(tile, panel, first, out),
                7 if L::IS_WIDE => multiply_rows::<L, F, 7>(tile, panel, first, out),
                6 if L::IS_WIDE => multiply_rows::<L, F, 6>(tile, panel, first, out),
                5 if L::IS_WIDE => multiply_rows::<L, F, 5>(tile, panel, first, out),
                4 if L::IS_WIDE => multiply_rows::<L, F, 4>(tile, panel, first, out),
                3 if L::IS_VECTOR => multiply_rows::<L, F, 3>(tile, panel, first, out),
                2 if L::IS_VECTOR => multiply_rows::<L, F, 2>(tile, panel, first, out),
                _ => multiply_rows::<L, F, 1>(tile, panel, first, out),
            }
        }
        first += rows;
    }
}

#[inline(always)]
unsafe fn multiply_rows<L: Lanes, F: FloatFormat, const R: usize>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    first: usize,
    out: &TileOutput<'_>,
) {
    // SAFETY: elements and rows are within the checked lengths, and the caller guarantees the output.
    unsafe {
        let x = panel.values.as_ptr().add(first * panel.row_stride);
        let mut sums = [L::splat(0.0); R];
        for run in (0..panel.in_features).step_by(RUN) {
            let mut halves = [[L::splat(0.0); R]; 2];
            for (half, parts) in halves.iter_mut().enumerate() {
                let start = run + half * (RUN / 2);
                for element in start..(start + RUN / 2).min(panel.in_features) {
                    let quants = tile.quants.as_ptr();
                    L::prefetch_near(quants.wrapping_add(F::offset(element) + PREFETCH_BYTES));
                    let weight = F::load_element::<L>(quants, element);
                    for (row, part) in parts.iter_mut().enumerate() {
                        *part = weight.fma(L::splat(*x.add(row * panel.row_stride + element)), *part);
                    }
                }
            }
            let [first, second] = halves;
            for (sum, (first, second)) in sums.iter_mut().zip(first.into_iter().zip(second)) {
                *sum = sum.add(first.add(second));
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            let value = match out.bias {
                Some(bias) => sum.add(L::load_first(bias.as_ptr(), out.num_lanes)),
                None => sum,
            };
            value.store_first(out.values.add((first + row) * out.row_stride), out.num_lanes);
        }
    }
}

/// Multiplies a panel with one tile of float weights. If the format rounds its input, the panel must be rounded for the
/// same instruction set.
///
/// # Safety
/// `out` must be writable for the panel's rows and its lanes.
pub(super) unsafe fn linear_float<F: FloatFormat>(
    isa: Isa,
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &TileOutput<'_>,
) {
    #[cfg(all(target_arch = "x86_64", isa = "avx512"))]
    if F::ROUNDS_INPUT && has_pairs(isa, panel.in_features) {
        // SAFETY: the conditions are the same, and the `Isa` proves that the CPU has its features.
        return unsafe { avx512_bf16::linear_bf16(tile, panel, out) };
    }
    debug_assert!(!(F::ROUNDS_INPUT && has_pairs(isa, panel.in_features)), "pairs are multiplied above");
    // SAFETY: the conditions are the same.
    unsafe { multiply_floats::<F>(isa, tile, panel, out) }
}

simd_entry! {
    unsafe fn multiply_floats<F: FloatFormat> = linear_float_generic(
        tile: &Tile<'_>,
        panel: &FloatPanel<'_>,
        out: &TileOutput<'_>,
    );
}
