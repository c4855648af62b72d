//! The time of a case by kind of kernel, compared with the limits of the machine.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result};
use trunkline_kernels::executor::{Executor, InstructionTime};
use trunkline_kernels::program::{Instruction, Kernel, Program};

/// The limits of the machine, from `limits.json`.
pub struct Limits {
    bytes_per_s: f64,
    /// Multiply-adds per second of 8-bit integers and of f32, with the fastest instruction set.
    int8_per_s: f64,
    f32_per_s: f64,
}

impl Limits {
    pub fn read(path: &str) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read `{path}`; hint: `make bench NAME=limits` writes it"))?;
        let json: serde_json::Value = serde_json::from_str(&text).with_context(|| format!("`{path}`"))?;
        let best = |list: &str, key: &str, value: &str| {
            let entries = json[list].as_array().into_iter().flatten();
            let figures =
                entries.filter(|entry| entry[key] == value).filter_map(|e| e["all_threads"].as_f64());
            let best = figures.fold(0.0, f64::max);
            anyhow::ensure!(best > 0.0, "`{path}` has no `{value}` in `{list}`");
            Ok(best * 1e9)
        };
        Ok(Self {
            bytes_per_s: best("read", "level", "memory")?,
            int8_per_s: best("rates", "operation", "int8_dot")?,
            f32_per_s: best("rates", "operation", "f32_fma")?,
        })
    }
}

/// The shape of a chunk, which determines its cost.
#[derive(Clone, Copy)]
pub struct ChunkShape {
    pub first_position: usize,
    pub num_tokens: usize,
    pub samples: bool,
}

#[derive(Clone, Copy, Default)]
struct Work {
    macs: f64,
    /// Bytes of weights, or of K and V, read at least once.
    bytes: f64,
    /// The least time that the multiply-adds and the bytes need.
    roof_s: f64,
}

#[derive(Default)]
struct Kind {
    num_calls: usize,
    busy: Duration,
    waiting: Duration,
    work: Work,
}

/// Sums up the work of steps and combines it with the executor's times.
pub struct Profile<'a> {
    limits: Option<&'a Limits>,
    work: Vec<Work>,
    num_steps: usize,
}

impl<'a> Profile<'a> {
    pub fn start(executor: &mut Executor, limits: Option<&'a Limits>) -> Self {
        executor.start_profile();
        Self { limits, work: vec![Work::default(); executor.program().instructions.len()], num_steps: 0 }
    }

    pub fn add_step(&mut self, program: &Program, chunks: &[ChunkShape]) {
        self.num_steps += 1;
        for (work, instruction) in self.work.iter_mut().zip(&program.instructions) {
            let step = self.limits.map_or_else(
                || cost(program, instruction, chunks, None),
                |limits| cost(program, instruction, chunks, Some(limits)),
            );
            work.macs += step.macs;
            work.bytes += step.bytes;
            work.roof_s += step.roof_s;
        }
    }

    pub fn end(self, executor: &mut Executor) -> String {
        let times = executor.end_profile();
        table(executor.program(), &times, &self.work, self.num_steps, self.limits.is_some())
    }
}

fn cost(
    program: &Program,
    instruction: &Instruction,
    chunks: &[ChunkShape],
    limits: Option<&Limits>,
) -> Work {
    let num_tokens = chunks.iter().map(|chunk| chunk.num_tokens).sum::<usize>();
    let num_rows = instruction.rows.count(num_tokens, chunks.iter().filter(|chunk| chunk.samples).count());
    let (macs, bytes, is_integer) = match instruction.kernel {
        Kernel::Linear { weight, .. } if num_rows > 0 => {
            let weight = &program.weights[weight];
            let macs = num_rows * weight.out_features() * weight.in_features();
            (macs, weight.num_bytes(), weight.needs_quantized_input())
        }
        Kernel::Attention { .. } => {
            let geometry = &program.config.geometry;
            let row_macs = 2 * geometry.num_kv_heads * program.heads_per_kv_head * geometry.head_size;
            let position_bytes = geometry.bytes_per_block() / geometry.block_size / geometry.num_layers;
            let sums = chunks.iter().map(|chunk| {
                let end = chunk.first_position + chunk.num_tokens;
                let keys = chunk.num_tokens * (chunk.first_position + end + 1) / 2;
                (keys * row_macs, end * position_bytes)
            });
            let (macs, bytes) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            (macs, bytes, false)
        }
        _ => (0, 0, false),
    };
    let (macs, bytes) = (macs as f64, bytes as f64);
    let roof_s = limits.map_or(0.0, |limits| {
        let rate = if is_integer { limits.int8_per_s } else { limits.f32_per_s };
        (macs / rate).max(bytes / limits.bytes_per_s)
    });
    Work { macs, bytes, roof_s }
}

fn kind_name(program: &Program, instruction: &Instruction) -> String {
    match instruction.kernel {
        Kernel::Linear { weight, .. } => {
            let weight = &program.weights[weight];
            let (out_features, in_features) = (weight.out_features(), weight.in_features());
            format!("linear {in_features} to {out_features}, {}", weight.format())
        }
        kernel => kernel.name().to_owned(),
    }
}

fn table(
    program: &Program,
    times: &[InstructionTime],
    work: &[Work],
    num_steps: usize,
    has_limits: bool,
) -> String {
    let mut kinds: HashMap<String, Kind> = HashMap::new();
    let mut total = Kind::default();
    for ((instruction, time), work) in program.instructions.iter().zip(times).zip(work) {
        let kind = kinds.entry(kind_name(program, instruction)).or_default();
        for kind in [kind, &mut total] {
            kind.num_calls += 1;
            kind.busy += time.busy;
            kind.waiting += time.waiting;
            kind.work.macs += work.macs;
            kind.work.bytes += work.bytes;
            kind.work.roof_s += work.roof_s;
        }
    }
    let mut kinds: Vec<(String, Kind)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.busy));
    let whole_s = (total.busy + total.waiting).as_secs_f64();
    let mut text = format!(
        "| {:34} | calls | us/step |  share | waited before | GMAC/s |  GB/s | of roof |\n",
        format!("kernel, mean of {num_steps} steps")
    );
    text += "|---|---:|---:|---:|---:|---:|---:|---:|\n";
    for (name, kind) in kinds.iter().map(|(name, kind)| (&name[..], kind)).chain([("all", &total)]) {
        let busy_s = kind.busy.as_secs_f64();
        let per_s = |amount: f64, digits: usize| match amount > 0.0 && busy_s > 0.0 {
            true => format!("{:.digits$}", amount / busy_s / 1e9),
            false => "-".to_owned(),
        };
        let is_bounded = has_limits && kind.work.roof_s > 0.0 && busy_s > 0.0;
        let of_roof =
            if is_bounded { format!("{:.0} %", kind.work.roof_s / busy_s * 100.0) } else { "-".to_owned() };
        text += &format!(
            "| {name:34} | {:5} | {:7.1} | {:4.1} % | {:10.1} us | {:>6} | {:>5} | {of_roof:>7} |\n",
            kind.num_calls,
            busy_s * 1e6 / num_steps as f64,
            busy_s / whole_s * 100.0,
            kind.waiting.as_secs_f64() * 1e6 / num_steps as f64,
            per_s(kind.work.macs, 0),
            per_s(kind.work.bytes, 1),
        );
    }
    text
}
