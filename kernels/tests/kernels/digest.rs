//! Pins the bits of results. Stored K and V, seeds and watermarks are valid across versions only if these bits do not
//! change.

use trunkline_kernels::NUMERICS_VERSION;
use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::attention::Window;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::KvDtype;
use trunkline_kernels::linear::{QuantizedShape, quantize_rows};
use trunkline_kernels::ops::add::{add_in_place, mul_in_place};
use trunkline_kernels::ops::gelu::{gelu_in_place, gelu_mul_in_place};
use trunkline_kernels::ops::layer_norm::layer_norm;
use trunkline_kernels::ops::probe;
use trunkline_kernels::ops::recurrence::Recurrence;
use trunkline_kernels::ops::relu_squared::relu_squared_in_place;
use trunkline_kernels::ops::rms_norm::{head_l2_norm_in_place, head_rms_norm_in_place, rms_norm};
use trunkline_kernels::ops::rope::{RopeFrequencies, rope_in_place};
use trunkline_kernels::ops::scale::scale_in_place;
use trunkline_kernels::ops::silu_mul::{
    SwigluClamp, clamped_swiglu_in_place, sigmoid_in_place, silu_in_place, silu_mul_in_place,
};
use trunkline_kernels::ops::softplus::{decay_in_place, softplus_in_place};
use trunkline_kernels::ops::tanh::soft_cap_in_place;
use trunkline_kernels::pack::{Format, encode};
use trunkline_kernels::sampling::{SampleContext, Sampler, SamplingParams, TokenCounts, Watermark};
use trunkline_kernels::shared_mut::SharedMut;
use xxhash_rust::xxh3::Xxh3;

use crate::attention::Case;
use crate::executor::model::{ALL, Recipe, VOCAB, build};
use crate::linear::product;
use crate::ops::recurrent::{convolved, recurred};
use crate::random::Random;

/// The groups that are not computed with the scalar set.
const INT4_MODELS: &str = "int4_models";
const GPT_OSS_INT4: &str = "gpt_oss_int4";
/// The current XXH3-64 of each group of results.
const DIGESTS: [(&str, u64); 62] = [
    ("rms_norm", 0x1f5038f7c15a45e2),
    ("head_rms_norm", 0x793fb7940ddce849),
    ("silu_mul", 0xf8fbe278048fc9ea),
    ("clamped_swiglu", 0x6864db860c68dda0),
    ("gelu_mul", 0x07e540b30fa4bca2),
    ("layer_norm", 0xbae2262181f9372a),
    ("gelu", 0x98659511304c8bef),
    ("relu_squared", 0x2795c883211577b7),
    ("add", 0x05eef0542ef1bc71),
    ("scale", 0xb1af21d62ab92b6a),
    ("mul", 0x6f090c83fba7bb65),
    ("silu", 0x3e06eb5d2e625ba2),
    ("sigmoid", 0x85b7196d72aa96ad),
    ("head_l2_norm", 0x9acfcc23f40e8e3e),
    ("softplus", 0x1b09bd31c2ae7320),
    ("decay", 0x96dd3a8551e7dba2),
    ("tanh", 0x989c1a2ed76e3943),
    ("rope", 0xb850565fd982548b),
    ("exp", 0x573118a45d36ef14),
    ("exp2", 0x8475c9931349c88b),
    ("hadamard", 0xf9676ad501d967db),
    ("F32", 0x68a72ba03f42b9b5),
    ("F16", 0x41868b8561f3bfa0),
    ("BF16", 0x1aee65fcf7a26e01),
    ("Q8_0", 0x8dd192bade487125),
    ("Q4_0", 0x65f06d0225c0a01e),
    ("Q4_1", 0xaaa30fcd2fd51334),
    ("Q5_0", 0x98a6d0ea1bc2e822),
    ("Q5_1", 0xd071f38a46f10106),
    ("Q4_K", 0xa0340f46adedb5ce),
    ("Q5_K", 0x94f752b32b1522f0),
    ("Q6_K", 0x95f4c1bf41151750),
    ("Q3_K", 0x4eb597641408dba6),
    ("IQ4_NL", 0xff0b4c96d1618472),
    ("IQ4_XS", 0x415e6c60d281eba2),
    ("MXFP4", 0x7bff934440ec7463),
    ("Q2_K", 0x2ef1b30d8bac0dcd),
    ("TQ1_0", 0x01bc308fe6bcafa6),
    ("TQ2_0", 0x2a0c8350b216d6b3),
    ("IQ2_XXS", 0x4dcb782f627f1836),
    ("IQ2_XS", 0xfa7a0bdf51f0a20b),
    ("IQ2_S", 0x3b4f7201ab1e1823),
    ("IQ3_XXS", 0x3867bc86e31814dc),
    ("IQ3_S", 0xdfd83e5c99f6e6b7),
    ("IQ1_S", 0xad324470f639d4e1),
    ("IQ1_M", 0x0a9621a791eed1a3),
    ("AFFINE4", 0x95215d04835aec86),
    ("AFFINE8", 0x78f49f6371f55dde),
    ("int8", 0xf515b9e8c0f7dd50),
    ("int4", 0x60e8e0a5203ea614),
    ("f16", 0x2e6a04e69352b921),
    ("bf16", 0x3c91e80a32ac861e),
    ("quantized", 0x885d42cb8df4ff6c),
    ("sampled", 0x743cface79963a3b),
    ("models", 0x76a23211e0573731),
    ("experts", 0x755a3cbec14a3228),
    ("latents", 0x8a20f010b5ef962c),
    ("recurrent", 0x275aa021791609b1),
    ("gpt_oss", 0x1cd518b479cee451),
    ("blocks", 0x281988eb677075a4),
    (INT4_MODELS, 0x77bdc6129a48e6a4),
    (GPT_OSS_INT4, 0x07f45752e2a5d18d),
];

/// Each `NUMERICS_VERSION` with the XXH3-64 of its digests in order, little-endian. A change of bits adds a line and
/// never changes an existing one.
const VERSIONS: [(u32, u64); 4] =
    [(7, 0xafd9e0cc6822f7f7), (8, 0x368254ece69f6450), (9, 0xdbf480a3a7d606ff), (10, 0x8d559c486cfd4787)];

#[derive(Default)]
struct Digest(Xxh3);

impl Digest {
    fn floats(&mut self, x: &[f32]) {
        assert!(x.iter().all(|x| !x.is_nan()), "the bits of NaN are not pinned");
        x.iter().for_each(|x| self.0.update(&x.to_bits().to_le_bytes()));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn end(&self) -> u64 {
        self.0.digest()
    }
}

/// Covers one row and several, one group and many, whole tiles and a partial one.
fn products(isa: Isa, format: Format) -> u64 {
    let (mut random, mut digest) = (Random::new(100), Digest::default());
    for (num_rows, out_features, in_features) in [(1, 40, 256), (9, 33, 768), (17, 16, 256)] {
        let weight = random.packed(format, out_features, in_features);
        let (x, bias) = (random.activations(num_rows * in_features), random.activations(out_features));
        for bias in [None, Some(&bias[..])] {
            digest.floats(&product(isa, &weight, &x, 0..weight.num_tiles(), bias));
        }
        let mut row = vec![0.0; in_features];
        weight.dequantize_row(out_features - 1, &mut row);
        digest.floats(&row);
    }
    digest.end()
}

/// Covers two segments of one sequence, a window, a soft cap, and a stored block.
fn attention(isa: Isa, dtype: KvDtype) -> u64 {
    let (mut random, mut digest) = (Random::new(200), Digest::default());
    for (head_size, block_size, num_tokens) in [(64, 64, 520), (20, 16, 40)] {
        let mut case = Case::of_sizes(&mut random, isa, dtype, [head_size, block_size, num_tokens]);
        for (window, soft_cap) in [(Window::NONE, None), (Window::new(30).unwrap(), Some(0.7))] {
            (case.window, case.soft_cap) = (window, soft_cap);
            let first = num_tokens - 12;
            digest.floats(&case.rows(isa, first));
        }
        digest.bytes(&case.stored_block(0));
    }
    digest.end()
}

fn operations(isa: Isa) -> Vec<(&'static str, u64)> {
    let mut random = Random::new(300);
    let (x, y) = (random.normals(1000), random.normals(1000));
    let large: Vec<f32> = x.iter().map(|x| 20.0 * x).collect();
    let of = |x: &[f32], change: &dyn Fn(&mut [f32])| {
        let (mut x, mut digest) = (x.to_vec(), Digest::default());
        change(&mut x);
        digest.floats(&x);
        digest.end()
    };
    let frequencies = RopeFrequencies::new((0..32).map(|i| 0.75f64.powi(i)).collect(), 1.25);
    let mut table = vec![0.0; 64];
    frequencies.fill(12_345, &mut table);
    let clamp = SwigluClamp { alpha: 1.702, limit: 7.0 };
    vec![
        ("rms_norm", of(&x, &|out| rms_norm(isa, &x, &y, 1e-5, out))),
        ("head_rms_norm", of(&x, &|x| head_rms_norm_in_place(isa, x, &y[..50], 1e-6))),
        ("silu_mul", of(&large, &|x| silu_mul_in_place(isa, x, &y))),
        ("clamped_swiglu", of(&large, &|x| clamped_swiglu_in_place(isa, x, &y, clamp))),
        ("gelu_mul", of(&large, &|x| gelu_mul_in_place(isa, x, &y))),
        ("layer_norm", of(&x, &|out| layer_norm(isa, &x, &y, Some(&large), 1e-5, out))),
        ("gelu", of(&large, &|x| gelu_in_place(isa, x))),
        ("relu_squared", of(&large, &|x| relu_squared_in_place(isa, x))),
        ("add", of(&x, &|x| add_in_place(isa, x, &y))),
        ("scale", of(&x, &|x| scale_in_place(isa, x, 13.7))),
        ("mul", of(&x, &|x| mul_in_place(isa, x, &y))),
        ("silu", of(&large, &|x| silu_in_place(isa, x))),
        ("sigmoid", of(&large, &|x| sigmoid_in_place(isa, x))),
        ("head_l2_norm", of(&x, &|x| head_l2_norm_in_place(isa, x, 50, 1e-6))),
        ("softplus", of(&large, &|x| softplus_in_place(isa, x, &y))),
        ("decay", of(&x, &|x| decay_in_place(isa, x, &y))),
        ("tanh", of(&large, &|x| soft_cap_in_place(isa, x, 30.0))),
        ("rope", of(&x[..960], &|x| rope_in_place(isa, x, &table, 96))),
        ("exp", of(&large, &|x| probe::exp_in_place(isa, x))),
        ("exp2", of(&large[..992], &|x| probe::exp2_in_place(isa, x))),
        ("hadamard", of(&x[..96], &|x| probe::transform_in_place(isa, x, 96))),
    ]
}

fn quantized(isa: Isa) -> u64 {
    let (mut random, mut digest) = (Random::new(400), Digest::default());
    let x = random.activations(7 * 320);
    let shape = QuantizedShape::new(7, 320);
    let mut bytes = AlignedBytes::zeroed(shape.num_bytes());
    // SAFETY: there is only one thread.
    unsafe { quantize_rows(isa, shape, &x, 320, 0..7, SharedMut::new(bytes.as_mut_slice())) };
    digest.bytes(bytes.as_slice());
    for head in x.chunks_exact(64) {
        let mut rounded = [0; 64];
        digest.floats(&[probe::quantize_vectors(isa, &mut head.to_vec(), &mut rounded)]);
        digest.bytes(&rounded.map(i8::cast_unsigned));
        let mut numbers = head.to_vec();
        digest.floats(&[probe::quantize_nibbles(isa, &mut numbers, 64).to_f32()]);
        digest.floats(&numbers);
    }
    digest.end()
}

fn sampled(isa: Isa) -> u64 {
    let (mut random, mut digest) = (Random::new(500), Digest::default());
    let plain =
        SamplingParams { logprobs: true, num_top_logprobs: 3, temperature: 1.0, ..Default::default() };
    let watermark = Some(Watermark { gamma: 0.25, delta: 2.0, key: 15_485_863 });
    let ways = [
        SamplingParams { temperature: 0.0, ..plain.clone() },
        SamplingParams { top_k: 40, min_p: 0.01, ..plain.clone() },
        SamplingParams { top_p: 0.9, repetition_penalty: 1.3, frequency_penalty: 0.5, ..plain.clone() },
        SamplingParams { typical_p: 0.5, temperature: 1.5, ..plain.clone() },
        SamplingParams { temperature: 50.0, top_p: 0.95, ..plain.clone() },
        SamplingParams { watermark, logit_bias: vec![(3, 1.5)], ..plain },
    ];
    let mut sampler = Sampler::new(5000);
    for (way, params) in (0..).zip(&ways) {
        let counts = TokenCounts::new(params, &[1, 2, 3], 2, 5000);
        for position in 0..20 {
            let logits: Vec<f32> = (0..5000).map(|_| 3.0 * random.normal()).collect();
            let context = SampleContext { position, num_output: 1, previous: position, drafts: &[] };
            let params = SamplingParams { seed: way, ..params.clone() };
            let mut row = logits.clone();
            let list = &mut Vec::new();
            let token = sampler.sample(isa, &mut row, &params, &counts, context, [None; 2], list).unwrap();
            digest.bytes(&token.token_id.to_le_bytes());
            digest.floats(&[token.logprob]);
            let score = sampler.score(isa, &logits, token.token_id, 0).unwrap();
            digest.bytes(&score.rank.to_le_bytes());
            for (id, logprob) in token.top_logprobs {
                digest.bytes(&id.to_le_bytes());
                digest.floats(&[logprob]);
            }
        }
    }
    digest.end()
}

/// Hashes the logits of a prompt of the test models that are wanted.
fn models(isa: Isa, is_wanted: impl Fn(&Recipe) -> bool) -> u64 {
    let mut digest = Digest::default();
    for recipe in ALL.into_iter().filter(is_wanted) {
        let mut random = Random::new(600);
        let tokens: Vec<u32> = (0..40).map(|_| random.below(VOCAB) as u32).collect();
        digest.floats(&build(recipe, 2, isa).score(&tokens).unwrap());
    }
    digest.end()
}

fn latents(isa: Isa) -> u64 {
    let mut digest = Digest::default();
    for dtype in [KvDtype::F16, KvDtype::Bf16] {
        let mut case = Case::of_latents(&mut Random::new(700), isa, dtype);
        digest.floats(&case.rows(isa, 518));
        digest.bytes(&case.stored_block(0));
    }
    digest.bytes(&models(isa, |recipe| recipe.has_latents).to_le_bytes());
    digest.end()
}

fn recurrent(isa: Isa) -> u64 {
    let mut digest = Digest::default();
    digest.floats(&convolved(isa, 40, 3, &[7]));
    for rule in [Recurrence::Scan, Recurrence::Delta] {
        digest.floats(&recurred(isa, rule, [16, 72], &[7]));
    }
    digest.end()
}

fn all(isa: Isa) -> Vec<(&'static str, u64)> {
    let mut all = operations(isa);
    all.extend(Format::ALL.map(|format| (format.name(), products(isa, format))));
    all.extend(KvDtype::ALL.map(|dtype| (dtype.name(), attention(isa, dtype))));
    let is_int4 = |recipe: &Recipe| recipe.dtype == KvDtype::Int4;
    let is_dense = |recipe: &Recipe| recipe.experts.is_none() && !is_int4(recipe);
    let is_mixture = |recipe: &Recipe| recipe.experts.is_some() && !recipe.has_latents && !recipe.is_gpt_oss;
    let is_gpt_oss = |recipe: &Recipe| recipe.is_gpt_oss && !is_int4(recipe);
    all.extend([
        ("quantized", quantized(isa)),
        ("sampled", sampled(isa)),
        ("models", models(isa, is_dense)),
        ("experts", models(isa, is_mixture)),
        ("latents", latents(isa)),
        ("recurrent", recurrent(isa)),
        ("gpt_oss", models(isa, is_gpt_oss)),
        ("blocks", blocks()),
    ]);
    // Building these models measures the key scaling with a thousand tokens, which is too slow without vectors.
    if isa != Isa::SCALAR {
        all.push((INT4_MODELS, models(isa, |recipe| is_int4(recipe) && !recipe.is_gpt_oss)));
        all.push((GPT_OSS_INT4, models(isa, |recipe| is_int4(recipe) && recipe.is_gpt_oss)));
    }
    all
}

/// Covers the quantiser of weights.
fn blocks() -> u64 {
    let (mut random, mut digest) = (Random::new(700), Digest::default());
    for format in [Format::Q8_0, Format::Q4_1] {
        let values = random.normals(64 * 32);
        let mut bytes = vec![0; 64 * format.block_bytes()];
        assert!(encode(&values, format, &mut bytes));
        digest.bytes(&bytes);
    }
    digest.end()
}

fn total(digests: &[(&str, u64)]) -> u64 {
    let mut total = Digest::default();
    digests.iter().for_each(|(_, digest)| total.bytes(&digest.to_le_bytes()));
    total.end()
}

#[test]
fn results_have_the_recorded_bits_of_this_version() {
    for isa in Isa::available().into_iter().rev() {
        let got = all(isa);
        let expected: Vec<_> = DIGESTS
            .into_iter()
            .filter(|(name, _)| isa != Isa::SCALAR || ![INT4_MODELS, GPT_OSS_INT4].contains(name))
            .collect();
        let is_new = |digest: &&(&str, u64)| !DIGESTS.contains(digest);
        let changed: Vec<&str> = got.iter().filter(is_new).map(|(name, _)| *name).collect();
        let line = |(name, digest): &(&str, u64)| format!("    (\"{name}\", {digest:#018x}),\n");
        assert!(
            got == expected,
            "bits of {changed:?} changed on {isa}; hint: raise `NUMERICS_VERSION` in `src/lib.rs`, so that nobody \
             takes K and V of other bits for these, record the digests below, and add a line to `VERSIONS`:\n{}",
            got.iter().map(line).collect::<String>()
        );
    }
    let recorded = (NUMERICS_VERSION, total(&DIGESTS));
    assert_eq!(VERSIONS.last(), Some(&recorded), "add the version on the right to `VERSIONS`");
    assert!(VERSIONS.is_sorted_by_key(|(version, _)| version), "versions ascend");
}
