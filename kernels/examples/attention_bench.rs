//! Times attention on this machine: `cargo run --release -p trunkline-kernels --example attention_bench`.
//!
//! The heads are those of SmolLM2-135M (9 query heads, 3 KV heads of 64 elements), with 4 layers and blocks of 64.
//! Prints the best of several passes for each KV dtype: prefill of 256 rows after histories of several lengths, and
//! decode of 1, 8 and 32 sequences. The figures are multiply-adds per second (two per query head, position and element)
//! and the bandwidth of reading K and V once.
//!
//! The arguments are `[dtype,dtype..] [threads] [part of a case name]`; the default is `int8,int4,f16,bf16 2` and all
//! cases.
#![allow(clippy::print_stdout)] // a report is what it is for

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use trunkline_kernels::attention::{
    Item, Rows, Scratch, Target, Window, attend, num_segments, rows_per_item,
};
use trunkline_kernels::isa::Isa;
use trunkline_kernels::kv_pool::{KvDtype, KvGeometry, KvPool};
use trunkline_kernels::shared_mut::SharedMut;
use trunkline_kernels::threads::ThreadPool;

const NUM_LAYERS: usize = 4;
const NUM_KV_HEADS: usize = 3;
const HEADS_PER_KV_HEAD: usize = 3;
const HEAD_SIZE: usize = 64;
const BLOCK_SIZE: usize = 64;
const MAX_POSITIONS: usize = 6400;
const MAX_SEQUENCES: usize = 32;
const WIDTH: usize = NUM_KV_HEADS * HEADS_PER_KV_HEAD * HEAD_SIZE;
const PREFILL_ROWS: usize = 256;
/// Each case runs for at least this long and at least `MIN_PASSES` times. The best pass counts.
const CASE_TIME: Duration = Duration::from_millis(400);
const MIN_PASSES: usize = 3;
/// Number of repetitions of one item on one thread.
const APART_PASSES: usize = 20;

/// Rows of a sequence that lie in one block, for one KV head.
struct Piece {
    sequence: usize,
    kv_head: usize,
    first_row: usize,
    first_position: usize,
    num_rows: usize,
}

struct Bench {
    isa: Isa,
    pool: KvPool,
    threads: ThreadPool,
    scratches: Vec<Scratch>,
    tables: Vec<Vec<u32>>,
    queries: Vec<f32>,
    out: Vec<f32>,
}

/// Returns a pseudo-random number, roughly uniform in -1..1.
fn noise(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32) / (1u64 << 23) as f32 - 1.0
}

impl Bench {
    fn new(dtype: KvDtype, num_threads: usize) -> Result<Self> {
        let isa = Isa::detect()?;
        let geometry = KvGeometry {
            num_layers: NUM_LAYERS,
            num_kv_heads: NUM_KV_HEADS,
            head_size: HEAD_SIZE,
            block_size: BLOCK_SIZE,
            dtype,
            latent_size: None,
        };
        let blocks_per_sequence = MAX_POSITIONS / BLOCK_SIZE;
        let mut pool = KvPool::new(geometry, blocks_per_sequence * MAX_SEQUENCES)?;
        let width = NUM_KV_HEADS * HEAD_SIZE;
        let kv: Vec<f32> = (0..width * 1009).map(|i| noise(i) * 2.0).collect();
        let view = pool.view();
        for slot in 0..blocks_per_sequence * MAX_SEQUENCES * BLOCK_SIZE {
            let row = |salt: usize| &kv[(slot * 7 + salt) % 1009 * width..][..width];
            for layer in 0..NUM_LAYERS {
                let (block, offset) = ((slot / BLOCK_SIZE) as u32, slot % BLOCK_SIZE);
                // SAFETY: there is only one thread.
                unsafe { view.write(isa, layer, block, offset, row(layer), row(layer + 500)) };
            }
        }
        let tables = (0..MAX_SEQUENCES)
            .map(|s| (0..blocks_per_sequence as u32).map(|b| b * MAX_SEQUENCES as u32 + s as u32).collect())
            .collect();
        Ok(Self {
            isa,
            pool,
            threads: ThreadPool::new(num_threads)?,
            scratches: (0..num_threads).map(|_| Scratch::new(&geometry, HEADS_PER_KV_HEAD)).collect(),
            tables,
            queries: (0..PREFILL_ROWS * WIDTH).map(noise).collect(),
            out: vec![0.0; PREFILL_ROWS * WIDTH],
        })
    }

    fn pass(&mut self, layer: usize, pieces: &[Piece]) {
        let kv = self.pool.view();
        let (isa, queries, tables) = (self.isa, &self.queries, &self.tables);
        let out = SharedMut::new(&mut self.out);
        let scratches = SharedMut::new(&mut self.scratches);
        let next = AtomicUsize::new(0);
        self.threads.run(|thread_idx, _barrier| {
            // SAFETY: each thread has its own scratch.
            let scratch = unsafe { &mut scratches.slice_mut(thread_idx..thread_idx + 1)[0] };
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let item = Item {
                    block_table: &tables[piece.sequence],
                    layer,
                    kv_head: piece.kv_head,
                    heads_per_kv_head: HEADS_PER_KV_HEAD,
                    first_position: piece.first_position,
                    last_position: piece.first_position + piece.num_rows - 1,
                    num_rows: piece.num_rows,
                    scale: 0.125,
                    soft_cap: None,
                    window: Window::NONE,
                    sinks: None,
                    first_segment: 0,
                    end_segment: num_segments(piece.first_position),
                    next: None,
                };
                let first = piece.first_row * WIDTH;
                let rows = Rows { pointer: queries[first..].as_ptr(), stride: WIDTH };
                let target = Rows { pointer: out.part(first..out.len()).as_mut_ptr(), stride: WIDTH };
                // SAFETY: the pieces have different rows or heads.
                unsafe { attend(isa, &kv, &item, rows, scratch, Target::Rows(target)) };
            }
        });
    }

    /// Returns the seconds that one thread takes for the pieces, as the sum of each piece's best time. Other load
    /// hardly affects it, but K and V come from the caches.
    fn time_apart(&mut self, pieces: &[Piece]) -> f64 {
        let time = |piece| {
            let once = |this: &mut Self| {
                let start = Instant::now();
                this.pass(0, std::slice::from_ref(piece));
                start.elapsed().as_secs_f64()
            };
            (0..APART_PASSES).map(|_| once(self)).fold(f64::INFINITY, f64::min)
        };
        pieces.iter().map(time).sum()
    }

    /// Returns the seconds of the best pass. Each pass uses the next layer.
    fn time(&mut self, pieces: &[Piece]) -> f64 {
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        let mut num_passes = 0;
        while num_passes < MIN_PASSES || begin.elapsed() < CASE_TIME {
            let start = Instant::now();
            self.pass(num_passes % NUM_LAYERS, pieces);
            best = best.min(start.elapsed().as_secs_f64());
            num_passes += 1;
        }
        best
    }
}

/// Returns the pieces of rows `first..first + num_rows` of a sequence, longest first.
fn pieces(sequence: usize, first_row: usize, first: usize, num_rows: usize) -> Vec<Piece> {
    let most = rows_per_item(HEADS_PER_KV_HEAD);
    let mut pieces = Vec::new();
    let mut position = first;
    while position < first + num_rows {
        let rows = most.min(first + num_rows - position).min(BLOCK_SIZE - position % BLOCK_SIZE);
        pieces.extend((0..NUM_KV_HEADS).map(|kv_head| Piece {
            sequence,
            kv_head,
            first_row: first_row + position - first,
            first_position: position,
            num_rows: rows,
        }));
        position += rows;
    }
    pieces.reverse();
    pieces
}

fn report(dtype: KvDtype, wanted: &str, what: &str, pieces: &[Piece], bench: &mut Bench) {
    if !what.contains(wanted) {
        return;
    }
    let seconds = if bench.scratches.len() == 1 { bench.time_apart(pieces) } else { bench.time(pieces) };
    let positions = |piece: &Piece| -> usize {
        (piece.first_position + 1..=piece.first_position + piece.num_rows).sum::<usize>() * HEADS_PER_KV_HEAD
    };
    let products: usize = pieces.iter().map(|piece| positions(piece) * 2 * HEAD_SIZE).sum();
    let per_block = bench.pool.geometry().bytes_per_block() / NUM_LAYERS / NUM_KV_HEADS;
    let blocks: usize =
        pieces.iter().map(|piece| (piece.first_position + piece.num_rows).div_ceil(BLOCK_SIZE)).sum();
    println!(
        "{dtype:>5} {what:<24} {:9.1} us {:7.1} GMAC/s {:7.1} GB/s",
        seconds * 1e6,
        products as f64 / seconds * 1e-9,
        (blocks * per_block) as f64 / seconds * 1e-9,
    );
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dtypes = arguments.next().unwrap_or_else(|| "int8,int4,f16,bf16".to_owned());
    let threads = arguments.next().map_or(Ok(2), |n| n.parse()).context("`threads` is a number")?;
    let wanted = arguments.next().unwrap_or_default();
    println!("{}, {threads} threads", Isa::detect()?);
    for dtype in dtypes.split(',') {
        let dtype: KvDtype = dtype.parse()?;
        let mut bench = Bench::new(dtype, threads)?;
        for history in [0, 512, 2048, 6000] {
            let pieces = pieces(0, 0, history, PREFILL_ROWS);
            report(dtype, &wanted, &format!("prefill 256 at {history}"), &pieces, &mut bench);
        }
        for num_sequences in [1, 8, 32] {
            for history in [512, 6000] {
                let pieces: Vec<Piece> =
                    (0..num_sequences).flat_map(|s| pieces(s, s, history - 1, 1)).collect();
                report(dtype, &wanted, &format!("decode {num_sequences} at {history}"), &pieces, &mut bench);
            }
        }
    }
    Ok(())
}
