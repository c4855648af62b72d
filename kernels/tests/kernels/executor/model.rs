//! Tiny random models for the tests.

use crate::random::Random;
use trunkline_kernels::executor::Executor;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry};
use trunkline_kernels::ops::route::Rule;
use trunkline_kernels::ops::silu_mul::SwigluClamp;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{
    Experts, ProgramBuilder, ProgramConfig, ProgramError, SpillOptions, ValueId, WeightId,
};

pub const VOCAB: usize = 300;
const HIDDEN: usize = 64;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_SIZE: usize = 16;
const FFN: usize = 96;
const EXPERT: usize = 32;
pub const BLOCK_SIZE: usize = 16;
pub const NUM_BLOCKS: usize = 80;

#[derive(Clone, Copy)]
pub struct Recipe {
    pub seed: u64,
    pub matrices: Format,
    pub head_norms: bool,
    pub biases: bool,
    pub dtype: KvDtype,
    /// The window of each layer. If there are any, the model also has soft caps and the other features of Gemma.
    pub windows: [Option<usize>; 2],
    pub vocab_size: usize,
    pub num_blocks: usize,
    /// Number of window parts; `None` stores windowed layers with the others.
    pub num_window_parts: Option<usize>,
    /// The number of experts of each layer, and of those that a row uses.
    pub experts: Option<(usize, usize)>,
    /// Attention has latents, and the first layer chooses experts by sigmoids and groups.
    pub has_latents: bool,
    /// GPT-OSS: attention has sinks, and experts have biases and a clamp, instead of the features of Gemma.
    pub is_gpt_oss: bool,
    /// The largest rank of adapters; 0 if the model takes none.
    pub max_adapter_rank: usize,
}

pub const PLAIN: Recipe = Recipe {
    seed: 1,
    matrices: Format::Q4_1,
    head_norms: false,
    biases: false,
    dtype: KvDtype::Int8,
    windows: [None; 2],
    vocab_size: VOCAB,
    num_blocks: NUM_BLOCKS,
    num_window_parts: None,
    experts: None,
    has_latents: false,
    is_gpt_oss: false,
    max_adapter_rank: 0,
};
pub const QWEN: Recipe =
    Recipe { seed: 2, matrices: Format::F32, head_norms: true, biases: true, dtype: KvDtype::F16, ..PLAIN };
pub const BF16: Recipe = Recipe { dtype: KvDtype::Bf16, ..PLAIN };
pub const INT4: Recipe = Recipe { dtype: KvDtype::Int4, ..PLAIN };
pub const GEMMA: Recipe = Recipe { seed: 3, windows: [Some(21), None], ..PLAIN };
pub const GEMMA_F16: Recipe = Recipe { dtype: KvDtype::F16, ..GEMMA };
pub const GEMMA_INT4: Recipe = Recipe { dtype: KvDtype::Int4, ..GEMMA };
pub const EXPERTS: Recipe = Recipe { seed: 4, experts: Some((7, 2)), ..PLAIN };
pub const EXPERTS_F32: Recipe = Recipe { seed: 5, matrices: Format::F32, experts: Some((3, 3)), ..PLAIN };
pub const LATENT: Recipe =
    Recipe { seed: 6, dtype: KvDtype::F16, experts: Some((6, 2)), has_latents: true, ..PLAIN };
pub const LATENT_BF16: Recipe = Recipe { seed: 7, dtype: KvDtype::Bf16, matrices: Format::BF16, ..LATENT };
pub const GPT_OSS: Recipe = Recipe {
    seed: 6,
    matrices: Format::MXFP4,
    biases: true,
    windows: [Some(21), None],
    is_gpt_oss: true,
    ..EXPERTS
};
pub const GPT_OSS_INT4: Recipe = Recipe { dtype: KvDtype::Int4, ..GPT_OSS };
pub const ALL: [Recipe; 13] = [
    PLAIN,
    INT4,
    QWEN,
    BF16,
    GEMMA,
    GEMMA_F16,
    GEMMA_INT4,
    EXPERTS,
    EXPERTS_F32,
    LATENT,
    LATENT_BF16,
    GPT_OSS,
    GPT_OSS_INT4,
];

struct Model {
    builder: ProgramBuilder,
    random: Random,
    matrices: Format,
}

impl Model {
    /// Adds a matrix of random blocks: random quants, with scales and minima of a fixed magnitude.
    fn matrix(&mut self, format: Format, rows: usize, columns: usize) -> WeightId {
        let mut bytes = Vec::new();
        let scale = |x: f32| half::f16::from_f32(x).to_le_bytes();
        for _ in 0..rows * columns / format.block_elements() {
            match format {
                Format::F32 => bytes.extend((self.random.normal() * 0.15).to_le_bytes()),
                Format::BF16 => bytes.extend(half::bf16::from_f32(self.random.normal() * 0.15).to_le_bytes()),
                _ => {
                    let start = bytes.len();
                    bytes.extend((0..format.block_bytes()).map(|_| self.random.next() as u8));
                    if format == Format::MXFP4 {
                        bytes[start] = 123;
                        continue;
                    }
                    let (d, m) = match format {
                        Format::Q4_1 => (0.03, -0.225),
                        Format::Q8_0 => (0.002, 0.0),
                        _ => unreachable!("not used here"),
                    };
                    bytes[start..start + 2].copy_from_slice(&scale(d));
                    if format == Format::Q4_1 {
                        bytes[start + 2..start + 4].copy_from_slice(&scale(m));
                    }
                }
            }
        }
        self.builder.weight(format, bytes, &[rows, columns]).unwrap()
    }

    fn vector(&mut self, n: usize, around: f32) -> WeightId {
        let bytes = (0..n).flat_map(|_| (around + 0.2 * self.random.normal()).to_le_bytes()).collect();
        self.builder.weight(Format::F32, bytes, &[n]).unwrap()
    }

    fn linear(&mut self, x: ValueId, rows: usize, columns: usize, bias: bool) -> ValueId {
        let weight = self.matrix(self.matrices, rows, columns);
        let bias = bias.then(|| self.vector(rows, 0.0));
        self.builder.linear(x, weight, bias).unwrap()
    }
}

impl Model {
    fn mlp(&mut self, x: ValueId, is_gemma: bool) -> ValueId {
        let gate = self.linear(x, FFN, HIDDEN, false);
        let up = self.linear(x, FFN, HIDDEN, false);
        let builder = &mut self.builder;
        let h = if is_gemma { builder.gelu_mul(gate, up) } else { builder.silu_mul(gate, up) }.unwrap();
        self.linear(h, HIDDEN, FFN, false)
    }

    fn attention(&mut self, layer: usize, h: ValueId, recipe: &Recipe, soft_cap: Option<f32>) -> ValueId {
        let inv_freq: Vec<f64> = (0..HEAD_SIZE / 2).map(|i| 1000f64.powf(-(i as f64) / 8.0)).collect();
        let mut q = self.linear(h, HEADS * HEAD_SIZE, HIDDEN, recipe.biases);
        let mut k = self.linear(h, KV_HEADS * HEAD_SIZE, HIDDEN, recipe.biases);
        let v = self.linear(h, KV_HEADS * HEAD_SIZE, HIDDEN, recipe.biases);
        if recipe.head_norms {
            let (nq, nk) = (self.vector(HEAD_SIZE, 1.0), self.vector(HEAD_SIZE, 1.0));
            q = self.builder.head_rms_norm(q, nq, 1e-6, HEAD_SIZE).unwrap();
            k = self.builder.head_rms_norm(k, nk, 1e-6, HEAD_SIZE).unwrap();
        }
        let q = self.builder.rope(q, &inv_freq, 1.0, HEAD_SIZE).unwrap();
        let k = self.builder.rope(k, &inv_freq, 1.0, HEAD_SIZE).unwrap();
        self.builder.write_kv(layer, k, Some(v)).unwrap();
        let window = recipe.windows[layer];
        let sinks = recipe.is_gpt_oss.then(|| self.vector(HEADS, 0.5));
        let a = self.builder.paged_attention(layer, q, 0.25, window, soft_cap, sinks).unwrap();
        self.linear(a, HIDDEN, HEADS * HEAD_SIZE, false)
    }

    /// Latent attention: a key of 4 rotated elements and a latent of 32.
    fn latent_attention(&mut self, layer: usize, h: ValueId) -> ValueId {
        let (rotated, latent, part) = (4, 32, 32);
        let size = rotated + latent;
        let inv_freq = [1.0, 0.1];
        let plain = self.linear(h, HEADS * part, HIDDEN, false);
        let turned = self.linear(h, HEADS * rotated, HIDDEN, false);
        let into: Vec<_> = (0..HEADS).map(|_| self.matrix(self.matrices, latent, part)).collect();
        let absorbed = self.builder.head_linear(plain, into).unwrap();
        let query = self.builder.join_heads(turned, absorbed, HEADS).unwrap();
        let query = self.builder.rope(query, &inv_freq, 1.0, size).unwrap();
        let shared = self.linear(h, rotated, HIDDEN, false);
        let content = self.linear(h, latent, HIDDEN, false);
        let key = self.builder.join_heads(shared, content, 1).unwrap();
        let key = self.builder.rope(key, &inv_freq, 1.0, size).unwrap();
        self.builder.write_kv(layer, key, None).unwrap();
        let mixed = self.builder.paged_attention(layer, query, 0.2, None, None, None).unwrap();
        let out: Vec<_> = (0..HEADS).map(|_| self.matrix(self.matrices, part, latent)).collect();
        let values = self.builder.head_linear(mixed, out).unwrap();
        self.linear(values, HIDDEN, HEADS * part, false)
    }

    fn mixture(
        &mut self,
        x: ValueId,
        num_experts: usize,
        num_used: usize,
        recipe: &Recipe,
        layer: usize,
    ) -> ValueId {
        let renormalise = layer == 0;
        let router = self.matrix(Format::F32, num_experts, HIDDEN);
        let logits = self.builder.linear(x, router, None).unwrap();
        let mut experts = Experts {
            gate: vec![],
            up: vec![],
            down: vec![],
            num_used,
            rule: Rule::softmax(renormalise),
            choice_bias: None,
            biases: None,
            clamp: None,
        };
        if recipe.has_latents && layer == 0 {
            experts.rule = Rule { renormalise, is_sigmoid: true, num_groups: 3, num_used_groups: 2 };
            experts.choice_bias = Some(self.vector(num_experts, 0.0));
        }
        // The matrices of a projection have one format, and those of different projections may have others.
        let up_format = if renormalise { self.matrices } else { Format::Q8_0 };
        for _ in 0..num_experts {
            experts.gate.push(self.matrix(self.matrices, EXPERT, HIDDEN));
            experts.up.push(self.matrix(up_format, EXPERT, HIDDEN));
            experts.down.push(self.matrix(self.matrices, HIDDEN, EXPERT));
        }
        if recipe.is_gpt_oss {
            let mut biases = |width| (0..num_experts).map(|_| self.vector(width, 0.0)).collect();
            experts.biases = Some([biases(EXPERT), biases(EXPERT), biases(HIDDEN)]);
            experts.clamp = Some(SwigluClamp { alpha: 1.702, limit: 0.8 });
        }
        self.builder.experts(x, logits, experts).unwrap()
    }
}

pub fn geometry(recipe: Recipe) -> KvGeometry {
    KvGeometry {
        num_layers: 2,
        num_kv_heads: if recipe.has_latents { 1 } else { KV_HEADS },
        head_size: if recipe.has_latents { 36 } else { HEAD_SIZE },
        block_size: BLOCK_SIZE,
        dtype: recipe.dtype,
        latent_size: recipe.has_latents.then_some(32),
    }
}

pub fn build(recipe: Recipe, threads: usize, isa: Isa) -> Executor {
    try_build(recipe, threads, isa, None).unwrap()
}

/// Like [`build`]. With `spill`, the memory of the KV pool is limited.
pub fn try_build(
    recipe: Recipe,
    threads: usize,
    isa: Isa,
    spill: Option<SpillOptions>,
) -> Result<Executor, ProgramError> {
    let config = ProgramConfig {
        max_step_tokens: 640,
        max_step_sequences: 12,
        num_blocks: recipe.num_blocks,
        geometry: geometry(recipe),
    };
    let mut builder = ProgramBuilder::new(config).unwrap();
    if let Some(num_window_parts) = recipe.num_window_parts {
        builder.keep_windows(num_window_parts);
    }
    spill.into_iter().for_each(|options| builder.spill_kv(options));
    builder.take_adapters(recipe.max_adapter_rank);
    let mut m = Model { builder, random: Random::new(recipe.seed), matrices: recipe.matrices };
    let embedding = m.matrix(Format::Q8_0, recipe.vocab_size, HIDDEN);
    let is_gemma = recipe.windows != PLAIN.windows && !recipe.is_gpt_oss;
    let soft_cap = |cap: f32| is_gemma.then_some(cap);
    let mut x = m.builder.embedding(embedding).unwrap();
    if is_gemma {
        x = m.builder.scale(x, 8.0).unwrap();
    }
    for layer in 0..2 {
        let norm = m.vector(HIDDEN, 1.0);
        let h = m.builder.rms_norm(x, norm, 1e-5).unwrap();
        let a = if recipe.has_latents {
            m.latent_attention(layer, h)
        } else {
            m.attention(layer, h, &recipe, soft_cap(3.0))
        };
        x = m.builder.add(x, a).unwrap();
        let norm = m.vector(HIDDEN, 1.0);
        let h = m.builder.rms_norm(x, norm, 1e-5).unwrap();
        let h = match recipe.experts {
            None => m.mlp(h, is_gemma),
            Some((num_experts, num_used)) => {
                let mixed = m.mixture(h, num_experts, num_used, &recipe, layer);
                let (shared, gate) = (m.mlp(h, is_gemma), m.linear(h, 1, HIDDEN, false));
                let shared = m.builder.sigmoid_scale(shared, gate).unwrap();
                m.builder.add(mixed, shared).unwrap()
            }
        };
        x = m.builder.add(x, h).unwrap();
    }
    let norm = m.vector(HIDDEN, 1.0);
    let x = m.builder.rms_norm(x, norm, 1e-5).unwrap();
    m.builder.logits(x, embedding, soft_cap(2.0)).unwrap();
    m.builder.build_for(threads, isa)
}
