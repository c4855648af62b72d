//! A text that finds its own repetitions.

/// The longest match that is measured. Longer ones are as good.
pub(crate) const MAX_MATCH: usize = 32;
/// The tokens of the short index: the shortest match that is found.
pub(crate) const MIN_MATCH: usize = 2;
/// The tokens of the long index, in which most places are worth a look.
const LONG: usize = 4;
/// The most places of an index that a search looks at, the latest first.
const MAX_LONG_STEPS: usize = 16;
const MAX_SHORT_STEPS: usize = 8;
/// The heads of an empty index.
const MIN_HEADS: usize = 64;
/// The end of a chain. No place is 0, because a place has tokens before it.
const NONE: u32 = 0;

/// An earlier place at which the text reads as it does at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// The position of the token that followed.
    pub(crate) next: usize,
    /// The number of equal tokens before it, at most [`MAX_MATCH`].
    pub(crate) len: usize,
}

/// The places of a text at which some tokens stand before, in chains by a hash of these tokens.
#[derive(Clone, Debug, PartialEq)]
struct Chains {
    /// The number of tokens.
    width: usize,
    /// The latest place by hash.
    heads: Vec<u32>,
    /// For each place, an earlier one with the same hash.
    earlier: Vec<u32>,
}

impl Chains {
    fn new(width: usize, num_tokens: usize) -> Self {
        let num_heads = num_tokens.next_power_of_two().max(MIN_HEADS);
        Self { width, heads: vec![NONE; num_heads], earlier: Vec::with_capacity(num_tokens + 1) }
    }

    fn bucket(&self, tokens: &[u32]) -> usize {
        // The multiplier of FxHash. The high bits depend on all tokens.
        let hash = tokens.iter().fold(0u64, |hash, &token| {
            (hash.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x517c_c1b7_2722_0a95)
        });
        (hash >> (u64::BITS - self.heads.len().trailing_zeros())) as usize
    }

    /// Adds the place behind all of `tokens`.
    fn push(&mut self, tokens: &[u32]) {
        if self.earlier.len() > self.heads.len() {
            self.grow(tokens);
        }
        self.earlier.resize(tokens.len(), NONE);
        let Some(first) = tokens.len().checked_sub(self.width) else {
            self.earlier.push(NONE);
            return;
        };
        let bucket = self.bucket(&tokens[first..]);
        self.earlier.push(self.heads[bucket]);
        self.heads[bucket] = tokens.len() as u32;
    }

    /// Doubles the number of heads. This happens once for each doubling of the text.
    fn grow(&mut self, tokens: &[u32]) {
        self.heads = vec![NONE; 2 * self.heads.len()];
        for place in self.width..self.earlier.len() {
            let bucket = self.bucket(&tokens[place - self.width..place]);
            self.earlier[place] = self.heads[bucket];
            self.heads[bucket] = place as u32;
        }
    }

    /// Returns the places before which the last tokens of `end` may stand, the latest first. The end of this text is
    /// one of them, if `end` is this text.
    fn places(&self, end: &[u32]) -> impl Iterator<Item = usize> {
        let first = end.len().checked_sub(self.width).map_or(NONE, |at| self.heads[self.bucket(&end[at..])]);
        let found = |place: u32| (place != NONE).then_some(place);
        let next = move |&place: &u32| self.earlier.get(place as usize).copied().and_then(found);
        std::iter::successors(found(first), next).map(|place| place as usize)
    }

    fn num_bytes(&self) -> usize {
        (self.heads.capacity() + self.earlier.capacity()) * size_of::<u32>()
    }
}

/// A text that only grows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    tokens: Vec<u32>,
    long: Chains,
    short: Chains,
}

impl Text {
    /// Creates an empty text that is about to have `num_tokens`.
    pub(crate) fn with_capacity(num_tokens: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(num_tokens),
            long: Chains::new(LONG, num_tokens),
            short: Chains::new(MIN_MATCH, num_tokens),
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn push(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        self.long.push(&self.tokens);
        self.short.push(&self.tokens);
    }

    /// Returns the longest match of this text's end that a bounded search finds, and the latest of equally long ones.
    pub(crate) fn find(&self) -> Option<Match> {
        self.find_end(&self.tokens)
    }

    /// Like [`Text::find`], for the end of a text that may be another one.
    pub(crate) fn find_end(&self, end: &[u32]) -> Option<Match> {
        let long = self.long.places(end).take(MAX_LONG_STEPS + 1);
        self.longest(end, long).or_else(|| {
            let short = self.short.places(end).take(MAX_SHORT_STEPS + 1);
            self.longest(end, short)
        })
    }

    fn longest(&self, end: &[u32], places: impl Iterator<Item = usize>) -> Option<Match> {
        let mut best: Option<Match> = None;
        // Nothing follows the end of the text.
        for next in places.filter(|&place| place < self.tokens.len()) {
            let len = self.len_at(next, end);
            if len >= MIN_MATCH && best.is_none_or(|best| len > best.len) {
                best = Some(Match { next, len });
            }
            if len == MAX_MATCH {
                break;
            }
        }
        best
    }

    /// Returns the number of tokens before `place` that are equal to those at the end of `end`.
    fn len_at(&self, place: usize, end: &[u32]) -> usize {
        let before = self.tokens[..place].iter().rev();
        before.zip(end.iter().rev()).take(MAX_MATCH).take_while(|(a, b)| a == b).count()
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<u32>() + self.long.num_bytes() + self.short.num_bytes()
    }
}
