//! Times the choice of a token: `cargo run --release -p trunkline-kernels --example sampling_bench`.
//!
//! For vocabularies of 49,152 and 128,256 and three shapes of distribution, the fastest of many draws in microseconds,
//! on one thread. Peaked: a few hundred candidates; flat: all of them within 8 of the largest logit; hot: the same at
//! temperature 2.
#![allow(clippy::print_stdout)] // a report is what it is for

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::sampling::{Sampler, SamplingParams, TokenCounts};

const DRAWS: usize = 200;

/// Roughly normal numbers from a seed.
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
        for (shape, spread, temperature) in [("peaked", 5.0, 0.7), ("flat", 1.0, 1.0), ("hot", 1.0, 2.0)] {
            let logits: Vec<f32> = base.iter().map(|x| x * spread).collect();
            let filters = [
                ("greedy", SamplingParams { temperature: 0.0, ..Default::default() }),
                ("no filter", SamplingParams { temperature, ..Default::default() }),
                ("top_p 0.95", SamplingParams { temperature, top_p: 0.95, ..Default::default() }),
                ("min_p 0.05", SamplingParams { temperature, min_p: 0.05, ..Default::default() }),
                ("top_k 40", SamplingParams { temperature, top_k: 40, ..Default::default() }),
                ("20 logprobs", SamplingParams { num_top_logprobs: 20, ..Default::default() }),
            ];
            for (name, params) in filters {
                let counts = TokenCounts::new(&params, &[0], 1, vocab_size);
                let mut sampler = Sampler::new(vocab_size);
                let (mut row, mut list) = (logits.clone(), Vec::new());
                let mut best = Duration::MAX;
                for position in 0..DRAWS as u32 {
                    row.copy_from_slice(&logits);
                    let start = Instant::now();
                    let drawn =
                        sampler.sample(isa, &mut row, &params, &counts, 0, [None; 2], position, &mut list);
                    best = best.min(start.elapsed());
                    list = drawn.map_err(|failure| anyhow!("{failure:?}"))?.top_logprobs;
                }
                println!("| {vocab_size} | {shape} | {name} | {:.1} |", best.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(())
}
