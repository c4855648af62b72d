//! Random histories of the index of the store against a plain model: a map from every stored path to its slot.
//! `TRUNKLINE_SEED` picks the histories, `TRUNKLINE_CASES` how many. A failure prints the seed and a shrunk history.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError, TestRunner};
use trunkline_contract::{BlockKey, SlotId};
use trunkline_kv::{Salt, StoreIndex, StoredBlock};

use crate::model::drawn;

/// The number of tokens in a block. With one token, a path of blocks is a list of numbers.
const BLOCK_SIZE: usize = 1;

type Path = Vec<u32>;

#[derive(Clone, Debug)]
enum Op {
    /// Begins to write the block that ends a path.
    Reserve(Path),
    /// Ends a write in flight.
    Written {
        pick: usize,
        is_stored: bool,
    },
    /// Names the block of a write.
    Name(usize),
    /// Gives up a write whose key will never be known.
    Abandon(usize),
    BeginRead(Path),
    EndRead {
        pick: usize,
        is_broken: bool,
    },
    Touch(Path),
    Find(Path),
    Remove(Path),
    /// Empties the slot of a removed block.
    Discarded(usize),
    /// Restarts the router with the blocks that the records have.
    Restart,
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(0..2u32, 1..6)
}

fn op() -> impl Strategy<Value = Op> {
    let pick = 0..8usize;
    prop_oneof![
        8 => path().prop_map(Op::Reserve),
        8 => (pick.clone(), prop::bool::weighted(0.8))
            .prop_map(|(pick, is_stored)| Op::Written { pick, is_stored }),
        8 => pick.clone().prop_map(Op::Name),
        1 => pick.clone().prop_map(Op::Abandon),
        2 => path().prop_map(Op::BeginRead),
        3 => (pick.clone(), prop::bool::weighted(0.2))
            .prop_map(|(pick, is_broken)| Op::EndRead { pick, is_broken }),
        2 => path().prop_map(Op::Touch),
        3 => path().prop_map(Op::Find),
        2 => path().prop_map(Op::Remove),
        3 => pick.prop_map(Op::Discarded),
        1 => Just(Op::Restart),
    ]
}

/// Returns the salt of a path. Paths with different first tokens belong to different tenants.
fn tenant_of(path: &[u32]) -> Salt {
    Salt::of_tenant(&path.first().map_or(String::new(), u32::to_string))
}

/// A block that is being written.
struct Storing {
    slot: SlotId,
    path: Path,
    is_named: bool,
    is_wanted: bool,
    /// The result of the write, once it is over.
    outcome: Option<bool>,
}

struct World {
    index: StoreIndex,
    num_slots: u32,
    storing: Vec<Storing>,
    /// The plain model: the slots of paths that are named, stored or being written.
    named: BTreeMap<Path, SlotId>,
    stored: BTreeSet<Path>,
    /// The paths with a read in flight.
    reading: Vec<(Path, SlotId)>,
    /// The blocks in the records.
    disk: BTreeMap<SlotId, (Path, u64)>,
    sequence: u64,
    /// The slots of removed blocks that a transfer still uses.
    leaving: BTreeSet<SlotId>,
    /// The slots of removed blocks that the shard has not emptied yet.
    discarding: BTreeSet<SlotId>,
    /// The blocks removed since the last start while others continued them.
    num_broken: usize,
}

fn root() -> BlockKey {
    Salt::default().root_key()
}

fn key(path: &[u32]) -> BlockKey {
    path.iter().fold(root(), |key, &token| key.extend(&[token]))
}

fn parent(path: &[u32]) -> Option<BlockKey> {
    (path.len() > 1).then(|| key(&path[..path.len() - 1]))
}

impl World {
    fn new(num_slots: u32) -> Self {
        Self {
            index: StoreIndex::new(num_slots, Vec::new()),
            num_slots,
            storing: Vec::new(),
            named: BTreeMap::new(),
            stored: BTreeSet::new(),
            reading: Vec::new(),
            disk: BTreeMap::new(),
            sequence: 0,
            leaving: BTreeSet::new(),
            discarding: BTreeSet::new(),
            num_broken: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Reserve(path) => self.reserve(path),
            Op::Written { pick, is_stored } => {
                let under_way: Vec<usize> =
                    (0..self.storing.len()).filter(|&index| self.storing[index].outcome.is_none()).collect();
                if let Some(&index) = under_way.get(pick % under_way.len().max(1)) {
                    self.written(index, *is_stored);
                }
            }
            Op::Name(pick) => {
                if let Some(index) = self.unnamed(*pick) {
                    self.name(index);
                }
            }
            Op::Abandon(pick) => {
                if let Some(index) = self.unnamed(*pick) {
                    self.index.abandon(self.storing[index].slot);
                    self.storing[index].is_wanted = false;
                    self.forget_finished();
                }
            }
            Op::BeginRead(path) => {
                let Some(&slot) = self.named.get(path).filter(|_| self.stored.contains(path)) else { return };
                self.index.begin_read(slot);
                self.reading.push((path.clone(), slot));
            }
            Op::EndRead { pick, is_broken } => {
                if self.reading.is_empty() {
                    return;
                }
                let (path, slot) = self.reading.swap_remove(pick % self.reading.len());
                self.index.end_read(slot, *is_broken);
                if *is_broken && self.named.get(&path) == Some(&slot) {
                    self.named.remove(&path);
                    self.stored.remove(&path);
                    self.disk.remove(&slot);
                    self.num_broken += 1;
                }
            }
            Op::Touch(path) => self.index.touch(key(path), &tenant_of(path)),
            Op::Find(path) => self.check_find(path),
            Op::Remove(path) => self.remove(path),
            Op::Discarded(pick) => {
                let slot = self.discarding.iter().nth(pick % self.discarding.len().max(1)).copied();
                if let Some(slot) = slot {
                    self.index.end_discard(slot);
                    self.discarding.remove(&slot);
                    self.disk.remove(&slot);
                }
            }
            Op::Restart => self.restart(),
        }
        self.take_discards();
    }

    fn remove(&mut self, path: &Path) {
        self.index.remove(key(path));
        let Some(slot) = self.named.remove(path) else { return };
        self.stored.remove(path);
        self.leaving.insert(slot);
        self.num_broken += 1;
        for storing in self.storing.iter_mut().filter(|storing| storing.slot == slot) {
            (storing.is_named, storing.is_wanted) = (false, false);
        }
    }

    fn take_discards(&mut self) {
        for slot in self.index.take_discards() {
            assert!(self.leaving.remove(&slot), "slot {} had a block that was removed", slot.0);
            self.discarding.insert(slot);
        }
        let in_transfer = |slot: &SlotId| {
            self.storing.iter().any(|storing| storing.slot == *slot)
                || self.reading.iter().any(|(_, read)| read == slot)
        };
        assert!(self.leaving.iter().all(in_transfer), "slots of removed blocks are emptied");
        assert!(!self.discarding.iter().any(in_transfer), "no slot in a transfer is emptied");
    }

    fn unnamed(&self, pick: usize) -> Option<usize> {
        let waiting: Vec<usize> = (0..self.storing.len())
            .filter(|&index| !self.storing[index].is_named && self.storing[index].is_wanted)
            .collect();
        waiting.get(pick % waiting.len().max(1)).copied()
    }

    fn reserve(&mut self, path: &[u32]) {
        let num_used =
            self.storing.len() + self.stored.len() + self.broken_and_read() + self.discarding.len();
        let Some(slot) = self.index.reserve(&tenant_of(path)) else {
            let has_victim = self.stored.iter().any(|path| !self.is_read(path) && !self.is_continued(path));
            assert!(num_used >= self.num_slots as usize && !has_victim, "a slot was to be had");
            return;
        };
        if num_used >= self.num_slots as usize {
            let victim = self.named.iter().find(|&(_, &other)| other == slot).map(|(path, _)| path.clone());
            let victim = victim.expect("a full store gives the slot of another block");
            assert!(self.may_go(&victim), "{victim:?} is continued, read or written");
            self.named.remove(&victim);
            self.stored.remove(&victim);
        }
        assert!(self.storing.iter().all(|other| other.slot != slot), "a slot is given once");
        assert!(!self.discarding.contains(&slot), "the shard would empty it");
        self.disk.remove(&slot);
        let storing = Storing { slot, path: path.to_vec(), is_named: false, is_wanted: true, outcome: None };
        self.storing.push(storing);
    }

    /// Returns the slots whose block was found damaged or removed while other reads of it are in flight.
    fn broken_and_read(&self) -> usize {
        let broken = self.reading.iter().filter(|(path, slot)| self.named.get(path) != Some(slot));
        broken.map(|(_, slot)| slot).collect::<BTreeSet<_>>().len()
    }

    /// Returns true for a stored block that no read uses and no block continues.
    ///
    /// Blocks that continue a damaged one stay behind. They do not keep a block that is stored again in its place.
    fn may_go(&self, path: &Path) -> bool {
        !self.is_read(path) && (!self.is_continued(path) || self.num_broken > 0)
    }

    fn is_continued(&self, path: &Path) -> bool {
        self.named.keys().any(|other| other.len() == path.len() + 1 && other.starts_with(path))
    }

    fn is_read(&self, path: &Path) -> bool {
        self.reading.iter().any(|&(_, slot)| slot == self.named[path])
    }

    fn written(&mut self, index: usize, is_stored: bool) {
        let storing = &mut self.storing[index];
        storing.outcome = Some(is_stored);
        assert!(self.index.end_write(storing.slot, is_stored), "it was under way");
        if is_stored {
            self.sequence += 1;
            self.disk.insert(storing.slot, (storing.path.clone(), self.sequence));
        }
        if storing.is_named {
            if is_stored {
                self.stored.insert(storing.path.clone());
            } else {
                self.named.remove(&storing.path);
                self.num_broken += 1;
            }
        }
        self.forget_finished();
    }

    fn name(&mut self, index: usize) {
        let storing = &mut self.storing[index];
        let path = storing.path.clone();
        let has_parent = path.len() == 1 || self.named.contains_key(&path[..path.len() - 1]);
        let is_known = self.named.contains_key(&path);
        let has_failed = storing.outcome == Some(false);
        let is_kept = has_parent && !is_known && !has_failed;
        let said = self.index.name(storing.slot, key(&path), parent(&path));
        assert_eq!(said, is_kept || is_known, "kept: {is_kept}, known: {is_known}");
        if is_kept {
            storing.is_named = true;
            self.named.insert(path.clone(), storing.slot);
            if storing.outcome == Some(true) {
                self.stored.insert(path);
            }
        } else {
            storing.is_wanted = false;
        }
        self.forget_finished();
    }

    fn forget_finished(&mut self) {
        self.storing.retain(|storing| storing.outcome.is_none() || (!storing.is_named && storing.is_wanted));
    }

    fn check_find(&self, path: &[u32]) {
        let found = self.index.find(root(), path, BLOCK_SIZE);
        let expected: Vec<SlotId> = (1..=path.len())
            .map_while(|end| self.stored.get(&path[..end]).map(|path| self.named[path]))
            .collect();
        assert_eq!(found.iter().map(|hit| hit.slot).collect::<Vec<_>>(), expected, "find {path:?}");
        for (index, hit) in found.iter().enumerate() {
            assert_eq!(hit.key, key(&path[..=index]));
        }
    }

    fn restart(&mut self) {
        let blocks = self.disk.iter().map(|(&slot, (path, sequence))| StoredBlock {
            slot,
            key: key(path),
            parent: parent(path),
            depth: path.len() as u32 - 1,
            sequence: *sequence,
        });
        self.index = StoreIndex::new(self.num_slots, blocks.collect());
        let lost = self.index.take_discards();
        self.leaving.clear();
        self.discarding = lost.iter().copied().collect();
        self.storing.clear();
        self.reading.clear();
        self.named.clear();
        // Shorter paths come first, so that it is known whether the block before is stored. Of equal blocks the older
        // is kept.
        let mut order: Vec<(SlotId, (Path, u64))> = self.disk.clone().into_iter().collect();
        order.sort_by_key(|(_, (path, sequence))| (path.len(), *sequence));
        for (slot, (path, _)) in order {
            let has_parent = path.len() == 1 || self.named.contains_key(&path[..path.len() - 1]);
            let is_kept = has_parent && !self.named.contains_key(&path);
            assert_eq!(!is_kept, lost.contains(&slot), "{path:?} is lost or not");
            if is_kept {
                self.named.insert(path, slot);
            }
        }
        self.stored = self.named.keys().cloned().collect();
        self.num_broken = 0;
    }
}

#[test]
fn random_histories_agree_with_the_model() {
    let config = drawn(600);
    let seed = config.rng_seed;
    let history = (1..8u32, prop::collection::vec(op(), 1..120));
    let outcome = TestRunner::new(config).run(&history, |(num_slots, ops)| {
        let mut world = World::new(num_slots);
        for op in &ops {
            world.apply(op);
            world.index.check_invariants();
            assert_eq!(world.index.counts().stored as usize, world.stored.len());
        }
        Ok::<(), TestCaseError>(())
    });
    if let Err(TestError::Fail(reason, history)) = outcome {
        panic!("{seed:?}: {reason}\n{history:#?}");
    }
}

#[test]
fn offers_go_down_a_path_in_order_and_come_back_if_refused() {
    let key = |n: u32| (0..=n).fold(BlockKey::default(), |key, n| key.extend(&[n]));
    let parent = |n: u32| n.checked_sub(1).map(key);
    let stored = |n| StoredBlock {
        slot: SlotId(n),
        key: key(n),
        parent: parent(n),
        depth: n,
        sequence: 1 + u64::from(n),
    };
    // Two blocks are older than the start, so the object tier may not have them.
    let mut index = StoreIndex::new(8, (0..2).map(stored).collect());
    assert!(index.take_discards().is_empty());
    index.set_max_offers(3);
    let store = |index: &mut StoreIndex, n| {
        let slot = index.reserve(&Salt::default()).unwrap();
        assert!(index.name(slot, key(n), parent(n)));
        assert!(index.end_write(slot, true));
        index.check_invariants();
    };
    let take = |index: &mut StoreIndex| {
        let offer = index.take_offer()?;
        index.end_read(offer.slot, false);
        Some((offer.key, offer.is_new))
    };
    assert_eq!(take(&mut index), None);
    store(&mut index, 2);
    let taken: Vec<_> = std::iter::from_fn(|| take(&mut index)).collect();
    assert_eq!(taken, [(key(0), false), (key(1), false), (key(2), true)]);
    index.refuse_offer(key(1));
    store(&mut index, 3);
    let taken: Vec<_> = std::iter::from_fn(|| take(&mut index)).collect();
    assert_eq!(taken, [(key(1), false), (key(3), true)], "what was refused, and what is not known");

    // A block from the object tier is not offered to it, but the block that continues it is.
    let slot = index.reserve(&Salt::default()).unwrap();
    assert!(index.adopt(slot, key(4), parent(4), true));
    assert_eq!(take(&mut index), None);
    store(&mut index, 5);
    assert_eq!(take(&mut index), Some((key(5), true)));
    for (n, is_written, is_kept) in [(6, false, false), (7, true, false), (5, true, true)] {
        let slot = index.reserve(&Salt::default()).unwrap();
        assert_eq!(index.adopt(slot, key(n), parent(n), is_written), is_kept, "block {n}");
        index.check_invariants();
    }
    assert_eq!(index.counts().stored, 6);
    assert!((0..6).all(|n| index.has(key(n))));
}
