//! Seeded random numbers and weights.

use half::f16;
use trunkline_kernels::pack::{Format, PackedWeight};

use crate::linear::reference;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns a uniform number in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Returns a roughly normal number with a standard deviation of 1.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.float()).sum::<f32>() / 2.0
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Returns activations that are mostly small with a few outliers, as in a real model.
    pub fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| if self.below(50) == 0 { 40.0 * self.float() } else { self.float() }).collect()
    }

    /// Returns the bytes of a weight `[out_features, in_features]` with random quants and scales of a normal magnitude.
    pub fn weight(&mut self, format: Format, out_features: usize, in_features: usize) -> Vec<u8> {
        let num_bytes = format.row_bytes(in_features).unwrap() * out_features;
        match format {
            Format::F32 => (0..num_bytes / 4).flat_map(|_| self.float().to_le_bytes()).collect(),
            Format::F16 => {
                (0..num_bytes / 2).flat_map(|_| f16::from_f32(self.float()).to_le_bytes()).collect()
            }
            Format::BF16 => {
                (0..num_bytes / 2).flat_map(|_| half::bf16::from_f32(self.float()).to_le_bytes()).collect()
            }
            _ => {
                let mut bytes: Vec<u8> = (0..num_bytes).map(|_| self.next() as u8).collect();
                for block in bytes.chunks_exact_mut(format.block_bytes()) {
                    for &at in reference::halves(format) {
                        block[at..at + 2].copy_from_slice(&f16::from_f32(0.1 * self.float()).to_le_bytes());
                    }
                    if matches!(format, Format::AFFINE4 | Format::AFFINE8) {
                        for at in [0, 4] {
                            block[at..at + 4].copy_from_slice(&(0.1 * self.float()).to_le_bytes());
                        }
                    }
                    if format == Format::IQ1_M {
                        let scale = f16::from_f32(0.1 * self.float()).to_bits();
                        for index in 0..4 {
                            block[49 + 2 * index] &= 15;
                            block[49 + 2 * index] |= (scale >> (4 * index) & 15) as u8 * 16;
                        }
                    }
                    if format == Format::MXFP4 {
                        // Scales of 2^-12 to 2^-5, as models have them.
                        block[0] = 116 + block[0] % 8;
                    }
                }
                bytes
            }
        }
    }

    pub fn packed(&mut self, format: Format, out_features: usize, in_features: usize) -> PackedWeight {
        let bytes = self.weight(format, out_features, in_features);
        PackedWeight::pack(format, &bytes, out_features, in_features).unwrap()
    }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}
