//! Portable kernels, written for clarity. They are the reference for the other instruction sets.

use super::{TileOutput, run_vectors};
use crate::PANEL;
use crate::quantized::{GROUP_QUADS, GroupCode, QUANT_GROUP, QuantGroup, QuantizeJob, QuantizedBlock};
use trunkline_kernels_core::pack::codes::scale_bytes;
use trunkline_kernels_core::pack::int::IntFormat;
use trunkline_kernels_core::pack::{QUAD, TILE, Tile};

/// Number of elements in the largest group of weights.
const MAX_GROUP: usize = 32;

/// Quantises rows; see [`crate::quantized`].
///
/// # Safety
/// There are no conditions. The function is `unsafe` only because the kernels of other sets are.
pub(crate) unsafe fn quantize_rows(job: &QuantizeJob<'_>) {
    job.each_row(quantize_row);
}

/// Quantises one row. Returns false if it is not finite.
fn quantize_row(x: &[f32], groups: &mut [QuantGroup]) -> bool {
    let mut is_finite = true;
    for (x, group) in x.chunks_exact(QUANT_GROUP).zip(groups) {
        // The bits of magnitudes compare like their values, with NaN last.
        let magnitude_bits = |x: &f32| x.abs().to_bits().cast_signed();
        let mut quads = [0; GROUP_QUADS];
        for (quad, x) in quads.iter_mut().zip(x.chunks_exact(QUAD)) {
            *quad = x.iter().map(magnitude_bits).fold(0, i32::max);
        }
        let top = quads.into_iter().fold(0, i32::max);
        let top_quad = quads.iter().position(|&quad| quad == top).unwrap_or(0);
        quads[top_quad] = 0;
        let code = GroupCode::new(top, quads.into_iter().fold(0, i32::max));
        is_finite &= code.is_finite;
        let mut quants = [0i32; QUANT_GROUP];
        if code.is_finite {
            for (quant, x) in quants.iter_mut().zip(x) {
                *quant = (x * code.reciprocal).round_ties_even() as i32;
            }
        }
        for (low, quant) in group.low.iter_mut().zip(quants) {
            // Truncation to the low byte gives the remainder after the high byte.
            *low = quant as i8;
        }
        for (high, quant) in group.high.iter_mut().zip(&quants[top_quad * QUAD..]) {
            // |quant| <= 127 + 256 * 127, so the high byte fits.
            *high = ((quant + 128) >> 8) as i8;
        }
        let half_sum = quants[..QUANT_GROUP / 2].iter().sum();
        // The top quad of a group that is not finite does not matter, but must be the same on every set.
        let top_quad = if code.is_finite { top_quad as u32 } else { 0 };
        group.put_numbers(code, top_quad, quants.iter().sum(), half_sum);
    }
    is_finite
}

/// Multiplies rows with one tile of integer weights.
///
/// # Safety
/// The conditions are those of [`super`].
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    block: &QuantizedBlock<'_>,
    out: &TileOutput<'_>,
) {
    for first_row in (0..block.num_rows()).step_by(PANEL) {
        let starts = &block.starts[first_row..block.num_rows().min(first_row + PANEL)];
        let mut acc = [[0.0; TILE]; PANEL];
        acc.iter_mut().zip(starts).for_each(|(acc, &start)| acc.fill(start));
        let acc = &mut acc[..starts.len()];
        if out.continues {
            // SAFETY: the caller guarantees the conditions.
            unsafe { load(acc, &out.row(first_row)) };
        }
        for group in 0..in_features / F::GROUP {
            let weights = unpack_group::<F>(tile, group);
            let scales = unpack_scales::<F>(tile.scales, group);
            let mins = if F::HAS_MIN { unpack_scales::<F>(tile.mins, group) } else { [0.0; TILE] };
            let (x_group, within) = (group * F::GROUP / QUANT_GROUP, group * F::GROUP % QUANT_GROUP);
            for (row, acc) in acc.iter_mut().enumerate() {
                let x = &block.groups[(first_row + row) * block.row_stride + x_group];
                let dots = dots(&weights[..F::GROUP], F::ZERO_POINT, &quants(x)[within..]);
                for (lane, acc) in acc.iter_mut().enumerate() {
                    *acc = (scales[lane] * x.scale).mul_add(dots[lane] as f32, *acc);
                    if F::HAS_MIN {
                        *acc = mins[lane].mul_add(x.part_sum::<F>(within / F::GROUP), *acc);
                    }
                }
            }
        }
        // SAFETY: the caller guarantees the conditions.
        unsafe { store(acc, &out.row(first_row)) };
    }
}

fn quants(group: &QuantGroup) -> [i32; QUANT_GROUP] {
    let mut quants = group.low.map(i32::from);
    for (quant, high) in quants[group.top_quad() * QUAD..].iter_mut().zip(group.high) {
        *quant += 256 * i32::from(high);
    }
    quants
}

/// Computes the dot products of `weights` `[element][lane]`, minus the zero point, and `quants`.
fn dots(weights: &[[i32; TILE]], zero_point: u8, quants: &[i32]) -> [i32; TILE] {
    let mut dots = [0; TILE];
    for (weights, quant) in weights.iter().zip(quants) {
        for (dot, weight) in dots.iter_mut().zip(weights) {
            *dot += (weight - i32::from(zero_point)) * quant;
        }
    }
    dots
}

/// Unpacks the quants of one group as `[element][lane]`.
fn unpack_group<F: IntFormat>(tile: &Tile<'_>, group: usize) -> [[i32; TILE]; MAX_GROUP] {
    let mut quants = [[0; TILE]; MAX_GROUP];
    let (run, within) = (group * F::GROUP / QUANT_GROUP, group * F::GROUP % QUANT_GROUP);
    let vectors = run_vectors::<F>();
    let bytes = &tile.quants[run * vectors * TILE * QUAD..];
    for (element, quants) in quants[..F::GROUP].iter_mut().enumerate() {
        let (quad, index) = ((within + element) / QUAD, element % QUAD);
        for (lane, quant) in quants.iter_mut().enumerate() {
            let byte = i32::from(bytes[(quad % vectors * TILE + lane) * QUAD + index]);
            *quant = match (F::NIBBLES, quad < vectors) {
                (false, _) => byte,
                (true, true) => byte & 15,
                (true, false) => byte >> 4,
            };
        }
    }
    quants
}

/// Unpacks the scales (or minima) of one group.
fn unpack_scales<F: IntFormat>(plane: &[u8], group: usize) -> [f32; TILE] {
    let width = scale_bytes::<F>();
    std::array::from_fn(|lane| {
        let mut bits = [0; 4];
        bits[..width].copy_from_slice(&plane[(group * TILE + lane) * width..][..width]);
        F::scale_value(u32::from_le_bytes(bits))
    })
}

/// Loads the sums of a panel.
///
/// # Safety
/// `out` must be readable for the rows of `acc` and its lanes.
unsafe fn load(acc: &mut [[f32; TILE]], out: &TileOutput<'_>) {
    for (row, acc) in acc.iter_mut().enumerate() {
        for (lane, acc) in acc[..out.num_lanes].iter_mut().enumerate() {
            // SAFETY: the caller guarantees the conditions.
            *acc = unsafe { out.values.add(row * out.row_stride + lane).read() };
        }
    }
}

/// Adds the bias and stores the sums of a panel.
///
/// # Safety
/// `out` must be writable for the rows of `acc` and its lanes.
unsafe fn store(acc: &[[f32; TILE]], out: &TileOutput<'_>) {
    for (row, acc) in acc.iter().enumerate() {
        for (lane, acc) in acc[..out.num_lanes].iter().enumerate() {
            let value = out.bias.map_or(*acc, |bias| acc + bias[lane]);
            // SAFETY: the caller guarantees the conditions.
            unsafe { out.values.add(row * out.row_stride + lane).write(value) };
        }
    }
}
