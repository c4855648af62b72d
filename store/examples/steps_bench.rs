//! Measures how much writing a store slows down steps: `steps_bench DIR [ROUNDS] [BLOCKS_PER_STEP]`.
//!
//! Two threads compute steps of equal work, and a step ends when both are done, as in the kernels' thread pool on two
//! cores. Rounds with and without writes alternate, so that other load on the machine hits both alike.

use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use trunkline_contract::BlockKey;
use trunkline_store::{Geometry, NewBlock, Store};

/// A block of 64 tokens of the default model in int8.
const BLOCK_BYTES: u64 = 783_360;
const NUM_SLOTS: u32 = 1_500;
const BESIDE: [&str; 2] = ["nothing beside", "blocks written"];
const STEPS_PER_TURN: usize = 20;
const STEP_WORK: u32 = 1_500;

/// Some hundred microseconds of arithmetic in the first caches.
fn work(lanes: &mut [f32; 4096]) {
    for lane in lanes.iter_mut() {
        *lane = *lane * 1.000_001 + 1e-7;
    }
    black_box(lanes);
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().context("the folder is missing")?).join("steps-bench");
    let num_rounds: usize = args.next().map_or(Ok(10), |text| text.parse())?;
    let per_step: usize = args.next().map_or(Ok(8), |text| text.parse())?;
    let geometry = Geometry {
        fingerprint: "bench".to_owned(),
        block_bytes: BLOCK_BYTES,
        block_size: 64,
        num_slots: NUM_SLOTS,
    };
    let (store, _) = Store::open(&folder, geometry)?;
    let times = run(&store, num_rounds, per_step);
    drop(store);
    std::fs::remove_dir_all(&folder)?;
    let mut out = std::io::stdout().lock();
    for (beside, mut times) in BESIDE.iter().zip(times?) {
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
        let (p50, p90, p99, most) = (at(0.5), at(0.9), at(0.99), at(1.0));
        writeln!(out, "{beside:<15} p50 {p50:6.1} ms  p90 {p90:6.1}  p99 {p99:6.1}  longest {most:6.1}")?;
    }
    Ok(())
}

fn run(store: &Store, num_rounds: usize, per_step: usize) -> Result<[Vec<Duration>; 2]> {
    let num_steps = num_rounds * BESIDE.len() * STEPS_PER_TURN;
    let mut times = [Vec::new(), Vec::new()];
    let (barrier, units) = (Barrier::new(2), AtomicU32::new(0));
    let (blocks, queue) = mpsc::sync_channel::<()>(1024);
    let token_ids: Vec<u32> = (0..64).collect();
    let root = BlockKey::root(["bench"].into_iter());
    let source: Vec<u8> = (0..BLOCK_BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    let compute = |lanes: &mut [f32; 4096]| {
        barrier.wait();
        while units.fetch_add(1, Ordering::Relaxed) < STEP_WORK {
            (0..60).for_each(|_| work(lanes));
        }
        barrier.wait();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lanes = [0.0; 4096];
            (0..num_steps).for_each(|_| compute(&mut lanes));
        });
        let (token_ids, source) = (&token_ids, &source);
        scope.spawn(move || {
            for (index, ()) in queue.iter().enumerate() {
                let block = NewBlock { key: root, parent: root, root, depth: 0, token_ids };
                let slot = index as u32 % NUM_SLOTS;
                store.write(slot, &block, source).expect("the disk takes it");
                store.begin_write_back(slot);
            }
        });
        let mut lanes = [0.0; 4096];
        for step in 0..num_steps {
            let beside = step / STEPS_PER_TURN % BESIDE.len();
            if step % STEPS_PER_TURN == 0 {
                store.sync().expect("the disk takes it");
            }
            units.store(0, Ordering::Relaxed);
            let began = Instant::now();
            compute(&mut lanes);
            times[beside].push(began.elapsed());
            if beside > 0 {
                (0..per_step).for_each(|_| blocks.send(()).expect("the writer lives"));
            }
        }
        drop(blocks);
    });
    Ok(times)
}
