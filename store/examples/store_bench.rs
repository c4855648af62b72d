//! Rates of a store beside those of memory: `store_bench DIR [BLOCK_BYTES] [NUM_BLOCKS]`.
//!
//! Writes and reads through the page cache, each block alone, minimum and median over the blocks; then through the
//! threads, all at once. DIR/store-bench is made and removed.

use std::hint::black_box;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use trunkline_contract::BlockKey;
use trunkline_store::{Geometry, NewBlock, Piece, RestoreBlock, Store, StoreBlock, Transfers, records};

/// A block of 64 tokens of the default model in int8.
const BLOCK_BYTES: u64 = 783_360;
const NUM_BLOCKS: u32 = 200;
const BLOCK_SIZE: u32 = 64;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(args.next().context("the folder is missing")?).join("store-bench");
    let block_bytes = args.next().map_or(Ok(BLOCK_BYTES), |text| text.parse())?;
    let num_slots = args.next().map_or(Ok(NUM_BLOCKS), |text| text.parse())?;
    let geometry =
        Geometry { fingerprint: "bench".to_owned(), block_bytes, block_size: BLOCK_SIZE, num_slots };
    let (store, _) = Store::open(&folder, geometry)?;
    let result = run(store, &folder);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn run(store: Store, folder: &std::path::Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let geometry = store.geometry().clone();
    let num_bytes = geometry.block_bytes as usize;
    let source: Vec<u8> = (0..num_bytes).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut target = vec![0; num_bytes];
    let token_ids: Vec<u32> = (0..BLOCK_SIZE).collect();
    let root = BlockKey::root(["bench"].into_iter());
    let mut keys = vec![root];
    (0..geometry.num_slots as usize).for_each(|i| keys.push(keys[i].extend(&token_ids)));
    let block = |slot: usize| NewBlock {
        key: keys[slot + 1],
        parent: keys[slot],
        root,
        depth: slot as u32,
        token_ids: &token_ids,
    };
    let slots = 0..geometry.num_slots;

    let report = |out: &mut dyn Write, what: &str, mut times: Vec<Duration>| -> Result<()> {
        times.sort_unstable();
        let rate = |time: Duration| num_bytes as f64 / time.as_secs_f64() / 1e6;
        let (best, median) = (times[0], times[times.len() / 2]);
        let (best_us, median_us) = (best.as_micros(), median.as_micros());
        let (best, median) = (rate(best), rate(median));
        writeln!(
            out,
            "{what:<28} {best_us:>6} us {best:>7.0} MB/s   median {median_us:>6} us {median:>7.0} MB/s"
        )?;
        Ok(())
    };
    let timed = |run: &mut dyn FnMut() -> Result<()>| -> Result<Duration> {
        let began = Instant::now();
        run()?;
        Ok(began.elapsed())
    };
    let times = |run: &mut dyn FnMut(u32) -> Result<()>| -> Result<Vec<Duration>> {
        slots.clone().map(|slot| timed(&mut || run(slot))).collect()
    };

    let copied = times(&mut |_| {
        target.copy_from_slice(black_box(&source));
        Ok(())
    })?;
    report(&mut out, "memcpy", copied)?;
    let mut write = |slot: u32| Ok(store.write(slot, &block(slot as usize), &source)?);
    let fresh = times(&mut write)?;
    report(&mut out, "write, fresh slot", fresh)?;
    let again = times(&mut write)?;
    report(&mut out, "write, used slot", again)?;
    let read = times(&mut |slot| {
        store.read(slot, keys[slot as usize + 1], &mut target).map(drop).map_err(Into::into)
    })?;
    report(&mut out, "read", read)?;
    let began = Instant::now();
    let found = records(folder)?.blocks.len();
    writeln!(out, "{found} records read in {} us", began.elapsed().as_micros())?;

    let transfers = Transfers::start(store)?;
    let storing = times(&mut |slot| {
        let new = block(slot as usize);
        let block = StoreBlock {
            slot,
            key: new.key,
            parent: new.parent,
            root,
            depth: new.depth,
            token_ids: new.token_ids.into(),
        };
        transfers.begin_store(block, [&source[..]])?;
        transfers.wait_stores(Duration::MAX);
        Ok(())
    })?;
    report(&mut out, "store by the thread, waited", storing)?;
    transfers.finish();
    drop(transfers.take_outcomes());

    let mut history = vec![0u8; num_bytes * geometry.num_slots as usize];
    let base = history.as_mut_ptr();
    for round in ["first", "again"] {
        let blocks = slots.clone().map(|slot| {
            // SAFETY: one part for each slot.
            let destination = unsafe { base.add(slot as usize * num_bytes) };
            let pieces = vec![Piece { offset: 0, num_bytes, destination }];
            RestoreBlock { slot, key: keys[slot as usize + 1], pieces }
        });
        // SAFETY: the parts do not overlap, and `history` outlives the wait.
        unsafe { transfers.begin_restore(1, blocks.collect(), None)? };
        transfers.wait_outcomes(Duration::from_secs(600));
        let outcome = transfers.take_outcomes().restores[0];
        let (blocks, time) = (outcome.num_blocks, outcome.time);
        let rate = num_bytes as f64 * f64::from(blocks) / time.as_secs_f64() / 1e6;
        writeln!(out, "one restore, {round}: {blocks} blocks in {} ms, {rate:.0} MB/s", time.as_millis())?;
    }
    drop(transfers);
    Ok(())
}
