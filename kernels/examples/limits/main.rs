//! Measures the limits of this machine: `limits [--threads N] [--output PATH]`.
//!
//! Measures the read bandwidth of each cache and of memory, multiply-adds in registers for each instruction set, and
//! the time of a barrier of the kernels' thread pool, with one thread and with all threads. Each of these is the best
//! of many short runs on pinned threads, so other load has little effect. It also measures how steady the machine is.
//! Prints a table and writes JSON to PATH:
//!
//! - `machine`: the CPU, the usable CPUs and the sizes of the caches in bytes
//! - `threads`: the number of threads for "all threads"
//! - `read`: `{level, bytes_per_thread, one_thread, all_threads}` in GB/s (1e9 bytes), with `memory` last
//! - `rates`: `{operation, instruction_set, instruction, one_thread, all_threads}` in GMAC/s, where one multiply-add
//!   counts as two operations in data sheets
//! - `barrier_ns`: `{threads, ns}`
//! - `fixed_work_ms`: `{threads, p50, p99}`, the time of work that is always the same, with as many barriers as a step.
//!   No step can be steadier
#![allow(clippy::print_stdout)] // a report is what it is for

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod arch;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "portable.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;
mod caches;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::shared_mut::SharedMut;
use trunkline_kernels::threads::{Pinning, ThreadPool, default_num_threads};

/// Each figure is the best run within this time. A run takes about [`REPEAT_SECONDS`].
const FIGURE_TIME: Duration = Duration::from_millis(800);
const REPEAT_SECONDS: f64 = 0.5e-3;
/// The least memory that all threads together read, which is also at least a multiple of the last cache.
const MIN_MEMORY_BYTES: usize = 256 << 20;
const MEMORY_TIMES_LAST_CACHE: usize = 4;
const BARRIERS_PER_RUN: u32 = 200;
/// The parts of the fixed work, each followed by a barrier, and the time of one.
const FIXED_WORK_PARTS: usize = 300;
const FIXED_WORK_PART_SECONDS: f64 = 12e-6;
const FIXED_WORK_ROUNDS: usize = 1_000;

/// A loop of one multiply-add instruction in registers.
pub struct Rate {
    /// The operation: `f32_fma`, `bf16_dot` or `int8_dot`.
    pub operation: &'static str,
    pub instruction_set: &'static str,
    pub instruction: &'static str,
    pub macs_per_pass: usize,
    pub run: fn(passes: usize),
}

/// Reads memory without instructions of a particular set.
#[cfg(not(target_arch = "x86_64"))]
fn read(bytes: &[u8]) {
    let sums = bytes.chunks_exact(64).fold([0u8; 64], |mut sums, line| {
        sums.iter_mut().zip(line).for_each(|(sum, byte)| *sum ^= byte);
        sums
    });
    std::hint::black_box(sums);
}

struct Figure {
    one_thread: f64,
    all_threads: f64,
}

/// Returns the best rate, in units per second, of `work` on all threads of a pool. `units` is the number per call and
/// thread.
fn best_rate(pool: &mut ThreadPool, units: usize, work: impl Fn(usize) + Sync) -> f64 {
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    while begin.elapsed() < FIGURE_TIME {
        let start = Instant::now();
        pool.run(|thread_idx, _| work(thread_idx));
        best = best.min(start.elapsed().as_secs_f64());
    }
    (units * pool.num_threads()) as f64 / best
}

/// Returns the `n` for which `work(n)` takes [`REPEAT_SECONDS`].
fn passes_per_repeat(work: impl Fn(usize)) -> usize {
    let mut passes = 1;
    loop {
        let start = Instant::now();
        work(passes);
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= REPEAT_SECONDS / 4.0 {
            return ((passes as f64 * REPEAT_SECONDS / seconds) as usize).max(1);
        }
        passes *= 4;
    }
}

struct Pools {
    one: ThreadPool,
    all: ThreadPool,
}

impl Pools {
    fn rate(&mut self, rate: &Rate) -> Figure {
        let passes = passes_per_repeat(rate.run);
        let measure = |pool: &mut ThreadPool| {
            best_rate(pool, passes * rate.macs_per_pass, |_| (rate.run)(passes)) / 1e9
        };
        Figure { one_thread: measure(&mut self.one), all_threads: measure(&mut self.all) }
    }

    fn read(&mut self, bytes_per_thread: usize) -> Figure {
        let measure = |pool: &mut ThreadPool| {
            let mut bytes = AlignedBytes::zeroed(bytes_per_thread * pool.num_threads());
            let shared = SharedMut::new(bytes.as_mut_slice());
            let part = |thread_idx: usize| thread_idx * bytes_per_thread..(thread_idx + 1) * bytes_per_thread;
            // Each thread touches its own part first, so that it is allocated on the thread's node.
            // SAFETY: the threads' parts are disjoint.
            pool.run(|thread_idx, _| unsafe { shared.slice_mut(part(thread_idx)) }.fill(1));
            let read = |read: fn(&[u8]), thread_idx: usize, passes: usize| {
                // SAFETY: the memory is not written any more.
                let bytes = unsafe { shared.slice(part(thread_idx)) };
                (0..passes).for_each(|_| read(bytes));
            };
            let measure = |pool: &mut ThreadPool, reader: fn(&[u8])| {
                let passes = passes_per_repeat(|passes| read(reader, 0, passes));
                best_rate(pool, passes * bytes_per_thread, |thread_idx| read(reader, thread_idx, passes))
                    / 1e9
            };
            arch::READERS.iter().map(|reader| measure(pool, *reader)).fold(0.0, f64::max)
        };
        Figure { one_thread: measure(&mut self.one), all_threads: measure(&mut self.all) }
    }

    /// Returns the nanoseconds between two barriers while threads do nothing else.
    fn barrier_ns(&mut self) -> f64 {
        let mut best = f64::INFINITY;
        let begin = Instant::now();
        while begin.elapsed() < FIGURE_TIME {
            let nanos = std::sync::atomic::AtomicU64::new(0);
            self.all.run(|thread_idx, barrier| {
                barrier.wait();
                let start = Instant::now();
                (0..BARRIERS_PER_RUN).for_each(|_| barrier.wait());
                if thread_idx == 0 {
                    let elapsed = start.elapsed().as_nanos() as u64;
                    nanos.store(elapsed, std::sync::atomic::Ordering::Relaxed);
                }
            });
            best = best.min(nanos.into_inner() as f64);
        }
        best / f64::from(BARRIERS_PER_RUN)
    }

    /// Returns the median and the 99th percentile of the milliseconds that all threads take for the same work.
    fn fixed_work_ms(&mut self, rate: &Rate) -> (f64, f64) {
        let part = (passes_per_repeat(rate.run) as f64 * FIXED_WORK_PART_SECONDS / REPEAT_SECONDS) as usize;
        let mut times: Vec<f64> = (0..FIXED_WORK_ROUNDS)
            .map(|_| {
                let start = Instant::now();
                self.all.run(|_, barrier| {
                    for _ in 0..FIXED_WORK_PARTS {
                        (rate.run)(part);
                        barrier.wait();
                    }
                });
                start.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (times[FIXED_WORK_ROUNDS / 2], times[FIXED_WORK_ROUNDS * 99 / 100])
    }
}

struct Arguments {
    threads: usize,
    output: Option<String>,
}

fn arguments() -> Result<Arguments> {
    let mut parsed = Arguments { threads: default_num_threads(), output: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("`{name}` has no value"))?;
        match name.as_str() {
            "--threads" => parsed.threads = value.parse().context("`--threads`")?,
            "--output" => parsed.output = Some(value),
            _ => bail!("unknown argument `{name}`; hint: `--threads N`, `--output PATH`"),
        }
    }
    Ok(parsed)
}

/// Returns the working set per thread for each cache: half of the cache, divided among the threads that share it.
fn levels(caches: &[caches::Cache], threads: usize) -> Vec<(String, usize)> {
    let mut levels: Vec<(String, usize)> = Vec::new();
    for cache in caches {
        let bytes = cache.bytes / 2 / cache.num_sharers.min(threads).max(1);
        // A working set that fits in the previous level would measure that level.
        if levels.last().is_none_or(|(_, before)| bytes > 3 * *before) {
            levels.push((format!("l{}", cache.level), bytes.next_multiple_of(4096)));
        }
    }
    let last = caches.last().map_or(0, |cache| cache.bytes);
    let memory = MIN_MEMORY_BYTES.max(MEMORY_TIMES_LAST_CACHE * last).div_ceil(threads);
    levels.push(("memory".to_owned(), memory.next_multiple_of(4096)));
    levels
}

fn row(name: &str, unit: &str, figure: &Figure) {
    println!("| {name} | {:.1} | {:.1} | {unit} |", figure.one_thread, figure.all_threads);
}

fn main() -> Result<()> {
    let Arguments { threads, output } = arguments()?;
    let caches = caches::of_this_machine();
    let pool = |threads| ThreadPool::with_pinning(threads, Pinning::On);
    let mut pools = Pools { one: pool(1)?, all: pool(threads)? };
    println!("{}, {threads} threads\n", caches::cpu_name());
    println!("| limit | one thread | all threads | unit |\n|---|---|---|---|");
    let mut reads = Vec::new();
    for (level, bytes_per_thread) in levels(&caches, threads) {
        let figure = pools.read(bytes_per_thread);
        row(&format!("read {level}, {} KiB a thread", bytes_per_thread >> 10), "GB/s", &figure);
        reads.push(serde_json::json!({
            "level": level,
            "bytes_per_thread": bytes_per_thread,
            "one_thread": figure.one_thread,
            "all_threads": figure.all_threads,
        }));
    }
    let mut rates = Vec::new();
    for rate in arch::rates() {
        let figure = pools.rate(&rate);
        let name = format!("{}, {}: `{}`", rate.operation, rate.instruction_set, rate.instruction);
        row(&name, "GMAC/s", &figure);
        rates.push(serde_json::json!({
            "operation": rate.operation,
            "instruction_set": rate.instruction_set,
            "instruction": rate.instruction,
            "one_thread": figure.one_thread,
            "all_threads": figure.all_threads,
        }));
    }
    let barrier_ns = pools.barrier_ns();
    println!("| barrier of {threads} threads | | {barrier_ns:.0} | ns |");
    let fixed_work = arch::rates().first().map(|rate| pools.fixed_work_ms(rate));
    if let Some((p50, p99)) = fixed_work {
        println!("| fixed work of {threads} threads: p50, p99 | | {p50:.1}, {p99:.1} | ms |");
    }
    let fixed_work =
        fixed_work.map(|(p50, p99)| serde_json::json!({"threads": threads, "p50": p50, "p99": p99}));
    let cache_list: Vec<_> = caches
        .iter()
        .map(|c| serde_json::json!({"level": c.level, "bytes": c.bytes, "shared_by_cpus": c.num_sharers}))
        .collect();
    let report = serde_json::json!({
        "machine": {"cpu": caches::cpu_name(), "usable_cpus": default_num_threads(), "caches": cache_list},
        "threads": threads,
        "read": reads,
        "rates": rates,
        "barrier_ns": {"threads": threads, "ns": barrier_ns},
        "fixed_work_ms": fixed_work,
    });
    if let Some(path) = output {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("write `{path}`"))?;
    }
    Ok(())
}
