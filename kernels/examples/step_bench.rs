//! Times whole steps of a model in SmolLM2-135M's shape with random weights: `step_bench [threads] [case...]`.
//!
//! Cases: `prefill:TOKENS`, `decode:SEQUENCES:CONTEXT`; all of the usual ones by default. Prints tokens per second of
//! the fastest and the median round, and the CPU time per token, which a busy machine disturbs less (waiting at
//! barriers counts, so take it from one thread).

use std::time::Instant;

use anyhow::{Context, Result};
use trunkline_kernels::executor::{Chunk, Executor};
use trunkline_kernels::kv_pool::KvGeometry;
use trunkline_kernels::pack::Format;
use trunkline_kernels::program::{ProgramBuilder, ProgramConfig, WeightId};
use trunkline_kernels::sampling::SamplingParams;

const LAYERS: usize = 30;
const HIDDEN: usize = 576;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_SIZE: usize = 64;
const FFN: usize = 1536;
const VOCAB: usize = 49152;
const BLOCK_SIZE: usize = 32;
const MAX_STEP_TOKENS: usize = 512;
const ROUNDS: usize = 7;
const STEPS_PER_ROUND: usize = 16;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // Xorshift64 (Marsaglia 2003): any bytes will do.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Random quants with a scale (and a minimum) that keep activations of ordinary size.
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

fn build(threads: usize) -> Result<Executor> {
    let geometry = KvGeometry {
        num_layers: LAYERS,
        num_kv_heads: KV_HEADS,
        head_size: HEAD_SIZE,
        block_size: BLOCK_SIZE,
    };
    let config = ProgramConfig {
        max_step_tokens: MAX_STEP_TOKENS,
        max_step_sequences: 64,
        num_blocks: 2048,
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
        let a = b.paged_attention(layer, q, 0.125)?;
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
    b.logits(x, embedding)?;
    Ok(b.build(threads)?)
}

fn tokens(num: usize) -> Vec<u32> {
    let mut random = Random(7);
    (0..num).map(|_| (random.next() % VOCAB as u64) as u32).collect()
}

/// Positions `first..end` of a sequence whose blocks begin at `first_block`, in whole steps.
fn prefill(
    executor: &mut Executor,
    id: u64,
    first_block: usize,
    num_tokens: usize,
    sample: bool,
) -> Result<()> {
    for first in (0..num_tokens).step_by(MAX_STEP_TOKENS) {
        let end = (first + MAX_STEP_TOKENS).min(num_tokens);
        let blocks = first.div_ceil(BLOCK_SIZE)..end.div_ceil(BLOCK_SIZE);
        let results = executor.step(&[Chunk {
            sequence_id: id,
            first_position: first as u32,
            num_tokens: (end - first) as u32,
            new_block_ids: blocks.map(|block| (first_block + block) as u32).collect(),
            sample: sample && end == num_tokens,
        }]);
        for result in results {
            result.outcome.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        }
    }
    Ok(())
}

/// CPU seconds of this process so far.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Wall and CPU seconds of each round.
#[derive(Default)]
struct Rounds {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}

impl Rounds {
    fn time(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        work()?;
        self.wall.push(start.elapsed().as_secs_f64());
        self.cpu.push(cpu_seconds() - cpu);
        Ok(())
    }
}

fn report(name: &str, num_tokens: usize, rounds: Rounds) -> String {
    let (mut seconds, mut cpu) = (rounds.wall, rounds.cpu);
    cpu.sort_by(f64::total_cmp);
    let cpu_us = cpu[0] / num_tokens as f64 * 1e6;
    seconds.sort_by(f64::total_cmp);
    let rate = |s: f64| num_tokens as f64 / s;
    let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
    format!(
        "{name:20} best {:8.1} tok/s  median {:8.1} tok/s  cpu {cpu_us:7.1} us/token",
        rate(best),
        rate(median)
    )
}

fn time_prefill(executor: &mut Executor, num_tokens: usize) -> Result<String> {
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        executor.start(1, tokens(num_tokens), num_tokens, SamplingParams::default())?;
        rounds.time(|| prefill(executor, 1, 0, num_tokens, true))?;
        executor.end(1)?;
    }
    Ok(report(&format!("prefill {num_tokens}"), num_tokens, rounds))
}

fn time_decode(executor: &mut Executor, num_sequences: usize, context: usize) -> Result<String> {
    let num_steps = ROUNDS * STEPS_PER_ROUND;
    let blocks_per_sequence = (context + num_steps).div_ceil(BLOCK_SIZE);
    for i in 0..num_sequences {
        executor.start(i as u64, tokens(context), context, SamplingParams::default())?;
        prefill(executor, i as u64, i * blocks_per_sequence, context - 1, false)?;
    }
    let mut rounds = Rounds::default();
    let mut position = context - 1;
    let mut num_blocks = position.div_ceil(BLOCK_SIZE);
    for _ in 0..ROUNDS {
        rounds.time(|| {
            for _ in 0..STEPS_PER_ROUND {
                let wanted = (position + 1).div_ceil(BLOCK_SIZE);
                let chunk = |i: usize| Chunk {
                    sequence_id: i as u64,
                    first_position: position as u32,
                    num_tokens: 1,
                    new_block_ids: (num_blocks..wanted)
                        .map(|b| (i * blocks_per_sequence + b) as u32)
                        .collect(),
                    sample: true,
                };
                for result in executor.step(&(0..num_sequences).map(chunk).collect::<Vec<_>>()) {
                    result.outcome.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
                }
                (position, num_blocks) = (position + 1, wanted);
            }
            Ok(())
        })?;
    }
    executor.reset();
    Ok(report(&format!("decode {num_sequences} at {context}"), num_sequences * STEPS_PER_ROUND, rounds))
}

#[allow(clippy::print_stdout, reason = "this is its output")]
fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let threads = match arguments.next() {
        Some(threads) => threads.parse().context("threads")?,
        None => trunkline_kernels::threads::default_num_threads(),
    };
    let mut cases: Vec<String> = arguments.collect();
    if cases.is_empty() {
        cases = ["decode:1:512", "decode:8:512", "decode:32:512", "prefill:512", "prefill:2048"]
            .map(String::from)
            .into();
    }
    let start = Instant::now();
    let mut executor = build(threads)?;
    println!(
        "{}, {} MiB of weights, built in {:.2} s",
        executor.device(),
        executor.weight_bytes() >> 20,
        start.elapsed().as_secs_f64()
    );
    for case in cases {
        let parts: Vec<&str> = case.split(':').collect();
        println!(
            "{}",
            match parts[..] {
                ["prefill", tokens] => time_prefill(&mut executor, tokens.parse()?)?,
                ["decode", sequences, context] =>
                    time_decode(&mut executor, sequences.parse()?, context.parse()?)?,
                _ => anyhow::bail!("unknown case {case:?}"),
            }
        );
    }
    Ok(())
}
