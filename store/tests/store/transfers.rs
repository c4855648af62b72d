//! Transfers on threads: outcomes, order, limits.

use std::path::Path;
use std::time::Duration;

use crate::support::disk::{Disk, Fault, Operation};
use crate::support::{Chain, GEOMETRY, block_bytes};
use trunkline_store::transfers::MAX_QUEUED_STORES;
use trunkline_store::{
    Geometry, Outcomes, Piece, RestoreBlock, Store, StoreBlock, StoreOutcome, TransferError, Transfers,
};

/// Longer than any of this takes.
const LONG: Duration = Duration::from_secs(60);

/// Memory that outlives its transfers, since `transfers` is dropped first.
struct Bench {
    transfers: Transfers,
    chain: Chain,
    source: Vec<Vec<u8>>,
    target: Vec<Vec<u8>>,
    disk: Disk,
}

impl Bench {
    fn new() -> Self {
        let disk = Disk::default();
        let path = std::path::Path::new("records");
        let opened = Store::open_on(disk.records(), disk.blocks(), crate::support::geometry(), path);
        Self::on(opened.expect("a disk without faults").0, disk)
    }

    fn on(store: Store, disk: Disk) -> Self {
        let chain = Chain::new("a", GEOMETRY.2);
        Self {
            transfers: Transfers::start(store).expect("threads"),
            source: chain.keys[1..].iter().map(|key| block_bytes(*key)).collect(),
            target: vec![vec![0; GEOMETRY.0 as usize]; GEOMETRY.2 as usize],
            chain,
            disk,
        }
    }

    /// The block `depth` into `slot`.
    fn store(&self, slot: u32, depth: usize) -> Result<(), TransferError> {
        let new = self.chain.block(depth);
        let block = StoreBlock {
            slot,
            key: new.key,
            parent: new.parent,
            root: new.root,
            depth: new.depth,
            token_ids: new.token_ids.into(),
        };
        self.transfers.begin_store(block, [&self.source[depth][..]])
    }

    /// Blocks `depths` from the slots of the same numbers.
    fn restore(&mut self, restore_id: u64, depths: &[usize]) -> Result<(), TransferError> {
        let blocks = depths.iter().map(|depth| RestoreBlock {
            slot: *depth as u32,
            key: self.chain.keys[depth + 1],
            pieces: vec![Piece {
                offset: 0,
                num_bytes: GEOMETRY.0 as usize,
                destination: self.target[*depth].as_mut_ptr(),
            }],
        });
        // SAFETY: the tests look at `target` after the outcome.
        unsafe { self.transfers.begin_restore(restore_id, blocks.collect(), None) }
    }

    /// Waits for the outcomes of so many transfers.
    fn outcomes(&self, count: usize) -> Outcomes {
        let mut all = Outcomes::default();
        while all.stores.len() + all.restores.len() < count {
            self.transfers.wait_outcomes(LONG);
            let mut new = self.transfers.take_outcomes();
            all.stores.append(&mut new.stores);
            all.restores.append(&mut new.restores);
        }
        all
    }
}

#[test]
fn stores_end_in_order_and_are_restored() {
    let mut bench = Bench::new();
    (0..5).for_each(|slot| bench.store(slot, slot as usize).unwrap());
    let expected: Vec<_> = (0..5).map(|slot| StoreOutcome { slot, is_stored: true }).collect();
    assert_eq!(bench.outcomes(5).stores, expected);
    bench.restore(7, &[3, 1, 0, 2, 4]).unwrap();
    let outcome = bench.outcomes(1).restores[0];
    assert_eq!((outcome.restore_id, outcome.num_blocks), (7, 5));
    assert!(outcome.time > Duration::ZERO);
    assert_eq!(bench.target[..5], bench.source[..5]);
    // Up to the first that is not there.
    bench.transfers.discard(1).unwrap();
    bench.restore(8, &[0, 1, 2]).unwrap();
    assert_eq!(bench.outcomes(1).restores[0].num_blocks, 1);
    let counts = bench.transfers.counts();
    assert_eq!((counts.stored, counts.not_stored, counts.restored, counts.not_restored), (5, 0, 6, 1));
    assert_eq!(bench.transfers.take_warning().unwrap(), "slot 1 is empty");
    assert_eq!(bench.transfers.take_warning(), None);
}

#[test]
fn blocks_are_read_from_another_store() {
    let mut bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let larger = Geometry { num_slots: GEOMETRY.2 + 3, ..crate::support::geometry() };
    let (other, _) = Store::open(folder.path(), larger.clone()).unwrap();
    for slot in 0..3 {
        other.write(slot + 2, &bench.chain.block(slot as usize), &bench.source[slot as usize]).unwrap();
    }
    let mut restore = |restore_id, first_slot: u32, folder: &Path| {
        bench.target.iter_mut().for_each(|bytes| bytes.fill(0));
        let blocks = (0..3).map(|depth| RestoreBlock {
            slot: first_slot + depth as u32,
            key: bench.chain.keys[depth + 1],
            pieces: vec![Piece {
                offset: 0,
                num_bytes: GEOMETRY.0 as usize,
                destination: bench.target[depth].as_mut_ptr(),
            }],
        });
        // SAFETY: `target` is looked at after the outcome.
        unsafe { bench.transfers.begin_restore(restore_id, blocks.collect(), Some(folder.to_owned())) }
            .unwrap();
        let outcome = bench.outcomes(1).restores[0];
        assert_eq!(outcome.restore_id, restore_id);
        assert!(outcome.num_blocks < 3 || bench.target[..3] == bench.source[..3]);
        outcome.num_blocks
    };
    // The owner has it open, and goes on writing.
    assert_eq!(restore(1, 2, folder.path()), 3);
    other.erase(4).unwrap();
    assert_eq!(restore(2, 2, folder.path()), 2);
    assert_eq!(restore(3, 3, folder.path()), 0, "other blocks");
    assert_eq!(restore(4, larger.num_slots, folder.path()), 0, "no such slots");
    let missing = tempfile::tempdir().unwrap();
    assert_eq!(restore(5, 2, missing.path()), 0, "no store");
    let foreign = tempfile::tempdir().unwrap();
    Store::open(foreign.path(), Geometry { fingerprint: "ff".to_owned(), ..larger }).unwrap();
    assert_eq!(restore(6, 2, foreign.path()), 0, "another model");
}

#[test]
fn pieces_of_a_block_go_where_they_belong() {
    let mut bench = Bench::new();
    bench.store(0, 0).unwrap();
    bench.transfers.wait_stores(LONG);
    let target = bench.target[0].as_mut_ptr();
    // The third and the first thousand bytes; the others go nowhere.
    let piece = |offset, to: usize| Piece { offset, num_bytes: 1000, destination: target.wrapping_add(to) };
    let block =
        RestoreBlock { slot: 0, key: bench.chain.keys[1], pieces: vec![piece(2000, 0), piece(0, 1000)] };
    // SAFETY: the test looks at `target` after the outcome.
    unsafe { bench.transfers.begin_restore(1, vec![block], None) }.unwrap();
    assert_eq!(bench.outcomes(2).restores[0].num_blocks, 1);
    let source = &bench.source[0];
    assert_eq!(bench.target[0][..2000], [&source[2000..3000], &source[..1000]].concat());
    assert_eq!(bench.target[0][2000..], [0; 3000]);
}

#[test]
fn outcomes_that_are_held_wake_nobody_else() {
    let bench = Bench::new();
    bench.transfers.hold_outcomes();
    bench.store(0, 0).unwrap();
    bench.transfers.wait_stores(LONG);
    assert!(!bench.transfers.is_storing());
    // Would return at once, were they not held.
    bench.transfers.wait_outcomes(Duration::ZERO);
    assert_eq!(bench.transfers.take_outcomes().stores, [StoreOutcome { slot: 0, is_stored: true }]);
    // A call to wake is not lost.
    bench.transfers.wake();
    bench.transfers.wait_outcomes(LONG);
}

#[test]
fn a_slot_is_in_one_transfer() {
    let mut bench = Bench::new();
    let num_slots = GEOMETRY.2;
    let unknown = Err(TransferError::UnknownSlot { slot: num_slots, num_slots });
    assert_eq!(bench.store(num_slots, 0), unknown);
    assert_eq!(bench.transfers.discard(num_slots), unknown);
    bench.store(0, 0).unwrap();
    bench.transfers.wait_stores(LONG);
    let busy = TransferError::InTransfer { slot: 0 };
    assert_eq!(busy.to_string(), "slot 0 is in another transfer");
    let busy = Err(busy);
    {
        let disk = bench.disk.clone();
        let _closed = disk.gate.lock().unwrap();
        bench.restore(1, &[0]).unwrap();
        assert_eq!(bench.store(0, 1), busy);
        assert_eq!(bench.transfers.discard(0), busy);
    }
    assert_eq!(bench.outcomes(2).restores[0].num_blocks, 1);
    bench.store(1, 1).unwrap();
    bench.transfers.wait_stores(LONG);
    let closed = bench.disk.gate.lock().unwrap();
    bench.store(0, 2).unwrap();
    assert_eq!(bench.store(0, 1), busy);
    assert_eq!(bench.transfers.discard(0), busy);
    drop(closed);
    assert_eq!(bench.outcomes(2).stores.len(), 2);
}

#[test]
fn a_slow_disk_fills_the_queue_and_holds_nobody() {
    const NUM_REFUSED: u32 = 8;
    let num_slots = 1 + MAX_QUEUED_STORES as u32 + NUM_REFUSED;
    let geometry = Geometry { num_slots, ..crate::support::geometry() };
    let disk = Disk::default();
    let (store, _) = Store::open_on(disk.records(), disk.blocks(), geometry, Path::new("records")).unwrap();
    let bench = Bench::on(store, disk.clone());
    let (closed, num_begun) = (disk.gate.lock().unwrap(), disk.num_begun());
    // The writer takes the first one out of the queue and waits for the disk. Then there is room for so many.
    bench.store(0, 0).unwrap();
    disk.wait_begun(num_begun);
    (1..=MAX_QUEUED_STORES as u32).for_each(|slot| bench.store(slot, 0).unwrap());
    assert_eq!(bench.transfers.take_outcomes(), Outcomes::default(), "the queue takes them all");
    bench.transfers.wait_stores(Duration::from_millis(1));
    assert!(bench.transfers.is_storing(), "the time is over, not the transfers");
    // The next ones are refused while the disk still hangs, and nobody waited for it.
    let refused = num_slots - NUM_REFUSED..num_slots;
    refused.clone().for_each(|slot| bench.store(slot, 0).unwrap());
    let expected: Vec<_> = refused.map(|slot| StoreOutcome { slot, is_stored: false }).collect();
    assert_eq!(bench.transfers.take_outcomes().stores, expected);
    assert_eq!(disk.num_begun(), num_begun + 1);
    drop(closed);
    let stored = bench.outcomes(1 + MAX_QUEUED_STORES).stores;
    let slots: Vec<u32> =
        stored.iter().filter(|outcome| outcome.is_stored).map(|outcome| outcome.slot).collect();
    assert_eq!(
        slots,
        (0..num_slots - NUM_REFUSED).collect::<Vec<_>>(),
        "the others are written, in their order"
    );
    let counts = bench.transfers.counts();
    assert_eq!((counts.stored, counts.not_stored), (1 + MAX_QUEUED_STORES as u64, NUM_REFUSED.into()));
    let warning = bench.transfers.take_warning().unwrap();
    assert_eq!(warning, "1024 transfers are already waiting for the disk, and 7 more failures before it");
}

#[test]
fn a_full_disk_ends_stores_and_nothing_else() {
    let mut bench = Bench::new();
    bench.store(0, 0).unwrap();
    assert!(bench.outcomes(1).stores[0].is_stored);
    bench.disk.set(|operation| match operation {
        Operation::Write { file: "blocks", .. } => Fault::Error(libc::ENOSPC),
        _ => Fault::None,
    });
    (1..4).for_each(|slot| bench.store(slot, slot as usize).unwrap());
    assert!(bench.outcomes(3).stores.iter().all(|outcome| !outcome.is_stored));
    assert_eq!(bench.disk.num_faults(), 1, "a full disk is not asked again and again");
    let warning = bench.transfers.take_warning().unwrap();
    assert!(warning.ends_with("has just refused another write, and 2 more failures before it"), "{warning}");
    bench.restore(1, &[0]).unwrap();
    assert_eq!(bench.outcomes(1).restores[0].num_blocks, 1, "what is there can be read");
    bench.disk.set(|_| Fault::None);
    bench.transfers.store().end_pause();
    bench.store(2, 2).unwrap();
    assert!(bench.outcomes(1).stores[0].is_stored);
}

#[test]
fn dropping_waits_for_what_runs() {
    let bench = Bench::new();
    for _ in 0..50 {
        (0..GEOMETRY.2).for_each(|slot| bench.store(slot, slot as usize).unwrap());
        bench.transfers.finish();
        assert!(!bench.transfers.is_storing());
        assert_eq!(bench.transfers.take_outcomes().stores.len(), GEOMETRY.2 as usize);
    }
    (0..GEOMETRY.2).for_each(|slot| bench.store(slot, 0).unwrap());
    drop(bench);
}
