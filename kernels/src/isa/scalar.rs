//! Portable kernels, written for reading: the oracle of the others.

use crate::linear::{FLOAT_RUN, PANEL, QUAD, TILE};
use crate::linear::{FloatPanel, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Tile, group_vectors};
use crate::quantize::{INFINITY_BITS, MAX_QUANT, QuantizedPanel, RowTarget, SMALLEST_MAX};

/// Elements of the largest group.
const MAX_GROUP: usize = 32;

/// Quantises one row in groups of `group`; see [`crate::quantize`].
///
/// # Safety
/// `target` is a row of `x.len()` elements in this group, and nobody else uses it.
pub(crate) unsafe fn quantize_row(x: &[f32], group: usize, target: RowTarget) {
    let mut quants = [0i8; MAX_GROUP];
    for (group_idx, values) in x.chunks_exact(group).enumerate() {
        let quants = &mut quants[..group];
        // As integers, magnitudes order like floats, and NaN above all.
        let max_bits = values.iter().map(|value| value.to_bits() & !(1 << 31)).max().unwrap_or(0);
        let (scale, reciprocal) = scale_and_reciprocal(max_bits);
        let mut sum = 0;
        for (quant, value) in quants.iter_mut().zip(values) {
            // Not finite: the reciprocal is 0, and NaN times 0, as an integer, is 0 too.
            *quant = (value * reciprocal).round_ties_even() as i8;
            sum += i32::from(*quant);
        }
        // SAFETY: by the contract.
        unsafe { target.put(group_idx, scale, sum, quants) };
    }
}

/// Scale of a group whose largest magnitude has these bits, and what its elements are multiplied by.
#[inline]
pub(crate) fn scale_and_reciprocal(max_bits: u32) -> (f32, f32) {
    let max = f32::from_bits(max_bits);
    if max_bits >= INFINITY_BITS {
        (f32::NAN, 0.0)
    } else if max < SMALLEST_MAX {
        (0.0, 0.0)
    } else {
        (max / MAX_QUANT, MAX_QUANT / max)
    }
}

/// One panel times one tile of integer weights.
///
/// # Safety
/// `out` may be written for the panel's rows and `num_lanes` lanes.
pub(crate) unsafe fn linear_int<F: IntFormat>(
    in_features: usize,
    tile: &Tile<'_>,
    panel: &QuantizedPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let mut acc = [[0.0f32; TILE]; PANEL];
    for group in 0..in_features / F::GROUP {
        let weights = unpack_group::<F>(tile, group);
        let scales = unpack_scales::<F>(tile.scales, group);
        let mins = if F::HAS_MIN { unpack_scales::<F>(tile.mins, group) } else { [0.0; TILE] };
        for (row, acc) in acc[..panel.num_rows].iter_mut().enumerate() {
            let meta = group * panel.num_rows + row;
            let mut dot = [i32::from(F::ZERO_POINT) * panel.negated_sums[meta]; TILE];
            for (element, weights) in weights[..F::GROUP].iter().enumerate() {
                let quad = (group * F::GROUP + element) / QUAD;
                let x = i32::from(panel.quants[(quad * panel.num_rows + row) * QUAD + element % QUAD]);
                for (dot, weight) in dot.iter_mut().zip(weights) {
                    *dot += weight * x;
                }
            }
            for (lane, acc) in acc.iter_mut().enumerate() {
                *acc = (scales[lane] * panel.scales[meta]).mul_add(dot[lane] as f32, *acc);
                if F::HAS_MIN {
                    *acc = mins[lane].mul_add(panel.scaled_sums[meta], *acc);
                }
            }
        }
    }
    // SAFETY: by the contract.
    unsafe { store(&acc[..panel.num_rows], out) };
}

/// One panel times one tile of float weights.
///
/// # Safety
/// `out` may be written for the panel's rows and `num_lanes` lanes.
pub(crate) unsafe fn linear_float<F: FloatFormat>(
    tile: &Tile<'_>,
    panel: &FloatPanel<'_>,
    out: &PanelOutput<'_>,
) {
    let mut acc = [[0.0f32; TILE]; PANEL];
    for run_start in (0..panel.in_features).step_by(FLOAT_RUN) {
        let mut parts = [[0.0f32; TILE]; PANEL];
        for element in run_start..(run_start + FLOAT_RUN).min(panel.in_features) {
            let vector = &tile.quants[element * TILE * F::ELEMENT_BYTES..];
            let weights: [f32; TILE] =
                std::array::from_fn(|lane| F::value(&vector[lane * F::ELEMENT_BYTES..]));
            for (row, part) in parts[..panel.num_rows].iter_mut().enumerate() {
                let x = panel.values[row * panel.row_stride + element];
                for (part, weight) in part.iter_mut().zip(weights) {
                    *part = weight.mul_add(x, *part);
                }
            }
        }
        for (acc, part) in acc.as_flattened_mut().iter_mut().zip(parts.as_flattened()) {
            *acc += part;
        }
    }
    // SAFETY: by the contract.
    unsafe { store(&acc[..panel.num_rows], out) };
}

/// Quants of one group as [element][lane].
fn unpack_group<F: IntFormat>(tile: &Tile<'_>, group: usize) -> [[i32; TILE]; MAX_GROUP] {
    let mut quants = [[0; TILE]; MAX_GROUP];
    let bytes = &tile.quants[group * group_vectors::<F>() * TILE * QUAD..];
    for vector in 0..group_vectors::<F>() {
        for lane in 0..TILE {
            for index in 0..QUAD {
                let byte = i32::from(bytes[(vector * TILE + lane) * QUAD + index]);
                let element = vector * QUAD + index;
                if F::NIBBLES {
                    quants[element][lane] = byte & 15;
                    quants[F::GROUP / 2 + element][lane] = byte >> 4;
                } else {
                    quants[element][lane] = byte;
                }
            }
        }
    }
    quants
}

/// Scales (or minima) of one group.
fn unpack_scales<F: IntFormat>(plane: &[u8], group: usize) -> [f32; TILE] {
    let width = if F::HALF_SCALES { 2 } else { 4 };
    std::array::from_fn(|lane| {
        let mut bits = [0; 4];
        bits[..width].copy_from_slice(&plane[(group * TILE + lane) * width..][..width]);
        F::scale_value(u32::from_le_bytes(bits))
    })
}

/// Adds the bias and writes a panel's sums.
///
/// # Safety
/// `out` may be written for the rows of `acc` and its lanes.
unsafe fn store(acc: &[[f32; TILE]], out: &PanelOutput<'_>) {
    for (row, acc) in acc.iter().enumerate() {
        for (lane, acc) in acc[..out.num_lanes].iter().enumerate() {
            let value = out.bias.map_or(*acc, |bias| acc + bias[lane]);
            // SAFETY: by the contract.
            unsafe { out.values.add(row * out.row_stride + lane).write(value) };
        }
    }
}
