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

/// The entries that a hash can be in. If all are taken, the least recently seen one is overwritten.
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
}

/// A set of entries: one cache line of the processor. Path 0 marks an empty entry.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([(PathHash, PathUse); WAYS]);

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
        Self { sets: vec![Set::default(); MIN_SETS.min(max_sets)], max_sets, num_entries: 0 }
    }

    fn set_of(&self, path: PathHash) -> usize {
        path as usize & (self.sets.len() - 1)
    }

    /// Returns the last use of a path, if the table still has it.
    pub fn get(&self, path: PathHash) -> Option<PathUse> {
        let Set(ways) = &self.sets[self.set_of(path)];
        ways.iter().find(|way| way.0 == path).map(|way| way.1)
    }

    /// Records a use of a path.
    pub fn insert(&mut self, path: PathHash, path_use: PathUse) {
        // Up to half of the capacity, few sets overflow.
        if self.num_entries * 2 >= self.capacity() && self.sets.len() < self.max_sets {
            let num_sets =
                if self.sets.len() < MAX_DOUBLED_SETS { self.sets.len() * 2 } else { self.max_sets };
            self.num_entries = 0;
            for Set(ways) in std::mem::replace(&mut self.sets, vec![Set::default(); num_sets]) {
                ways.into_iter().filter(|way| way.0 != 0).for_each(|way| self.insert(way.0, way.1));
            }
        }
        let index = self.set_of(path);
        let age = |way: &(PathHash, PathUse)| path_use.request.wrapping_sub(way.1.request);
        let way = self.sets[index].0.iter_mut().max_by_key(|way| (way.0 == path, way.0 == 0, age(way)));
        let way = way.expect("a set has entries");
        self.num_entries += usize::from(way.0 == 0);
        *way = (path, path_use);
    }

    /// Returns the number of paths that the table has room for at its present size.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }
}
