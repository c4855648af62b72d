//! A store on a disk that errs, tears, shortens and flips, beside a plain model of what it may hold.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::draw::{self, Random};
use crate::support::disk::{Disk, Fault, Operation};
use crate::support::{Chain, GEOMETRY, block_bytes, geometry, read, write};
use trunkline_store::{ReadError, Store, WriteError};

const NUM_BLOCKS: u32 = 6;
const NUM_OPERATIONS: usize = 400;

/// The blocks that a slot may hold, as depths of the chain.
#[derive(Clone, Default)]
struct Expected {
    /// The block that was acknowledged and that no fault has touched since; it must be there.
    must: Option<usize>,
    /// Further blocks that may be there after errors.
    may: Vec<usize>,
}

fn faulty(random: &mut Random, one_in: u64) -> impl FnMut(Operation) -> Fault + Send + 'static {
    let mut random = Random(random.next());
    move |operation| {
        let num_bytes = match operation {
            Operation::Read { num_bytes } | Operation::Write { num_bytes, .. } => num_bytes as u64,
            Operation::Other => 1,
        };
        if random.below(one_in) != 0 {
            // Short ones are normal.
            return if random.below(4) == 0 {
                Fault::Short(random.below(num_bytes) as usize)
            } else {
                Fault::None
            };
        }
        let count = random.below(num_bytes) as usize;
        match random.below(4) {
            0 => Fault::Error(libc::EIO),
            1 => Fault::Error(libc::ENOSPC),
            2 => Fault::Torn(count, libc::ENOSPC),
            _ => Fault::Flipped(count * 8 + random.below(8) as usize),
        }
    }
}

struct Test {
    disk: Disk,
    store: Store,
    chain: Chain,
    slots: Vec<Expected>,
    random: Random,
    seed: u64,
}

impl Test {
    fn new(seed: u64) -> Self {
        let (disk, mut random) = (Disk::default(), Random(seed));
        let opened = Store::open_on(disk.records(), disk.blocks(), geometry(), Path::new("records"));
        disk.set(faulty(&mut random, 30));
        Self {
            store: opened.expect("a disk without faults").0,
            disk,
            chain: Chain::new("a", NUM_BLOCKS),
            slots: vec![Expected::default(); GEOMETRY.2 as usize],
            random,
            seed,
        }
    }

    fn write(&mut self, slot: u32, depth: usize) {
        let before = self.disk.num_faults();
        let result = write(&self.store, slot, &self.chain, depth);
        let expected = &mut self.slots[slot as usize];
        expected.must = None;
        match result {
            Ok(()) => {
                expected.may = vec![depth];
                // Bits may have flipped unnoticed.
                expected.must = (self.disk.num_faults() == before).then_some(depth);
            }
            Err(_) => expected.may.push(depth),
        }
        self.store.end_pause();
    }

    fn read(&mut self, slot: u32, depth: usize) {
        let before = self.disk.num_faults();
        let key = self.chain.keys[depth + 1];
        let result = read(&self.store, slot, key);
        let (seed, expected) = (self.seed, &mut self.slots[slot as usize]);
        let is_faultless = self.disk.num_faults() == before;
        match result {
            Ok(bytes) => {
                assert_eq!(bytes, block_bytes(key), "seed {seed}: slot {slot} gave wrong bytes");
                assert!(expected.may.contains(&depth), "seed {seed}: slot {slot} gave what was overwritten");
            }
            Err(error) => {
                let must = expected.must == Some(depth) && is_faultless;
                assert!(!must, "seed {seed}: slot {slot} lost its block: {error}");
                if matches!(error, ReadError::Damaged { .. }) {
                    expected.must = None;
                }
            }
        }
    }

    fn erase(&mut self, slot: u32) {
        let result = self.store.erase(slot);
        let expected = &mut self.slots[slot as usize];
        expected.must = None;
        if result.is_ok() {
            expected.may.clear();
        }
    }

    /// Opens the store again as after a kill. The disk may fail meanwhile.
    fn reopen(&mut self) {
        let before = self.disk.num_faults();
        let open =
            |disk: &Disk| Store::open_on(disk.records(), disk.blocks(), geometry(), Path::new("records"));
        loop {
            match open(&self.disk) {
                Ok((store, found)) => {
                    self.store = store;
                    let num_sure = self.slots.iter().filter(|expected| expected.must.is_some()).count();
                    if self.disk.num_faults() == before {
                        assert_eq!(found.lost, None, "seed {}", self.seed);
                        assert!(found.num_blocks >= num_sure, "seed {}", self.seed);
                    } else {
                        // What was misread may have been erased.
                        self.slots.iter_mut().for_each(|expected| expected.must = None);
                    }
                    return;
                }
                Err(_) => assert!(self.disk.num_faults() > before, "seed {}", self.seed),
            }
        }
    }
}

#[test]
fn a_faulty_disk_loses_blocks_and_never_gives_wrong_ones() {
    let (mut num_faults, mut num_kept) = (0, 0);
    let first = draw::first_seed();
    for seed in first..first + draw::count("TRUNKLINE_CASES", 40, 1_000) {
        let mut test = Test::new(seed);
        for _ in 0..NUM_OPERATIONS {
            let slot = test.random.below(GEOMETRY.2);
            let depth = test.random.below(NUM_BLOCKS) as usize;
            match test.random.below(16) {
                0..7 => test.write(slot, depth),
                7..14 => test.read(slot, test.slots[slot as usize].must.unwrap_or(depth)),
                14 => test.erase(slot),
                _ => test.reopen(),
            }
        }
        // In the end without faults: everything that was acknowledged and not hit.
        test.disk.set(|_| Fault::None);
        test.reopen();
        for slot in 0..GEOMETRY.2 {
            (0..NUM_BLOCKS as usize).for_each(|depth| test.read(slot, depth));
        }
        num_kept += test.slots.iter().filter(|expected| expected.must.is_some()).count();
        num_faults += test.disk.num_faults();
    }
    // The test tests something.
    assert!(num_faults > 1000 && num_kept > 100, "{num_faults} faults, {num_kept} blocks kept");
}

#[test]
fn a_disk_that_is_full_from_the_beginning_is_an_error_of_the_system() {
    let disk = Disk::default();
    disk.set(|operation| match operation {
        Operation::Write { .. } => Fault::Error(libc::ENOSPC),
        _ => Fault::None,
    });
    let opened = Store::open_on(disk.records(), disk.blocks(), geometry(), Path::new("records"));
    let error = opened.unwrap_err().to_string();
    assert_eq!(error, "cannot write `records`: No space left on device (os error 28)");
}

#[test]
fn writing_resumes_when_a_full_disk_has_room_again() {
    const PAUSE: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);
    let (disk, chain) = (Disk::default(), Chain::new("a", NUM_BLOCKS));
    let opened = Store::open_on(disk.records(), disk.blocks(), geometry(), Path::new("records"));
    let mut store = opened.expect("a disk without faults").0;
    write(&store, 0, &chain, 0).unwrap();
    let is_full = Arc::new(AtomicBool::new(true));
    let seen = is_full.clone();
    disk.set(move |operation| match operation {
        Operation::Write { file: "blocks", .. } if seen.load(Ordering::Relaxed) => Fault::Error(libc::ENOSPC),
        _ => Fault::None,
    });
    let error = write(&store, 1, &chain, 1).unwrap_err();
    assert!(error.to_string().ends_with("No space left on device (os error 28)"), "{error}");
    // For a while the disk is not asked, whether it is still full or not.
    for is_full_now in [true, false, true] {
        is_full.store(is_full_now, Ordering::Relaxed);
        assert!(matches!(write(&store, 1, &chain, 1), Err(WriteError::Paused { slot: 1 })));
        assert_eq!(disk.num_faults(), 1);
    }
    // Then it is asked again: once while it is full, and for good when it has room.
    store.set_refused_pause(PAUSE);
    let write_after_pause = |slot: u32, depth: usize| {
        let end = Instant::now() + LONG;
        loop {
            match write(&store, slot, &chain, depth) {
                Err(WriteError::Paused { .. }) => assert!(Instant::now() < end, "the pause ends"),
                result => return result,
            }
        }
    };
    assert!(matches!(write_after_pause(1, 1), Err(WriteError::Disk { slot: 1, .. })));
    assert_eq!(disk.num_faults(), 2, "a disk that is still full is asked once more");
    let refused_at = Instant::now();
    is_full.store(false, Ordering::Relaxed);
    write_after_pause(1, 1).unwrap();
    assert!(refused_at.elapsed() >= PAUSE / 2);
    (2..5).for_each(|slot| write(&store, slot, &chain, slot as usize).unwrap());
    for slot in 0..5 {
        let key = chain.keys[slot as usize + 1];
        assert_eq!(read(&store, slot, key).unwrap(), block_bytes(key), "slot {slot}");
    }
}
