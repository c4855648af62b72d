//! What was seen of paths lately, whether the cache still has them or not.

/// Names a path from a salt's root: half of its [`crate::BlockKey`]. Only statistics hang on it, never what is in a
/// block.
pub type PathHash = u64;

/// Places a hash may stand in. The one seen longest ago of so many is overwritten.
const WAYS: usize = 4;
/// Sets that a table begins with: a tenant with little traffic takes little memory.
const MIN_SETS: usize = 1 << 8;
/// It doubles up to here, which takes about a millisecond, and goes to its full size at once after it.
const MAX_DOUBLED_SETS: usize = 1 << 14;

/// One path's last sight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Low bits of the request's number.
    pub(crate) request: u32,
    /// How many requests had this path; more than 255 are 255.
    pub(crate) num_seen: u8,
    /// The class that it was put in.
    pub(crate) class: u8,
    /// The octave of blocks from there to the prompt's end.
    pub(crate) octave: u8,
    /// See [`crate::evict::Trail::unit`].
    pub(crate) unit: u8,
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
pub(crate) struct History {
    sets: Vec<Set>,
    max_sets: usize,
    num_entries: usize,
}

impl History {
    /// Grows until it has room for at least `max_entries` paths.
    pub(crate) fn new(max_entries: usize) -> Self {
        let max_sets = max_entries.div_ceil(WAYS).next_power_of_two();
        Self::of_size(MIN_SETS.min(max_sets), max_sets)
    }

    fn of_size(num_sets: usize, max_sets: usize) -> Self {
        Self { sets: vec![Set::default(); num_sets], max_sets, num_entries: 0 }
    }

    fn set_of(&self, path: PathHash) -> usize {
        path as usize & (self.sets.len() - 1)
    }

    pub(crate) fn get(&self, path: PathHash) -> Option<Sight> {
        self.sets[self.set_of(path)].get(path)
    }

    /// A path is seen by a request (low bits of its number): from what was known of it comes what is known now.
    pub(crate) fn see(&mut self, path: PathHash, request: u32, sight: impl FnOnce(Option<Sight>) -> Sight) {
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

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }
}

impl Set {
    fn get(&self, path: PathHash) -> Option<Sight> {
        (0..WAYS).find(|&way| self.tags[way] == path).map(|way| self.sights[way])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(request: u32) -> Sight {
        Sight { request, num_seen: 1, class: 0, octave: 0, unit: 0 }
    }

    fn put(history: &mut History, path: PathHash, sight: Sight) {
        history.see(path, sight.request, |_| sight);
    }

    #[test]
    fn the_path_seen_longest_ago_makes_room_in_fixed_memory() {
        let mut history = History::new(WAYS);
        let paths: Vec<PathHash> = (1..=WAYS as u64 + 1).map(|path| path << 33).collect();
        for (request, &path) in paths.iter().enumerate() {
            put(&mut history, path, sight(request as u32));
        }
        assert_eq!(history.get(paths[0]), None);
        assert!(paths[1..].iter().all(|&path| history.get(path).is_some()));
        put(&mut history, paths[1], Sight { request: 9, num_seen: 2, class: 3, octave: 5, unit: 7 });
        assert_eq!(
            history.get(paths[1]),
            Some(Sight { request: 9, num_seen: 2, class: 3, octave: 5, unit: 7 })
        );
        assert_eq!(history.capacity(), WAYS);
    }

    #[test]
    fn it_grows_to_its_bound_and_keeps_what_it_had() {
        let mut history = History::new(1 << 17);
        assert_eq!(history.capacity(), MIN_SETS * WAYS);
        let path = |number: u32| u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for number in 1..=60_000 {
            put(&mut history, path(number), sight(number));
        }
        assert_eq!(history.capacity(), 1 << 17);
        let num_kept =
            (1..=60_000).filter(|&number| history.get(path(number)) == Some(sight(number))).count();
        assert!(num_kept > 57_000, "of 60,000 paths in room for 131,072, {num_kept} are there");
        for number in 60_001..=400_000 {
            put(&mut history, path(number), sight(number));
        }
        assert_eq!(history.capacity(), 1 << 17);
    }
}
