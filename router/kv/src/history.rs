//! What was seen of paths lately, whether the cache still has them or not.

/// Names a path from a salt's root: half of its [`crate::BlockKey`]. Only statistics hang on it, never what is in a
/// block.
pub type PathHash = u64;

/// Places a hash may stand in. The one seen longest ago of so many is overwritten.
const WAYS: usize = 4;

/// One path's last sight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// Low bits of the request's number.
    pub(crate) request: u32,
    /// How many requests had this path; more than 255 are 255.
    pub(crate) num_seen: u8,
    /// The class that it was put in.
    pub(crate) class: u8,
}

/// A set-associative table of paths. Fixed memory (12 bytes an entry), O(1) a call, and nothing depends on an order
/// that is not given.
#[derive(Debug)]
pub(crate) struct History {
    /// 0: empty.
    tags: Vec<u32>,
    sights: Vec<Sight>,
    num_sets: usize,
}

impl History {
    /// Room for at least `num_entries` paths.
    pub(crate) fn new(num_entries: usize) -> Self {
        let num_sets = num_entries.div_ceil(WAYS).next_power_of_two();
        Self { tags: vec![0; num_sets * WAYS], sights: vec![Sight::default(); num_sets * WAYS], num_sets }
    }

    fn place(&self, path: PathHash) -> (std::ops::Range<usize>, u32) {
        let begin = (path as usize & (self.num_sets - 1)) * WAYS;
        (begin..begin + WAYS, (path >> 32) as u32 | 1)
    }

    pub(crate) fn get(&self, path: PathHash) -> Option<Sight> {
        let (mut places, tag) = self.place(path);
        places.find(|&place| self.tags[place] == tag).map(|place| self.sights[place])
    }

    pub(crate) fn put(&mut self, path: PathHash, sight: Sight) {
        let (places, tag) = self.place(path);
        let age = |place: usize| sight.request.wrapping_sub(self.sights[place].request);
        let rank = |place: &usize| match self.tags[*place] {
            own if own == tag => (2, 0),
            0 => (1, 0),
            _ => (0, age(*place)),
        };
        let place = places.max_by_key(rank).expect("a set has places");
        self.tags[place] = tag;
        self.sights[place] = sight;
    }

    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.tags.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_seen_longest_ago_makes_room_in_fixed_memory() {
        let mut history = History::new(WAYS);
        let paths: Vec<PathHash> = (1..=WAYS as u64 + 1).map(|path| path << 33).collect();
        for (request, &path) in paths.iter().enumerate() {
            history.put(path, Sight { request: request as u32, num_seen: 1, class: 0 });
        }
        assert_eq!(history.get(paths[0]), None);
        assert!(paths[1..].iter().all(|&path| history.get(path).is_some()));
        history.put(paths[1], Sight { request: 9, num_seen: 2, class: 3 });
        assert_eq!(history.get(paths[1]), Some(Sight { request: 9, num_seen: 2, class: 3 }));
        assert_eq!(history.capacity(), WAYS);
    }
}
