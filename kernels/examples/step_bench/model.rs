//! A model with the shape of SmolLM2-135M and random weights.

use anyhow::Result;
use trunkline_kernels::executor::Executor;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig, WeightId};
use trunkline_kernels::threads::Pinning;

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_SIZE: usize = 64;
const FFN: usize = 1536;
pub const VOCAB: usize = 49152;
/// The server's block size, which is a tile of attention with int8 K and V.
pub const BLOCK_SIZE: usize = 64;
const MAX_STEP_SEQUENCES: usize = 64;
const NUM_BLOCKS: usize = 2048;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // Xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Adds a matrix of random quants, with scales and minima that keep the activations at a normal magnitude.
fn matrix(
    builder: &mut ProgramBuilder,
    random: &mut Random,
    format: Format,
    shape: [usize; 2],
) -> Result<WeightId> {
    let (scale, min) = if format == Format::Q8_0 { (0.0005f32, None) } else { (0.008, Some(-0.06f32)) };
    let mut bytes: Vec<u8> =
        (0..shape[0] * format.row_bytes(shape[1])?).map(|_| (random.next() >> 24) as u8).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        if let Some(min) = min {
            block[2..4].copy_from_slice(&half::f16::from_f32(min).to_le_bytes());
        }
    }
    Ok(builder.weight(format, bytes, &shape)?)
}

pub fn build(threads: usize, pinning: Pinning, max_step_tokens: usize) -> Result<Executor> {
    let geometry = KvGeometry {
        num_layers: LAYERS,
        num_kv_heads: KV_HEADS,
        head_size: HEAD_SIZE,
        block_size: BLOCK_SIZE,
        dtype: KvDtype::Int8,
    };
    let config = ProgramConfig {
        max_step_tokens,
        max_step_sequences: MAX_STEP_SEQUENCES,
        num_blocks: NUM_BLOCKS,
        geometry,
    };
    let mut b = ProgramBuilder::new(config)?;
    let random = &mut Random(88172645463325252);
    let ones = |n: usize| (0..n).flat_map(|_| 1f32.to_le_bytes()).collect::<Vec<u8>>();
    let inv_freq: Vec<f64> = (0..32).map(|i| 100_000f64.powf(-f64::from(i) / 32.0)).collect();
    let embedding = matrix(&mut b, random, Format::Q8_0, [VOCAB, HIDDEN])?;
    let mut x = b.embedding(embedding)?;
    for layer in 0..LAYERS {
        let mut product = |b: &mut ProgramBuilder, x, out, width| -> Result<_> {
            let weight = matrix(b, random, Format::Q4_1, [out, width])?;
            Ok(b.linear(x, weight, None)?)
        };
        let norm = b.weight(Format::F32, ones(HIDDEN), &[HIDDEN])?;
        let h = b.rms_norm(x, norm, 1e-5)?;
        let q = product(&mut b, h, HEADS * HEAD_SIZE, HIDDEN)?;
        let k = product(&mut b, h, KV_HEADS * HEAD_SIZE, HIDDEN)?;
        let v = product(&mut b, h, KV_HEADS * HEAD_SIZE, HIDDEN)?;
        let q = b.rope(q, &inv_freq, 1.0, HEAD_SIZE)?;
        let k = b.rope(k, &inv_freq, 1.0, HEAD_SIZE)?;
        b.write_kv(layer, k, v)?;
        let a = b.paged_attention(layer, q, 0.125, None, None)?;
        let a = product(&mut b, a, HIDDEN, HEADS * HEAD_SIZE)?;
        x = b.add(x, a)?;
        let norm = b.weight(Format::F32, ones(HIDDEN), &[HIDDEN])?;
        let h = b.rms_norm(x, norm, 1e-5)?;
        let gate = product(&mut b, h, FFN, HIDDEN)?;
        let up = product(&mut b, h, FFN, HIDDEN)?;
        let h = b.silu_mul(gate, up)?;
        let h = product(&mut b, h, HIDDEN, FFN)?;
        x = b.add(x, h)?;
    }
    let norm = b.weight(Format::F32, ones(HIDDEN), &[HIDDEN])?;
    let x = b.rms_norm(x, norm, 1e-5)?;
    b.logits(x, embedding, None)?;
    Ok(b.build(threads, pinning)?)
}
