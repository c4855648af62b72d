//! Portable kernels, written for reading: the oracle of the others.

use crate::linear::{FLOAT_RUN, PANEL, QUAD, TILE};
use crate::linear::{FloatPanel, PanelOutput};
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::pack::{Tile, group_vectors};
use crate::quantize::{
    GroupCode, QUANT_GROUP, QuantizedPanel, RowTarget, STEPS_BELOW_ZERO, SUM_GROUP, order_key,
};

/// Elements of the largest group of weights.
const MAX_GROUP: usize = 32;

/// Quantises one row; see [`crate::quantize`].
///
/// # Safety
/// `target` is a row of `x.len()` elements, and nobody else uses it.
pub(crate) unsafe fn quantize_row(x: &[f32], target: RowTarget) {
    for (group_idx, values) in x.chunks_exact(QUANT_GROUP).enumerate() {
        let keys = || values.iter().map(|value| order_key(value.to_bits().cast_signed()));
        let code = GroupCode::new(keys().min().unwrap_or(0), keys().max().unwrap_or(0));
        let mut quants = [0i8; QUANT_GROUP];
        let mut sum = 0;
        if code.reciprocal != 0.0 {
            for (quant, value) in quants.iter_mut().zip(values) {
                let steps = ((value - code.min) * code.reciprocal).round_ties_even() as i32;
                // Steps are 0 to 255.
                *quant = (steps - STEPS_BELOW_ZERO) as i8;
                sum += i32::from(*quant);
            }
        }
        // SAFETY: by the contract.
        unsafe { target.put(group_idx, code, sum, &quants) };
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
    let halves = F::GROUP / QUANT_GROUP;
    let mut acc = [[0.0f32; TILE]; PANEL];
    for group in 0..in_features / F::GROUP {
        let weights = unpack_group::<F>(tile, group);
        let sum = |half: usize| weight_sums(&weights[half * QUANT_GROUP..][..QUANT_GROUP], F::ZERO_POINT);
        let sums: [[f32; TILE]; 2] =
            std::array::from_fn(|half| if half < halves { sum(half) } else { [0.0; TILE] });
        let scales = unpack_scales::<F>(tile.scales, group);
        let mins = if F::HAS_MIN { unpack_scales::<F>(tile.mins, group) } else { [0.0; TILE] };
        for (row, acc) in acc[..panel.num_rows].iter_mut().enumerate() {
            let mut inner = [0.0; TILE];
            for (half, weights) in weights[..F::GROUP].chunks_exact(QUANT_GROUP).enumerate() {
                let x_group = group * halves + half;
                let meta = x_group * panel.num_rows + row;
                let (scale, offset) = (panel.scales[meta], panel.offsets[meta]);
                let dots = half_dots(weights, F::ZERO_POINT, panel, x_group, row);
                for (lane, inner) in inner.iter_mut().enumerate() {
                    let sum = sums[half][lane];
                    let start = if half == 0 { offset * sum } else { offset.mul_add(sum, *inner) };
                    *inner = scale.mul_add(dots[lane] as f32, start);
                }
            }
            for (lane, acc) in acc.iter_mut().enumerate() {
                *acc = scales[lane].mul_add(inner[lane], *acc);
                if F::HAS_MIN {
                    let sum = panel.sums[group * F::GROUP / SUM_GROUP * panel.num_rows + row];
                    *acc = mins[lane].mul_add(sum, *acc);
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

/// Weights of one group of activations, less the zero point, times the quants of row `row`.
fn half_dots(
    weights: &[[i32; TILE]],
    zero_point: u8,
    panel: &QuantizedPanel<'_>,
    x_group: usize,
    row: usize,
) -> [i32; TILE] {
    let mut dots = [i32::from(zero_point) * panel.negated_sums[x_group * panel.num_rows + row]; TILE];
    for (element, weights) in weights.iter().enumerate() {
        let quad = (x_group * QUANT_GROUP + element) / QUAD;
        let x = i32::from(panel.quants[(quad * panel.num_rows + row) * QUAD + element % QUAD]);
        for (dot, weight) in dots.iter_mut().zip(weights) {
            *dot += weight * x;
        }
    }
    dots
}

/// Sums of the weights of one group of activations, less the zero point; exact in f32.
fn weight_sums(weights: &[[i32; TILE]], zero_point: u8) -> [f32; TILE] {
    let sum = |lane: usize| weights.iter().map(|weights| weights[lane] - i32::from(zero_point)).sum::<i32>();
    std::array::from_fn(|lane| sum(lane) as f32)
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
