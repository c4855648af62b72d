//! Models with the shapes of known ones and random weights.

use anyhow::Result;
use trunkline_kernels::executor::Executor;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};
use trunkline_kernels::ops::route::Rule;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{Experts, ProgramBuilder, ProgramConfig, WeightId};
use trunkline_kernels::threads::Pinning;

/// The sizes of a model.
pub struct Shape {
    pub name: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_size: usize,
    /// Features inside the MLP, or inside an expert.
    inner: usize,
    /// The number of experts, and how many a token uses.
    experts: Option<(usize, usize)>,
    pub vocab: usize,
}

/// Qwen3-30B-A3B cut to two layers and a small vocabulary, and a dense model of the size that a token uses of it.
const QWEN3_MOE: Shape = Shape {
    name: "qwen3-moe",
    layers: 2,
    hidden: 2048,
    heads: 32,
    kv_heads: 4,
    head_size: 128,
    inner: 768,
    experts: Some((128, 8)),
    vocab: 2048,
};
pub const SHAPES: [Shape; 3] = [
    Shape {
        name: "smollm2",
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_size: 64,
        inner: 1536,
        experts: None,
        vocab: 49152,
    },
    QWEN3_MOE,
    Shape { name: "qwen3-active", layers: 24, inner: 8 * 768, experts: None, ..QWEN3_MOE },
];

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

/// Adds a matrix of random numbers or quants, with scales and minima that keep the activations at a normal magnitude.
fn matrix(
    builder: &mut ProgramBuilder,
    random: &mut Random,
    format: Format,
    shape: [usize; 2],
) -> Result<WeightId> {
    if format == Format::BF16 {
        let number = |random: &mut Random| (random.next() >> 40) as f32 / (1 << 24) as f32 * 0.12 - 0.06;
        let numbers = (0..shape[0] * shape[1]).map(|_| half::bf16::from_f32(number(random)));
        let bytes = numbers.flat_map(half::bf16::to_le_bytes).collect();
        return Ok(builder.weight(format, bytes, &shape)?);
    }
    let mut bytes: Vec<u8> =
        (0..shape[0] * format.row_bytes(shape[1])?).map(|_| (random.next() >> 24) as u8).collect();
    let (scale, min) = match format {
        Format::Q8_0 => (0.0005f32, None),
        Format::Q4_1 => (0.008, Some(-0.06f32)),
        _ => {
            // Wherever a block has its scales, they are small numbers.
            bytes.iter_mut().for_each(|byte| *byte &= 0x9f);
            return Ok(builder.weight(format, bytes, &shape)?);
        }
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        if let Some(min) = min {
            block[2..4].copy_from_slice(&half::f16::from_f32(min).to_le_bytes());
        }
    }
    Ok(builder.weight(format, bytes, &shape)?)
}

pub fn build(
    shape: &Shape,
    format: Format,
    threads: usize,
    pinning: Pinning,
    max_step_tokens: usize,
) -> Result<Executor> {
    let Shape { layers, hidden, heads, kv_heads, head_size, inner, experts, vocab, .. } = *shape;
    let geometry = KvGeometry {
        num_layers: layers,
        num_kv_heads: kv_heads,
        head_size,
        block_size: BLOCK_SIZE,
        dtype: KvDtype::Int8,
        latent_size: None,
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
    let pairs = head_size / 2;
    let inv_freq: Vec<f64> = (0..pairs).map(|i| 100_000f64.powf(-(i as f64) / pairs as f64)).collect();
    let embedding_format = if format == Format::Q4_1 { Format::Q8_0 } else { format };
    let embedding = matrix(&mut b, random, embedding_format, [vocab, hidden])?;
    let mut x = b.embedding(embedding)?;
    for layer in 0..layers {
        let mut product = |b: &mut ProgramBuilder, x, out, width| -> Result<_> {
            let weight = matrix(b, random, format, [out, width])?;
            Ok(b.linear(x, weight, None)?)
        };
        let norm = b.weight(Format::F32, ones(hidden), &[hidden])?;
        let h = b.rms_norm(x, norm, 1e-5)?;
        let q = product(&mut b, h, heads * head_size, hidden)?;
        let k = product(&mut b, h, kv_heads * head_size, hidden)?;
        let v = product(&mut b, h, kv_heads * head_size, hidden)?;
        let q = b.rope(q, &inv_freq, 1.0, head_size)?;
        let k = b.rope(k, &inv_freq, 1.0, head_size)?;
        b.write_kv(layer, k, Some(v))?;
        let a = b.paged_attention(layer, q, 0.125, None, None, None)?;
        let a = product(&mut b, a, hidden, heads * head_size)?;
        x = b.add(x, a)?;
        let norm = b.weight(Format::F32, ones(hidden), &[hidden])?;
        let h = b.rms_norm(x, norm, 1e-5)?;
        let h = match experts {
            Some((num_experts, num_used)) => {
                let logits = product(&mut b, h, num_experts, hidden)?;
                let mut stack = |out, width| -> Result<Vec<_>> {
                    (0..num_experts).map(|_| matrix(&mut b, random, format, [out, width])).collect()
                };
                let (gate, up) = (stack(inner, hidden)?, stack(inner, hidden)?);
                let down = stack(hidden, inner)?;
                b.experts(
                    h,
                    logits,
                    Experts {
                        gate,
                        up,
                        down,
                        num_used,
                        rule: Rule::softmax(true),
                        choice_bias: None,
                        biases: None,
                        clamp: None,
                    },
                )?
            }
            None => {
                let gate = product(&mut b, h, inner, hidden)?;
                let up = product(&mut b, h, inner, hidden)?;
                let h = b.silu_mul(gate, up)?;
                product(&mut b, h, hidden, inner)?
            }
        };
        x = b.add(x, h)?;
    }
    let norm = b.weight(Format::F32, ones(hidden), &[hidden])?;
    let x = b.rms_norm(x, norm, 1e-5)?;
    b.logits(x, embedding, None)?;
    Ok(b.build(threads, pinning)?)
}
