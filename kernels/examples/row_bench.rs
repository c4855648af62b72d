//! Times the row-wise operations on this machine: `cargo run --release -p trunkline-kernels --example row_bench`.
//!
//! The widths are those of SmolLM2-135M. All operands are in the first-level cache, except blocks of K and V, which are
//! in the second. For each operation it prints the nanoseconds per row of the best pass, and the cycles per unit: a
//! group of 32 elements to quantise, a vector of 16 elements, or a head of K and V to write. Cycles are calibrated with
//! a chain of dependent multiplications.
//!
//! The argument is `[instruction set]`; the default is the fastest.
#![allow(clippy::print_stdout)] // a report is what it is for

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use trunkline_kernels::aligned::AlignedBytes;
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry, KvPool};
use trunkline_kernels::ops::add::add_in_place;
use trunkline_kernels::ops::rms_norm::rms_norm;
use trunkline_kernels::ops::rope::{RopeFrequencies, rope_in_place};
use trunkline_kernels::ops::silu_mul::silu_mul_in_place;
use trunkline_kernels::quantize::{QUANT_GROUP, QuantizedShape, quantize_rows};
use trunkline_kernels::shared_mut::SharedMut;

const WIDTH: usize = 576;
const INNER_WIDTH: usize = 1536;
const NUM_KV_HEADS: usize = 3;
const HEAD_SIZE: usize = 64;
const BLOCK_SIZE: usize = 64;
const VECTOR: usize = 16;
/// Number of rows per call or pass.
const ROWS: usize = 8;
const PASSES: usize = 20_000;
/// Number of links of the chain that measures the clock. Each link is a multiplication and an addition.
const CHAIN: usize = 1 << 20;
const LINK_CYCLES: f64 = 4.0;

/// Returns pseudo-random numbers, roughly uniform in -1..1.
fn noise(num: usize) -> Vec<f32> {
    let num = num + VECTOR;
    let mixed = |seed: usize| (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..num).map(|seed| mixed(seed) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// Returns the part of `values` that begins at the first cache line boundary.
fn aligned(values: &mut [f32], num: usize) -> &mut [f32] {
    let offset = values.as_ptr().align_offset(64);
    &mut values[offset..offset + num]
}

/// Measures the cycles per nanosecond.
fn clock() -> f64 {
    let chain = || {
        let started = Instant::now();
        let mut x = black_box(3u64);
        for _ in 0..CHAIN {
            x = black_box(x.wrapping_mul(x)) | 1;
        }
        black_box(x);
        started.elapsed()
    };
    let best = (0..20).map(|_| chain()).min().unwrap_or_default();
    CHAIN as f64 * LINK_CYCLES / best.as_nanos() as f64
}

fn report(clock: f64, name: &str, units_per_row: usize, mut pass: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..PASSES {
        let started = Instant::now();
        pass();
        best = best.min(started.elapsed());
    }
    let row_ns = best.as_nanos() as f64 / ROWS as f64;
    println!(
        "{name:<28} {row_ns:>8.1} ns a row {:>8.1} cycles a unit",
        row_ns * clock / units_per_row as f64
    );
}

fn quantize(isa: Isa, clock: f64, width: usize) {
    let shape = QuantizedShape::new(ROWS, width);
    let mut x = noise(ROWS * width);
    let x = aligned(&mut x, ROWS * width);
    let mut bytes = AlignedBytes::zeroed(shape.num_bytes());
    report(clock, &format!("quantise {width}"), width / QUANT_GROUP, || {
        // SAFETY: there is only one thread.
        unsafe { quantize_rows(isa, shape, x, width, 0..ROWS, SharedMut::new(bytes.as_mut_slice())) };
    });
}

fn write_kv(isa: Isa, clock: f64, dtype: KvDtype) -> Result<()> {
    let geometry = KvGeometry {
        num_layers: 1,
        num_kv_heads: NUM_KV_HEADS,
        head_size: HEAD_SIZE,
        block_size: BLOCK_SIZE,
        dtype,
    };
    let mut pool = KvPool::new(geometry, 2)?;
    let mut x = noise(ROWS * NUM_KV_HEADS * HEAD_SIZE);
    let x = aligned(&mut x, ROWS * NUM_KV_HEADS * HEAD_SIZE);
    let view = pool.view();
    report(clock, &format!("write kv {dtype}"), NUM_KV_HEADS, || {
        for (row, x) in x.chunks_exact(NUM_KV_HEADS * HEAD_SIZE).enumerate() {
            // SAFETY: there is only one thread.
            unsafe { view.write(isa, 0, 1, row, x, x) };
        }
    });
    Ok(())
}

fn elementwise(isa: Isa, clock: f64) {
    let (mut x, mut y, mut z) = (noise(ROWS * INNER_WIDTH), noise(INNER_WIDTH), noise(ROWS * WIDTH));
    let (x, y) = (aligned(&mut x, ROWS * INNER_WIDTH), aligned(&mut y, INNER_WIDTH));
    report(clock, "silu mul 1536", INNER_WIDTH / VECTOR, || {
        x.chunks_exact_mut(INNER_WIDTH).for_each(|x| silu_mul_in_place(isa, x, y));
    });
    let (x, out) = (&mut x[..ROWS * WIDTH], aligned(&mut z, ROWS * WIDTH));
    x.fill(0.7);
    report(clock, "norm 576", WIDTH / VECTOR, || {
        for (x, out) in x.chunks_exact(WIDTH).zip(out.chunks_exact_mut(WIDTH)) {
            rms_norm(isa, x, &y[..WIDTH], 1e-5, out);
        }
    });
    report(clock, "add 576", WIDTH / VECTOR, || {
        out.chunks_exact_mut(WIDTH).zip(x.chunks_exact(WIDTH)).for_each(|(out, x)| add_in_place(isa, out, x));
    });
    let frequencies = RopeFrequencies::new((0..HEAD_SIZE / 2).map(|i| 0.7f64.powi(i as i32)).collect(), 1.0);
    let mut table = noise(HEAD_SIZE);
    let table = aligned(&mut table, HEAD_SIZE);
    frequencies.fill(77, table);
    report(clock, "rope 576", WIDTH / VECTOR, || {
        x.chunks_exact_mut(WIDTH).for_each(|x| rope_in_place(isa, x, table, HEAD_SIZE));
    });
}

fn main() -> Result<()> {
    let isa = match std::env::args().nth(1) {
        Some(name) => Isa::named(&name)?,
        None => Isa::detect()?,
    };
    let clock = clock();
    println!("{isa}, {clock:.2} GHz");
    quantize(isa, clock, WIDTH);
    quantize(isa, clock, INNER_WIDTH);
    elementwise(isa, clock);
    KvDtype::ALL.into_iter().try_for_each(|dtype| write_kv(isa, clock, dtype))
}
