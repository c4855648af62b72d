//! Portable kernels, written for reading: the oracle of the others.

use crate::linear::{FLOAT_RUN, QUAD, TILE};
use crate::linear::{FloatPanel, PanelOutput};
use crate::pack::Tile;
use crate::pack::float::FloatFormat;
use crate::pack::int::IntFormat;
use crate::quantize::{INFINITY_BITS, MAX_QUANT, QuantizedPanel, RowTarget, SMALLEST_MAX};

/// Quantises one row in groups of `group`; see [`crate::quantize`].
///
/// # Safety
/// `target` is a row of `x.len()` elements in this group, and nobody else uses it.
pub(crate) unsafe fn quantize_row(x: &[f32], group: usize, target: RowTarget) {
    let mut quants = [0i8; 32];
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
    for row in 0..panel.num_rows {
        for lane in 0..out.num_lanes {
            let mut acc = 0.0f32;
            for group in 0..in_features / F::GROUP {
                let meta = group * panel.num_rows + row;
                let mut dot = i32::from(F::ZERO_POINT) * panel.negated_sums[meta];
                for element in 0..F::GROUP {
                    let quad = (group * F::GROUP + element) / QUAD;
                    let x = panel.quants[(quad * panel.num_rows + row) * QUAD + element % QUAD];
                    dot += i32::from(quant::<F>(tile, group, lane, element)) * i32::from(x);
                }
                let scale = F::scale_value(scale_bits::<F>(tile.scales, group, lane));
                acc = (scale * panel.scales[meta]).mul_add(dot as f32, acc);
                if F::HAS_MIN {
                    let min = F::scale_value(scale_bits::<F>(tile.mins, group, lane));
                    acc = min.mul_add(panel.scaled_sums[meta], acc);
                }
            }
            // SAFETY: by the contract.
            unsafe { put(out, row, lane, acc) };
        }
    }
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
    for row in 0..panel.num_rows {
        let x = &panel.values[row * panel.row_stride..][..panel.in_features];
        for lane in 0..out.num_lanes {
            let mut acc = 0.0f32;
            for (run_idx, run) in x.chunks(FLOAT_RUN).enumerate() {
                let mut part = 0.0f32;
                for (index, x) in run.iter().enumerate() {
                    let element = run_idx * FLOAT_RUN + index;
                    let weight = F::value(&tile.quants[(element * TILE + lane) * F::ELEMENT_BYTES..]);
                    part = weight.mul_add(*x, part);
                }
                acc += part;
            }
            // SAFETY: by the contract.
            unsafe { put(out, row, lane, acc) };
        }
    }
}

/// Element `element` of group `group` of output feature `lane`.
fn quant<F: IntFormat>(tile: &Tile<'_>, group: usize, lane: usize, element: usize) -> u8 {
    let half = F::GROUP / 2;
    let (vectors, within) =
        if F::NIBBLES { (half / QUAD, element % half) } else { (F::GROUP / QUAD, element) };
    let vector = group * vectors + within / QUAD;
    let byte = tile.quants[(vector * TILE + lane) * QUAD + within % QUAD];
    match (F::NIBBLES, element < half) {
        (false, _) => byte,
        (true, true) => byte & 15,
        (true, false) => byte >> 4,
    }
}

fn scale_bits<F: IntFormat>(plane: &[u8], group: usize, lane: usize) -> u32 {
    let at = group * TILE + lane;
    if F::HALF_SCALES {
        u32::from(u16::from_le_bytes([plane[at * 2], plane[at * 2 + 1]]))
    } else {
        u32::from_le_bytes([plane[at * 4], plane[at * 4 + 1], plane[at * 4 + 2], plane[at * 4 + 3]])
    }
}

/// # Safety
/// `out` may be written at `row` and `lane`.
unsafe fn put(out: &PanelOutput<'_>, row: usize, lane: usize, acc: f32) {
    let value = out.bias.map_or(acc, |bias| acc + bias[lane]);
    // SAFETY: by the contract.
    unsafe { out.values.add(row * out.row_stride + lane).write(value) };
}
