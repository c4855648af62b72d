//! Times whole steps of a model with a known shape and random weights: `step_bench [--shape NAME]
//! [--format Q4_1] [--profile] [--pin auto|on|off] [--step-tokens N] [--limits PATH] [threads] [case...]`.
//!
//! The shapes are those of SmolLM2-135M (`smollm2`), of two layers of Qwen3-30B-A3B (`qwen3-moe`), and of a dense model
//! as large as the part of that which a token uses (`qwen3-active`).
//!
//! The cases are `prefill:TOKENS`, `decode:SEQUENCES:CONTEXT`, `extend:HISTORY:NEW` (new tokens after a computed
//! history) and `mixed:SEQUENCES:CONTEXT:NEW` (decodes beside new tokens of a sequence with a history of the same
//! length); the default is a selection. Prints tokens per second of the fastest and the median round, and the CPU time
//! per token, which other load affects less. CPU time includes waiting at barriers, so measure it with one thread.
//!
//! `--profile` adds a table for each case with the mean time per step of each kind of kernel over all threads and
//! rounds, the time that threads waited before it, and its rates. With `--limits` (written by `make bench NAME=limits`)
//! the table has the share of the roof: the least time that the multiply-adds or the bytes need, whichever is longer,
//! divided by the measured time. The roof of integer products is the rate of 8-bit dot products, and that of attention
//! the rate of f32 multiply-adds. The bytes are those of weights, or of K and V, read once from memory.
#![allow(clippy::print_stdout)] // a report is what it is for

mod model;
mod profile;

use std::time::Instant;

use anyhow::{Context, Result};
use trunkline_kernels::executor::{Chunk, Executor, SequenceResult};
use trunkline_kernels::pack::Format;
use trunkline_kernels::sampling::SamplingParams;
use trunkline_kernels::threads::{Pinning, default_num_threads};

use model::{BLOCK_SIZE, Random, SHAPES, Shape};
use profile::{ChunkShape, Limits, Profile};

const DEFAULT_STEP_TOKENS: usize = 512;
const ROUNDS: usize = 7;
const STEPS_PER_ROUND: usize = 16;
const USUAL_CASES: [&str; 7] = [
    "decode:1:512",
    "decode:8:512",
    "decode:32:512",
    "prefill:512",
    "prefill:2048",
    "prefill:6000",
    "extend:6000:32",
];

/// Tokens that every shape has.
fn tokens(num: usize) -> Vec<u32> {
    let mut random = Random(7);
    let vocab = SHAPES.iter().map(|shape| shape.vocab).min().unwrap_or(1) as u64;
    (0..num).map(|_| (random.next() % vocab) as u32).collect()
}

struct Bench {
    executor: Executor,
    step_tokens: usize,
    limits: Option<Limits>,
    profiles: bool,
}

/// Runs steps and records their cost for a profile, if there is one.
struct Steps<'a> {
    executor: &'a mut Executor,
    results: Vec<SequenceResult>,
    profile: Option<Profile<'a>>,
}

impl Steps<'_> {
    fn step(&mut self, chunks: &[Chunk]) -> Result<()> {
        self.executor.step_into(chunks, &mut self.results).expect("K and V are in memory");
        for result in &self.results {
            result.outcome.as_ref().map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
        }
        if let Some(profile) = &mut self.profile {
            let shape = |chunk: &Chunk| ChunkShape {
                first_position: chunk.first_position as usize,
                num_tokens: chunk.num_tokens as usize,
                samples: chunk.sample,
            };
            profile.add_step(self.executor.program(), &chunks.iter().map(shape).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Computes `positions` of sequence `id`, whose blocks begin at `first_block`, in steps of the largest size.
    fn prefill(
        &mut self,
        id: u64,
        first_block: usize,
        positions: std::ops::Range<usize>,
        step_tokens: usize,
        sample: bool,
    ) -> Result<()> {
        for first in positions.clone().step_by(step_tokens) {
            let end = (first + step_tokens).min(positions.end);
            let blocks = first.div_ceil(BLOCK_SIZE)..end.div_ceil(BLOCK_SIZE);
            self.step(&[Chunk {
                sequence_id: id,
                first_position: first as u32,
                num_tokens: (end - first) as u32,
                new_block_ids: blocks.map(|block| (first_block + block) as u32).collect(),
                sample: sample && end == positions.end,
                score: false,
                draft_token_ids: Vec::new(),
                draft_masks: Vec::new(),
            }])?;
        }
        Ok(())
    }

    fn table(self) -> String {
        let Self { executor, profile, .. } = self;
        profile.map_or_else(String::new, |profile| profile.end(executor))
    }
}

fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

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

impl Bench {
    fn steps(&mut self) -> Steps<'_> {
        let limits = self.limits.as_ref();
        let profile = self.profiles.then(|| Profile::start(&mut self.executor, limits));
        Steps { executor: &mut self.executor, results: Vec::new(), profile }
    }

    fn plain_steps(&mut self) -> Steps<'_> {
        Steps { executor: &mut self.executor, results: Vec::new(), profile: None }
    }

    fn run(&mut self, case: &str) -> Result<String> {
        let parts: Vec<&str> = case.split(':').collect();
        match parts[..] {
            ["prefill", tokens] => self.extend(0, tokens.parse()?),
            ["extend", history, new] => self.extend(history.parse()?, new.parse()?),
            ["decode", sequences, context] => self.decode(sequences.parse()?, context.parse()?, 0),
            ["mixed", sequences, context, new] => {
                self.decode(sequences.parse()?, context.parse()?, new.parse()?)
            }
            _ => anyhow::bail!("unknown case {case:?}"),
        }
    }

    fn extend(&mut self, history: usize, new: usize) -> Result<String> {
        let step_tokens = self.step_tokens;
        let mut rounds = Rounds::default();
        let total = history + new;
        self.executor.start(1, tokens(total), total, SamplingParams::default())?;
        self.plain_steps().prefill(1, 0, 0..history, step_tokens, false)?;
        self.executor.end(1)?;
        let mut steps = self.steps();
        // The blocks still hold the history, so a prefix hit with the same block table continues after it.
        let history_blocks: Vec<u32> = (0..history.div_ceil(BLOCK_SIZE) as u32).collect();
        for _ in 0..ROUNDS {
            steps.executor.start(1, tokens(total), total, SamplingParams::default())?;
            rounds.time(|| {
                if history == 0 {
                    return steps.prefill(1, 0, 0..new, step_tokens, true);
                }
                let new_blocks = history.div_ceil(BLOCK_SIZE)..total.div_ceil(BLOCK_SIZE);
                let new_block_ids =
                    history_blocks.iter().copied().chain(new_blocks.map(|b| b as u32)).collect();
                steps.step(&[Chunk {
                    sequence_id: 1,
                    first_position: history as u32,
                    num_tokens: new as u32,
                    new_block_ids,
                    sample: true,
                    score: false,
                    draft_token_ids: Vec::new(),
                    draft_masks: Vec::new(),
                }])
            })?;
            steps.executor.end(1)?;
        }
        let table = steps.table();
        let name = if history == 0 { format!("prefill {new}") } else { format!("extend {history} by {new}") };
        Ok(report(&name, new, rounds) + "\n" + &table)
    }

    /// Times steps of `num_sequences` decodes, beside `num_new` tokens of another sequence in each step.
    fn decode(&mut self, num_sequences: usize, context: usize, num_new: usize) -> Result<String> {
        let step_tokens = self.step_tokens;
        let num_steps = ROUNDS * STEPS_PER_ROUND;
        let blocks_per_sequence = (context + num_steps).div_ceil(BLOCK_SIZE);
        for i in 0..num_sequences {
            self.executor.start(i as u64, tokens(context), context, SamplingParams::default())?;
            let first_block = i * blocks_per_sequence;
            self.plain_steps().prefill(i as u64, first_block, 0..context - 1, step_tokens, false)?;
        }
        let prompt_id = num_sequences as u64;
        let first_block = num_sequences * blocks_per_sequence;
        let prompt_blocks = first_block..first_block + (context + num_new).div_ceil(BLOCK_SIZE);
        if num_new > 0 {
            self.executor.start(prompt_id, tokens(context), context, SamplingParams::default())?;
            self.plain_steps().prefill(prompt_id, first_block, 0..context, step_tokens, false)?;
            self.executor.end(prompt_id)?;
        }
        let prompt = tokens(context + num_new);
        let mut rounds = Rounds::default();
        let mut position = context - 1;
        let mut num_blocks = position.div_ceil(BLOCK_SIZE);
        let mut steps = self.steps();
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
                        score: false,
                        draft_token_ids: Vec::new(),
                        draft_masks: Vec::new(),
                    };
                    let mut chunks: Vec<Chunk> = (0..num_sequences).map(chunk).collect();
                    if num_new > 0 {
                        // The blocks still hold the history.
                        let num_tokens = prompt.len();
                        steps.executor.start(
                            prompt_id,
                            prompt.clone(),
                            num_tokens,
                            SamplingParams::default(),
                        )?;
                        chunks.push(Chunk {
                            sequence_id: prompt_id,
                            first_position: context as u32,
                            num_tokens: num_new as u32,
                            new_block_ids: prompt_blocks.clone().map(|block| block as u32).collect(),
                            sample: false,
                            score: false,
                            draft_token_ids: Vec::new(),
                            draft_masks: Vec::new(),
                        });
                    }
                    steps.step(&chunks)?;
                    if num_new > 0 {
                        steps.executor.end(prompt_id)?;
                    }
                    (position, num_blocks) = (position + 1, wanted);
                }
                Ok(())
            })?;
        }
        let table = steps.table();
        self.executor.reset();
        let beside = if num_new > 0 { format!(" beside {num_new}") } else { String::new() };
        let name = format!("decode {num_sequences} at {context}{beside}");
        Ok(report(&name, (num_sequences + num_new) * STEPS_PER_ROUND, rounds) + "\n" + &table)
    }
}

struct Arguments {
    shape: &'static Shape,
    /// The format of the matrices.
    format: Format,
    threads: usize,
    pinning: Pinning,
    cases: Vec<String>,
    step_tokens: usize,
    limits: Option<Limits>,
    profiles: bool,
}

fn arguments() -> Result<Arguments> {
    let mut parsed = Arguments {
        shape: &SHAPES[0],
        format: Format::Q4_1,
        threads: default_num_threads(),
        pinning: Pinning::default(),
        cases: Vec::new(),
        step_tokens: DEFAULT_STEP_TOKENS,
        limits: None,
        profiles: false,
    };
    let mut has_threads = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` has no value"));
        match argument.as_str() {
            "--profile" => parsed.profiles = true,
            "--shape" => {
                let name = value()?;
                let found = SHAPES.iter().find(|shape| shape.name == name);
                parsed.shape = found.with_context(|| format!("unknown shape {name:?}"))?;
            }
            "--format" => {
                parsed.format = value()?.parse().context("`--format`")?;
            }
            "--pin" => parsed.pinning = value()?.parse()?,
            "--step-tokens" => parsed.step_tokens = value()?.parse().context("`--step-tokens`")?,
            "--limits" => parsed.limits = Some(Limits::read(&value()?)?),
            option if option.starts_with('-') => anyhow::bail!("unknown option `{option}`"),
            threads if !has_threads => {
                parsed.threads = threads.parse().context("threads")?;
                has_threads = true;
            }
            case => parsed.cases.push(case.to_owned()),
        }
    }
    if parsed.cases.is_empty() {
        parsed.cases = USUAL_CASES.map(String::from).into();
    }
    Ok(parsed)
}

fn main() -> Result<()> {
    let Arguments { shape, format, threads, pinning, cases, step_tokens, limits, profiles } = arguments()?;
    let start = Instant::now();
    let executor = model::build(shape, format, threads, pinning, step_tokens)?;
    println!(
        "{}, {} MiB of weights, built in {:.2} s",
        executor.device(),
        executor.weight_bytes() >> 20,
        start.elapsed().as_secs_f64()
    );
    let mut bench = Bench { executor, step_tokens, limits, profiles };
    for case in cases {
        println!("{}", bench.run(&case)?);
    }
    Ok(())
}
