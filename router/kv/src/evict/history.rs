//! The recent uses of paths, whether the cache still has them or not.

use trunkline_contract::BlockKey;

/// Names a path from a salt's root by the first half of its [`BlockKey`]. Only statistics depend on it, never the
/// contents of a block.
pub type PathHash = u64;

/// Returns the hash of the path that ends with the block of this key.
pub(crate) fn path_hash(key: BlockKey) -> PathHash {
    let (half, _) = key.as_bytes().split_at(size_of::<PathHash>());
    PathHash::from_le_bytes(half.try_into().expect("half of the bytes"))
}

/// The entries of a set. If a set is full, the least recently seen entry is overwritten.
pub const WAYS: usize = 4;
/// The number of sets of an empty table. It is small, so that a tenant with little traffic takes little memory.
pub const MIN_SETS: usize = 1 << 8;
/// A table doubles up to this number of sets, which takes about a millisecond. Then it grows to its full size at once.
const MAX_DOUBLED_SETS: usize = 1 << 14;

/// The last use of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathUse {
    /// The low bits of the request's number.
    pub request: u32,
    /// The number of requests that had this path, at most 255.
    pub num_requests: u8,
    pub class: u8,
    /// The octave of the number of blocks from there to the end of the prompt.
    pub octave: u8,
    /// The unit of the conversation, which decides whether it is sampled.
    pub unit: u8,
}

/// The entries that a hash can be in: one cache line of the processor.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    /// The paths; 0 marks an empty entry.
    tags: [PathHash; WAYS],
    uses: [PathUse; WAYS],
}

/// A set-associative table of paths.
///
/// Memory is bounded, at 16 bytes an entry. A call costs O(1), amortised while the table grows.
#[derive(Debug)]
pub struct History {
    sets: Vec<Set>,
    max_sets: usize,
    num_entries: usize,
}

impl History {
    /// Makes an empty table that grows until it has room for at least `max_entries` paths.
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

    /// Returns the last use of a path, if the table still has it.
    pub fn get(&self, path: PathHash) -> Option<PathUse> {
        self.sets[self.set_of(path)].get(path)
    }

    /// Replaces the last use of a path by what `next_use` makes of it.
    ///
    /// `request` is the low bits of the request's number.
    pub fn update(
        &mut self,
        path: PathHash,
        request: u32,
        next_use: impl FnOnce(Option<PathUse>) -> PathUse,
    ) {
        // Up to half of the capacity, few sets overflow.
        if self.num_entries * 2 >= self.sets.len() * WAYS && self.sets.len() < self.max_sets {
            self.grow();
        }
        let index = self.set_of(path);
        let set = &mut self.sets[index];
        let next_use = next_use(set.get(path));
        let rank = |way: &usize| match set.tags[*way] {
            own if own == path => (2, 0),
            0 => (1, 0),
            _ => (0, request.wrapping_sub(set.uses[*way].request)),
        };
        let way = (0..WAYS).max_by_key(rank).expect("a set has entries");
        self.num_entries += usize::from(set.tags[way] == 0);
        set.tags[way] = path;
        set.uses[way] = next_use;
    }

    fn grow(&mut self) {
        let num_sets = if self.sets.len() < MAX_DOUBLED_SETS { self.sets.len() * 2 } else { self.max_sets };
        let larger = Self::of_size(num_sets, self.max_sets);
        for Set { tags, uses } in std::mem::replace(self, larger).sets {
            for (path, path_use) in tags.into_iter().zip(uses).filter(|&(path, _)| path != 0) {
                self.update(path, path_use.request, |_| path_use);
            }
        }
    }

    /// Returns the number of paths that the table has room for at its present size.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }
}

impl Set {
    fn get(&self, path: PathHash) -> Option<PathUse> {
        (0..WAYS).find(|&way| self.tags[way] == path).map(|way| self.uses[way])
    }
}
