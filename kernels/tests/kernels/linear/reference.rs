//! A second implementation of the formats, element by element from their specification (ggml-common.h, ggml-quants.c).

use half::{bf16, f16};
use trunkline_kernels::pack::{Format, dequantize_row};

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_bits(u16::from(block[at]) | u16::from(block[at + 1]) << 8).to_f32()
}

fn float_at(block: &[u8], at: usize) -> f32 {
    f32::from_le_bytes(block[at..at + 4].try_into().unwrap())
}

/// Returns the scale and minimum of sub-block `j` of a K block, like `get_scale_min_k4`.
fn k_pair(scales: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (scales[j] % 64, scales[j + 4] % 64)
    } else {
        (scales[j + 4] % 16 + 16 * (scales[j - 4] / 64), scales[j + 4] / 16 + 16 * (scales[j] / 64))
    };
    (f32::from(scale), f32::from(min))
}

/// Returns the offsets of the binary16 numbers (scales and minima) in a block of an integer format.
pub fn halves(format: Format) -> &'static [usize] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::MXFP4 | Format::AFFINE4 | Format::AFFINE8 => &[],
        // The scale is in the upper nibbles of four words.
        Format::IQ1_M => &[],
        Format::Q8_0 | Format::Q4_0 | Format::Q5_0 | Format::IQ4_NL | Format::IQ4_XS => &[0],
        Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::IQ1_S => &[0],
        Format::Q2_K => &[80, 82],
        Format::TQ1_0 => &[52],
        Format::TQ2_0 => &[64],
        Format::Q3_K => &[108],
        Format::Q4_1 | Format::Q5_1 | Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q6_K => &[208],
    }
}

pub fn element(format: Format, row: &[u8], k: usize) -> f32 {
    let block = &row[k / format.block_elements() * format.block_bytes()..][..format.block_bytes()];
    let k = k % format.block_elements();
    let nibble = |byte: u8, high: bool| if high { byte / 16 } else { byte % 16 };
    match format {
        Format::F32 => f32::from_le_bytes(block.try_into().unwrap()),
        Format::F16 => half_at(block, 0),
        Format::BF16 => bf16::from_bits(u16::from_le_bytes(block.try_into().unwrap())).to_f32(),
        Format::Q8_0 => f32::from(block[2 + k] as i8) * half_at(block, 0),
        Format::Q4_0 => (f32::from(nibble(block[2 + k % 16], k >= 16)) - 8.0) * half_at(block, 0),
        Format::Q4_1 => f32::from(nibble(block[4 + k % 16], k >= 16)) * half_at(block, 0) + half_at(block, 2),
        Format::Q5_0 => {
            let fifth = (block[2 + k / 8] >> (k % 8)) % 2;
            (f32::from(nibble(block[6 + k % 16], k >= 16) + 16 * fifth) - 16.0) * half_at(block, 0)
        }
        Format::Q5_1 => {
            let fifth = (block[4 + k / 8] >> (k % 8)) % 2;
            f32::from(nibble(block[8 + k % 16], k >= 16) + 16 * fifth) * half_at(block, 0) + half_at(block, 2)
        }
        Format::Q4_K => {
            let (scale, min) = k_pair(&block[4..16], k / 32);
            let quant = nibble(block[16 + k / 64 * 32 + k % 32], k % 64 >= 32);
            (half_at(block, 0) * scale) * f32::from(quant) - half_at(block, 2) * min
        }
        Format::Q5_K => {
            let (scale, min) = k_pair(&block[4..16], k / 32);
            let fifth = block[16 + k % 32] >> (k / 32) & 1;
            let quant = nibble(block[48 + k / 64 * 32 + k % 32], k % 64 >= 32) + 16 * fifth;
            (half_at(block, 0) * scale) * f32::from(quant) - half_at(block, 2) * min
        }
        Format::Q3_K => {
            let (part, run, group) = (k / 128, k % 128 / 32, k / 16);
            let pair = block[32 + part * 32 + k % 32] >> (2 * run) & 3;
            let is_upper = block[k % 32] >> (4 * part + run) & 1 == 1;
            let scale = nibble(block[96 + group % 8], group >= 8)
                + 16 * (block[104 + group % 4] >> (group / 4 * 2) & 3);
            half_at(block, 108)
                * (f32::from(scale) - 32.0)
                * (f32::from(pair) - if is_upper { 0.0 } else { 4.0 })
        }
        Format::IQ4_NL => level(nibble(block[2 + k % 16], k >= 16)) * half_at(block, 0),
        Format::IQ4_XS => {
            let group = k / 32;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * group) & 3;
            let scale = f32::from(nibble(block[4 + group / 2], group % 2 == 1)) + 16.0 * f32::from(high);
            half_at(block, 0) * (scale - 32.0) * level(nibble(block[8 + group * 16 + k % 16], k % 32 >= 16))
        }
        Format::MXFP4 => e2m1(nibble(block[1 + k % 16], k >= 16)) * 2f32.powi(i32::from(block[0]) - 127),
        Format::AFFINE4 => {
            f32::from(nibble(block[8 + k % 16], k >= 16)) * float_at(block, 0) + float_at(block, 4)
        }
        Format::AFFINE8 => f32::from(block[8 + k] as i8) * float_at(block, 0) + float_at(block, 4),
        Format::Q6_K => {
            let (part, within) = (k / 128, k % 128);
            let low = nibble(block[part * 64 + within % 64], within >= 64);
            let high = block[128 + part * 32 + within % 32] >> (2 * (within / 32)) & 3;
            let scale = half_at(block, 208) * f32::from(block[192 + k / 16] as i8);
            scale * (f32::from(low + 16 * high) - 32.0)
        }
        Format::Q2_K => {
            let pair = block[16 + k / 128 * 32 + k % 32] >> (2 * (k % 128 / 32)) & 3;
            let (scale, min) = (nibble(block[k / 16], false), nibble(block[k / 16], true));
            half_at(block, 80) * f32::from(scale) * f32::from(pair) - half_at(block, 82) * f32::from(min)
        }
        Format::TQ2_0 => {
            let pair = block[k / 128 * 32 + k % 32] >> (2 * (k % 128 / 32)) & 3;
            half_at(block, 64) * (f32::from(pair) - 1.0)
        }
        // The server's tests compare these with the `gguf` package, which has the grids.
        Format::TQ1_0
        | Format::IQ1_S
        | Format::IQ1_M
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S => {
            let mut values = [0.0; 256];
            dequantize_row(format, block, &mut values).unwrap();
            values[k]
        }
    }
}

/// A level of IQ4_NL, and a number of E2M1 (OCP Microscaling Formats, 5.3.3).
fn level(index: u8) -> f32 {
    let levels = [-127i8, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    f32::from(levels[usize::from(index)])
}

fn e2m1(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 1 & 3), f32::from(bits & 1));
    let magnitude = match exponent {
        0 => mantissa / 2.0,
        _ => (1.0 + mantissa / 2.0) * 2f32.powi(exponent - 1),
    };
    // ggml has no negative zero.
    if bits & 8 == 0 || magnitude == 0.0 { magnitude } else { -magnitude }
}

/// Returns a row that is rounded to bfloat16 in f64, and half a step of each element.
pub fn rounded(x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let values = x.iter().map(|x| f64::from(bf16::from_f32(*x).to_f32())).collect();
    let half_steps = x.iter().map(|x| f64::from(x.abs()) * 2f64.powi(-8)).collect();
    (values, half_steps)
}

/// Returns a quantised row of activations in f64, and half a quantisation step of each element.
pub fn quantized(x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let mut values = Vec::new();
    let mut half_steps = Vec::new();
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    for group in x.chunks(32) {
        // Sort the quads by descending largest magnitude. The first gets 16 bits, and the second determines the scale.
        let mut quads: Vec<f32> = group.chunks(4).map(largest).collect();
        quads.sort_by(|a, b| b.total_cmp(a));
        let needed = (quads[1] * (1.0 / 127.0)).max(quads[0] * (1.0 / 32639.0)).max(2f32.powi(-100));
        // The smallest number with a significand of 4 bits that is not smaller.
        let power = 2f32.powf(needed.log2().floor());
        let scale = (needed / power * 8.0).ceil() / 8.0 * power;
        for x in group {
            values.push(f64::from((x * (1.0 / scale)).round_ties_even()) * f64::from(scale));
            half_steps.push(0.5 * f64::from(scale));
        }
    }
    (values, half_steps)
}
