//! Quantises floats to the blocks of Q8_0 and Q4_1.

use half::f16;

use super::{Format, PackError, dequantize_row};

/// Elements of a block of both formats.
const BLOCK: usize = 32;
/// The parts of a block's range that are tried for Q4_1. A smaller range clips the extremes and has finer steps.
const RANGES: [f32; 6] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8];

/// Quantises rows of `num_columns` floats to Q8_0 or Q4_1.
pub fn quantize_rows(
    stored: Format,
    rows: &[u8],
    to: Format,
    num_columns: usize,
) -> Result<Vec<u8>, PackError> {
    let row_bytes = quantized_row_bytes(stored, to, num_columns)?;
    let stored_bytes = stored.row_bytes(num_columns)?;
    stored.check(rows.len(), rows.len() / stored_bytes, num_columns)?;
    let mut values = vec![0.0; num_columns];
    let mut blocks = vec![0; rows.len() / stored_bytes * row_bytes];
    for (row, out) in rows.chunks_exact(stored_bytes).zip(blocks.chunks_exact_mut(row_bytes)) {
        dequantize_row(stored, row, &mut values)?;
        if !encode(&values, to, out) {
            return Err(PackError::NotFinite { to });
        }
    }
    Ok(blocks)
}

/// Returns the bytes of a quantised row. Fails unless floats are quantised to Q8_0 or Q4_1.
pub fn quantized_row_bytes(from: Format, to: Format, num_columns: usize) -> Result<usize, PackError> {
    let is_float = matches!(from, Format::F32 | Format::F16 | Format::BF16);
    if !is_float || !matches!(to, Format::Q8_0 | Format::Q4_1) {
        return Err(PackError::Quantize { from, to });
    }
    to.row_bytes(num_columns)
}

/// Quantises whole blocks of `values` to `out`. Returns false if a value is not finite or too large for the format.
///
/// Panics if the lengths do not match, or if the format is neither Q8_0 nor Q4_1.
pub fn encode(values: &[f32], format: Format, out: &mut [u8]) -> bool {
    let encode_block = match format {
        Format::Q8_0 => q8_0,
        Format::Q4_1 => q4_1,
        _ => panic!("cannot quantise to {format}"),
    };
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    assert!(rest.is_empty() && out.len() == blocks.len() * format.block_bytes());
    let mut is_good = true;
    for (values, out) in blocks.iter().zip(out.chunks_exact_mut(format.block_bytes())) {
        is_good &= encode_block(values, out) && values.iter().all(|x| x.is_finite());
    }
    is_good
}

/// Divides by the scale that is stored, so that rounding it adds no error.
fn q8_0(values: &[f32; BLOCK], out: &mut [u8]) -> bool {
    let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = f16::from_f32(largest / 127.0);
    let factor = inverse(scale.to_f32());
    out[..2].copy_from_slice(&scale.to_le_bytes());
    for (byte, x) in out[2..].iter_mut().zip(values) {
        *byte = (round((x * factor).clamp(-127.0, 127.0)) as i8).cast_unsigned();
    }
    scale.is_finite()
}

/// A value is `scale * quant + min`.
#[derive(Clone, Copy)]
struct Grid {
    scale: f32,
    min: f32,
}

impl Grid {
    fn quant(self, x: f32, factor: f32) -> f32 {
        round(((x - self.min) * factor).clamp(0.0, 15.0))
    }

    /// The sum of squared errors, each weighted by the size of the value.
    fn error(self, values: &[f32; BLOCK]) -> f32 {
        let factor = inverse(self.scale);
        let squares = values.map(|x| {
            let error = x - (self.quant(x, factor) * self.scale + self.min);
            error * error * x.abs()
        });
        squares.iter().sum()
    }
}

/// Chooses the range with the least error, around the middle of the values or with 0 as one of its numbers. Most
/// weights are small, so a grid that misses 0 is wrong about many.
fn q4_1(values: &[f32; BLOCK], out: &mut [u8]) -> bool {
    let low = values.iter().fold(f32::INFINITY, |low, x| low.min(*x));
    let high = values.iter().fold(f32::NEG_INFINITY, |high, x| high.max(*x));
    let middle = 0.5 * (low + high);
    let scales = RANGES.map(|part| f16::from_f32((high - low) * part / 15.0).to_f32());
    let grids: [Grid; 2 * RANGES.len()] = std::array::from_fn(|index| {
        let scale = scales[index / 2];
        let min = middle - 7.5 * scale;
        let has_zero = index % 2 == 1;
        let min = if has_zero { round((min * inverse(scale)).clamp(-15.0, 0.0)) * scale } else { min };
        Grid { scale, min: f16::from_f32(min).to_f32() }
    });
    let errors = grids.map(|grid| grid.error(values));
    // The first of equal errors, which is that of the largest range.
    let best = (1..grids.len()).fold(0, |best, at| if errors[at] < errors[best] { at } else { best });
    let (grid, factor) = (grids[best], inverse(grids[best].scale));
    out[..2].copy_from_slice(&f16::from_f32(grid.scale).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(grid.min).to_le_bytes());
    for (index, byte) in out[4..].iter_mut().enumerate() {
        let (low, high) = (grid.quant(values[index], factor), grid.quant(values[index + 16], factor));
        *byte = low as u8 | ((high as u8) << 4);
    }
    grid.scale.is_finite() && grid.min.is_finite()
}

fn inverse(scale: f32) -> f32 {
    if scale > 0.0 { 1.0 / scale } else { 0.0 }
}

/// Rounds a number between -2^22 and 2^22, ties to even. `f32::round_ties_even` is a call for each number on baseline
/// x86-64; this is two additions, which become vectors.
fn round(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC) - MAGIC
}
