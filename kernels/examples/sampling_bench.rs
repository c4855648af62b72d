//! Times sampling: `cargo run --release -p trunkline-kernels --example sampling_bench`.
//!
//! Prints the fastest of many draws in microseconds on one thread, for vocabularies of 49,152 and 128,256 tokens and
//! several distributions. In `peaked` there are a few hundred candidates, and in `flat` all logits are within 8 of the
//! largest. `hot` is `flat` at temperature 2, and in `masked` a grammar leaves only some of the tokens.
#![allow(clippy::print_stdout)] // a report is what it is for

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::{SampleContext, Sampler, SamplingParams, TokenCounts, Watermark};

const DRAWS: usize = 200;

fn normals(count: usize) -> Vec<f32> {
    let mut state = 88172645463325252u64;
    let mut uniform = || {
        // Xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn main() -> Result<()> {
    let isa = Isa::detect()?;
    println!("instruction set: {isa}\n\n| vocabulary | logits | parameters | us |\n|---:|---|---|---:|");
    for vocab_size in [49_152, 128_256] {
        let base = normals(vocab_size);
        let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
        for share in [0.9, 0.5, 0.1, 0.001] {
            let us = microseconds(isa, &base, &greedy, Some(&mask(vocab_size, share)))?;
            println!("| {vocab_size} | masked | greedy, {} % are left | {us:.1} |", share * 100.0);
        }
        for (shape, spread, temperature) in [("peaked", 5.0, 0.7), ("flat", 1.0, 1.0), ("hot", 1.0, 2.0)] {
            let logits: Vec<f32> = base.iter().map(|x| x * spread).collect();
            let watermark = Some(Watermark { gamma: 0.5, delta: 2.0, key: 15_485_863 });
            let filters = [
                ("greedy", SamplingParams { temperature: 0.0, ..Default::default() }),
                ("no filter", SamplingParams { temperature, ..Default::default() }),
                ("top_p 0.95", SamplingParams { temperature, top_p: 0.95, ..Default::default() }),
                ("min_p 0.05", SamplingParams { temperature, min_p: 0.05, ..Default::default() }),
                ("top_k 40", SamplingParams { temperature, top_k: 40, ..Default::default() }),
                ("greedy, watermark", SamplingParams { watermark, ..Default::default() }),
                ("watermark", SamplingParams { temperature, watermark, ..Default::default() }),
                ("20 logprobs", SamplingParams { num_top_logprobs: 20, ..Default::default() }),
            ];
            for (name, params) in filters {
                let us = microseconds(isa, &logits, &params, None)?;
                println!("| {vocab_size} | {shape} | {name} | {us:.1} |");
            }
        }
    }
    Ok(())
}

fn mask(vocab_size: usize, share: f32) -> Vec<u8> {
    let mut order: Vec<f32> = normals(vocab_size);
    let drawn = order.clone();
    order.sort_by(f32::total_cmp);
    let limit = order[(vocab_size as f32 * share) as usize];
    let mut mask = vec![0; vocab_size.div_ceil(8)];
    let left = (0..vocab_size).filter(|token_id| drawn[*token_id] < limit);
    left.for_each(|token_id| mask[token_id / 8] |= 1 << (token_id % 8));
    mask
}

/// Returns the time of the fastest draw.
fn microseconds(isa: Isa, logits: &[f32], params: &SamplingParams, mask: Option<&[u8]>) -> Result<f64> {
    let counts = TokenCounts::new(params, &[0], 1, logits.len());
    let mut sampler = Sampler::new(logits.len());
    let (mut row, mut list) = (logits.to_vec(), Vec::new());
    let mut best = Duration::MAX;
    for position in 0..DRAWS as u32 {
        row.copy_from_slice(logits);
        let context = SampleContext { position, previous: position, num_output: 0, drafts: &[] };
        let start = Instant::now();
        let drawn = sampler.sample(isa, &mut row, params, &counts, context, [mask, None], &mut list);
        best = best.min(start.elapsed());
        list = drawn.map_err(|failure| anyhow!("{failure:?}"))?.top_logprobs;
    }
    Ok(best.as_secs_f64() * 1e6)
}
