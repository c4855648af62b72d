//! Stores and restores blocks, on an in-memory disk that can be made to wait.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trunkline_store::disk::DiskFile;
use trunkline_store::{BlockKey, Geometry, Outcomes, Store, StoreOutcome, Transfers};

use super::*;

const SEQUENCE: u64 = 1;
const NUM_SLOTS: u32 = 32;
/// The time that a step waits for its stores.
const STORE_WAIT: Duration = Duration::from_millis(10);
/// A limit that no transfer reaches.
const LONG: Duration = Duration::from_secs(60);

/// An in-memory file whose writes wait while `gate` is locked.
#[derive(Clone, Debug, Default)]
struct SlowFile {
    bytes: Arc<Mutex<Vec<u8>>>,
    gate: Arc<Mutex<()>>,
}

impl DiskFile for SlowFile {
    fn num_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }

    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().resize(num_bytes as usize, 0);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let file = self.bytes.lock().unwrap();
        let there = file.get(offset as usize..).unwrap_or_default();
        let count = there.len().min(bytes.len());
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        drop(self.gate.lock().unwrap());
        let mut file = self.bytes.lock().unwrap();
        let end = offset as usize + bytes.len();
        if file.len() < end {
            file.resize(end, 0);
        }
        file[offset as usize..end].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// An executor with a store and one sequence of 100 tokens, of which six full blocks are computed.
struct Bench {
    executor: Executor,
    transfers: Arc<Transfers>,
    tokens: Vec<u32>,
    /// The root key, then the key of each full block.
    keys: Vec<BlockKey>,
    gate: Arc<Mutex<()>>,
}

fn geometry(executor: &mut Executor) -> Geometry {
    Geometry {
        fingerprint: "test".to_owned(),
        block_bytes: executor.kv_pool_mut().geometry().bytes_per_block() as u64,
        block_size: BLOCK_SIZE as u32,
        num_slots: NUM_SLOTS,
    }
}

fn open(geometry: Geometry, blocks: &SlowFile) -> Arc<Transfers> {
    let files: [Box<dyn DiskFile>; 2] = [Box::new(SlowFile::default()), Box::new(blocks.clone())];
    let [records, blocks] = files;
    let (store, _) = Store::open_on(records, blocks, geometry, Path::new("records")).unwrap();
    Arc::new(Transfers::start(store).unwrap())
}

impl Bench {
    fn new(recipe: Recipe) -> Self {
        let mut executor = build(recipe, 2, best());
        let blocks = SlowFile::default();
        let transfers = open(geometry(&mut executor), &blocks);
        executor.attach_store(transfers.clone()).unwrap();
        let tokens = prompt(51, 100);
        let mut keys = vec![BlockKey::root(["a tenant"].into_iter())];
        for block in tokens.chunks_exact(BLOCK_SIZE) {
            keys.push(keys.last().unwrap().extend(block));
        }
        let mut bench = Self { executor, transfers, tokens, keys, gate: blocks.gate };
        bench.start(SEQUENCE, Some(bench.keys[0]));
        assert!(bench.executor.step(&[bench.chunk(SEQUENCE, 0, 97, &[0, 1, 2, 3, 4, 5, 6])]).is_empty());
        bench
    }

    fn start(&mut self, sequence_id: u64, root: Option<BlockKey>) {
        let tokens = self.tokens.clone();
        self.executor.start(sequence_id, tokens, self.tokens.len(), observant()).unwrap();
        if let Some(root) = root {
            self.executor.set_root_key(sequence_id, root).unwrap();
        }
    }

    fn chunk(&self, sequence_id: u64, first: usize, end: usize, new_block_ids: &[u32]) -> Chunk {
        chunk(sequence_id, first, end, new_block_ids, end == self.tokens.len())
    }

    fn outcomes(&self, count: usize) -> Outcomes {
        let mut all = self.transfers.take_outcomes();
        while all.stores.len() + all.restores.len() < count {
            self.transfers.wait_outcomes(LONG);
            let mut new = self.transfers.take_outcomes();
            all.stores.append(&mut new.stores);
            all.restores.append(&mut new.restores);
        }
        all
    }

    /// Returns the time that `begin_stores` takes for block 0 in `slot`.
    fn time_to_store(&mut self, slot: u32) -> Duration {
        let start = Instant::now();
        self.executor.begin_stores(&[(SEQUENCE, 0, slot)], |_| false).unwrap();
        start.elapsed()
    }
}

#[test]
fn restored_blocks_equal_stored_blocks() {
    for recipe in [PLAIN, GEMMA] {
        let mut bench = Bench::new(recipe);
        let expected = bench.executor.step(&[bench.chunk(SEQUENCE, 97, 100, &[])]);
        let stores: Vec<(u64, u32, u32)> = (0..6).map(|block| (SEQUENCE, block, 10 + block)).collect();
        bench.executor.begin_stores(&stores, |_| false).unwrap();
        let stored: Vec<_> = (10..16).map(|slot| StoreOutcome { slot, is_stored: true }).collect();
        assert_eq!(bench.outcomes(6).stores, stored);
        bench.executor.kv_pool_mut().fill(half::f16::NAN.to_bits());
        // Block 5 - i of the path is restored to block 20 + i of the pool.
        let blocks: Vec<(u32, u32, BlockKey, bool)> =
            (0..6).map(|i| (15 - i, 20 + i, bench.keys[6 - i as usize], false)).collect();
        bench.executor.begin_restore(7, &blocks, None).unwrap();
        let restored = bench.outcomes(1).restores;
        assert_eq!((restored[0].restore_id, restored[0].num_blocks), (7, 6));
        bench.start(2, None);
        let got = bench.executor.step(&[bench.chunk(2, 96, 100, &[25, 24, 23, 22, 21, 20, 30])]);
        assert_eq!(got[0].outcome, expected[0].outcome);
    }
}

#[test]
fn a_step_waits_for_an_idle_disk_but_not_for_a_busy_one() {
    let mut bench = Bench::new(PLAIN);
    let gate = bench.gate.clone();
    // While the gate is locked no store ends.
    let held = gate.lock().unwrap();
    let idle = bench.time_to_store(0);
    let is_storing = bench.transfers.is_storing();
    let behind = (1..16).map(|slot| bench.time_to_store(slot)).min().unwrap();
    drop(held);
    // The disk was idle, so the first step waits until its limit.
    assert!(idle >= STORE_WAIT && is_storing, "nobody waited, but {idle:?}");
    // Now the disk is behind, and later steps do not wait. The shortest of many times excludes other load.
    assert!(behind < STORE_WAIT, "every step waited, {behind:?} at least");
    let outcomes = bench.outcomes(16).stores;
    assert!(outcomes.iter().all(|outcome| outcome.is_stored), "{outcomes:?}");
}

#[test]
fn blocks_of_a_failed_sequence_are_refused_and_the_others_stored() {
    let mut bench = Bench::new(PLAIN);
    bench.start(2, Some(bench.keys[0]));
    assert!(bench.executor.step(&[bench.chunk(2, 0, 40, &[10, 11, 12])]).is_empty());
    bench.executor.begin_stores(&[(SEQUENCE, 1, 3), (2, 1, 4)], |id| id == SEQUENCE).unwrap();
    let mut outcomes = bench.outcomes(2).stores;
    outcomes.sort_by_key(|outcome| outcome.slot);
    let expected = [(3, false), (4, true)].map(|(slot, is_stored)| StoreOutcome { slot, is_stored });
    assert_eq!(outcomes, expected);
}

#[test]
fn invalid_transfers_are_refused_with_a_reason() {
    let mut bench = Bench::new(PLAIN);
    let (keys, executor) = (bench.keys.clone(), &mut bench.executor);
    let message =
        |result: Result<(), trunkline_kernels::executor::ExecutorError>| result.unwrap_err().to_string();
    let contains = |text: String, part: &str| assert!(text.contains(part), "{text}");
    contains(message(executor.begin_store(SEQUENCE, 6, 0)), "block 6 of sequence 1 is not full");
    contains(message(executor.begin_store(9, 0, 0)), "sequence 9 is not started");
    contains(
        message(executor.begin_store(SEQUENCE, 0, NUM_SLOTS)),
        "slot 32 does not exist, the store has 32",
    );
    executor.start(2, vec![1; 20], 20, observant()).unwrap();
    contains(message(executor.begin_store(2, 0, 0)), "sequence 2 was started without a root key");
    let twice = [(0, 8, keys[1], false), (1, 8, keys[2], false)];
    contains(message(executor.begin_restore(1, &twice, None)), "block 8 is restored twice");
    let unknown = [(0, NUM_BLOCKS as u32, keys[1], false)];
    contains(
        message(executor.begin_restore(1, &unknown, None)),
        "block 80 does not exist, the pool has 80 blocks",
    );
    contains(message(executor.attach_store(bench.transfers.clone())), "a store is already attached");
    // None of these reached the store.
    assert_eq!(bench.transfers.take_outcomes(), Outcomes::default());

    let mut other = build(PLAIN, 1, best());
    contains(message(other.begin_store(SEQUENCE, 0, 0)), "no store is attached");
    let wrong = Geometry { block_size: 32, ..geometry(&mut other) };
    let wrong = open(wrong, &SlowFile::default());
    contains(message(other.attach_store(wrong)), "its blocks have (bytes, tokens)");
}
