//! What was seen of paths lately, whether the cache still has them or not.

use trunkline_contract::BlockKey;

/// Names a path from a salt's root by the first half of its [`BlockKey`]. Only statistics depend on it, never the
/// contents of a block.
pub type PathHash = u64;

/// Returns the hash of the path that ends with the block of this key.
pub(crate) fn path_hash(key: BlockKey) -> PathHash {
    let (half, _) = key.as_bytes().split_at(size_of::<PathHash>());
    PathHash::from_le_bytes(half.try_into().expect("half of the bytes"))
}

/// Places a hash may stand in. The one seen longest ago of so many is overwritten.
pub const WAYS: usize = 4;
/// Sets that a table begins with: a tenant with little traffic takes little memory.
pub const MIN_SETS: usize = 1 << 8;
/// It doubles up to here, which takes about a millisecond, and goes to its full size at once after it.
const MAX_DOUBLED_SETS: usize = 1 << 14;

/// One path's last sight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Low bits of the request's number.
    pub request: u32,
    /// How many requests had this path; more than 255 are 255.
    pub num_seen: u8,
    /// The class that it was put in.
    pub class: u8,
    /// The octave of blocks from there to the prompt's end.
    pub octave: u8,
    /// See [`crate::evict::Trail::unit`].
    pub unit: u8,
}

/// Where some hashes may stand: one line of the processor's cache.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    /// 0: empty.
    tags: [PathHash; WAYS],
    sights: [Sight; WAYS],
}

/// A set-associative table of paths. Bounded memory (16 bytes an entry), O(1) a call (amortised while it grows), and
/// nothing depends on an order that is not given.
#[derive(Debug)]
pub struct History {
    sets: Vec<Set>,
    max_sets: usize,
    num_entries: usize,
}

impl History {
    /// Grows until it has room for at least `max_entries` paths.
    pub fn new(max_entries: usize) -> Self {
        let max_sets = max_entries.div_ceil(WAYS).next_power_of_two();
        Self::of_size(MIN_SETS.min(max_sets), max_sets)
    }

    fn of_size(num_sets: usize, max_sets: usize) -> Self {
        Self { sets: vec![Set::default(); num_sets], max_sets, num_entries: 0 }
    }

    fn set_of(&self, path: PathHash) -> usize {
        path as usize & (self.sets.len() - 1)
    }

    /// When a path was seen last, if it is known.
    pub fn get(&self, path: PathHash) -> Option<Sight> {
        self.sets[self.set_of(path)].get(path)
    }

    /// A path is seen by a request (low bits of its number): from what was known of it comes what is known now.
    pub fn see(&mut self, path: PathHash, request: u32, sight: impl FnOnce(Option<Sight>) -> Sight) {
        // Half full: few sets have overflowed.
        if self.num_entries * 2 >= self.sets.len() * WAYS && self.sets.len() < self.max_sets {
            self.grow();
        }
        let index = self.set_of(path);
        let set = &mut self.sets[index];
        let sight = sight(set.get(path));
        let rank = |way: &usize| match set.tags[*way] {
            own if own == path => (2, 0),
            0 => (1, 0),
            _ => (0, request.wrapping_sub(set.sights[*way].request)),
        };
        let way = (0..WAYS).max_by_key(rank).expect("a set has places");
        self.num_entries += usize::from(set.tags[way] == 0);
        set.tags[way] = path;
        set.sights[way] = sight;
    }

    fn grow(&mut self) {
        let num_sets = if self.sets.len() < MAX_DOUBLED_SETS { self.sets.len() * 2 } else { self.max_sets };
        let larger = Self::of_size(num_sets, self.max_sets);
        for Set { tags, sights } in std::mem::replace(self, larger).sets {
            for (path, sight) in tags.into_iter().zip(sights).filter(|&(path, _)| path != 0) {
                self.see(path, sight.request, |_| sight);
            }
        }
    }

    /// Paths that it has room for.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }
}

impl Set {
    fn get(&self, path: PathHash) -> Option<Sight> {
        (0..WAYS).find(|&way| self.tags[way] == path).map(|way| self.sights[way])
    }
}
