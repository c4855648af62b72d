//! DRY, "don't repeat yourself": a token is penalised if it would continue a text that occurred before, the more the
//! longer the repeated text is.
//!
//! The definition is that of text-generation-webui's pull request 5677 and of llama.cpp, with one difference: sequence
//! breakers are found in the text, whatever tokens it has.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use trunkline_contract::MAX_MASK_PENALTIES;

/// The settings of DRY.
#[derive(Debug, Clone, PartialEq)]
pub struct DryParams {
    /// The penalty of the shortest repetition that counts.
    pub multiplier: f32,
    /// The factor by which each further token of the repetition raises the penalty.
    pub base: f32,
    /// The least number of repeated tokens that counts.
    pub allowed_length: u32,
    /// The number of last tokens in which repetitions are searched.
    pub window: usize,
    /// Texts that a repetition does not cross. None is empty.
    pub breakers: Vec<String>,
}

impl DryParams {
    /// The range of `multiplier`.
    pub const MULTIPLIERS: RangeInclusive<f32> = 0.0..=100.0;
    /// The range of `base`.
    pub const BASES: RangeInclusive<f32> = 1.0..=100.0;
    /// The range of `allowed_length`.
    pub const ALLOWED_LENGTHS: RangeInclusive<u32> = 0..=1024;
    /// The most texts in `breakers`.
    pub const MAX_BREAKERS: usize = 64;
    /// The most bytes of a breaker.
    pub const MAX_BREAKER_BYTES: usize = 128;
}

/// The largest penalty. It excludes a token in all but name, and sums with it stay finite.
const MAX_PENALTY: f32 = 1e30;

/// The tokens of a sequence, and where its last sequence breaker ends.
#[derive(Clone)]
pub(crate) struct Repeats {
    params: DryParams,
    token_ids: Vec<u32>,
    /// The number of tokens up to the end of the last breaker.
    num_broken: usize,
    /// The last bytes of the text, which may begin a breaker.
    tail: Vec<u8>,
}

impl Repeats {
    pub(crate) fn new(params: DryParams) -> Self {
        Self { params, token_ids: Vec::new(), num_broken: 0, tail: Vec::new() }
    }

    /// Appends a token and its text.
    pub(crate) fn push(&mut self, token_id: u32, text: &[u8]) {
        self.token_ids.push(token_id);
        self.tail.extend_from_slice(text);
        let has_breaker = self.params.breakers.iter().any(|breaker| {
            // A breaker that ended before this token has been found already.
            let first = self.tail.len().saturating_sub(text.len() + breaker.len() - 1);
            contains(&self.tail[first..], breaker)
        });
        if has_breaker {
            self.num_broken = self.token_ids.len();
        }
        let longest = self.params.breakers.iter().map(String::len).max().unwrap_or(1);
        self.tail.drain(..(self.tail.len() + 1).saturating_sub(longest));
    }

    /// Returns what to add to the logits of tokens, in ascending order of ids. Tokens whose own text has a breaker are
    /// not penalised. Of more than [`MAX_MASK_PENALTIES`] tokens, only those with the longest repetitions are; of equal
    /// ones, those with lower ids. Costs time proportional to the window.
    pub(crate) fn penalties<'a>(&self, text: impl Fn(u32) -> &'a [u8]) -> Vec<(u32, f32)> {
        let Self { params, token_ids, num_broken, .. } = self;
        let window = &token_ids[token_ids.len().saturating_sub(params.window)..];
        let longest = (token_ids.len() - num_broken).min(window.len());
        let least = (params.allowed_length as usize).max(1);
        if longest < least {
            return Vec::new();
        }
        // The longest repetition that each token would continue.
        let mut lengths: BTreeMap<u32, usize> = BTreeMap::new();
        for (end, length) in common_suffixes(window).into_iter().enumerate() {
            let length = length.min(longest);
            if length >= least {
                let known = lengths.entry(window[end]).or_default();
                *known = length.max(*known);
            }
        }
        let has_breaker = |id| params.breakers.iter().any(|breaker| contains(text(id), breaker));
        let penalty = |length: usize| {
            let exponent = length as f32 - params.allowed_length as f32;
            (params.multiplier * params.base.powf(exponent)).min(MAX_PENALTY)
        };
        let mut lengths: Vec<(u32, usize)> =
            lengths.into_iter().filter(|(id, _)| !has_breaker(*id)).collect();
        if lengths.len() > MAX_MASK_PENALTIES {
            lengths.sort_by_key(|&(_, length)| Reverse(length));
            lengths.truncate(MAX_MASK_PENALTIES);
            lengths.sort_unstable();
        }
        lengths.into_iter().map(|(id, length)| (id, -penalty(length))).collect()
    }
}

fn contains(text: &[u8], breaker: &str) -> bool {
    text.windows(breaker.len()).any(|window| window == breaker.as_bytes())
}

/// Returns for each proper prefix of the tokens, by its length, how many last tokens it shares with the whole.
///
/// This is the Z-algorithm (Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997, section 1.3) on the reversed
/// tokens.
fn common_suffixes(token_ids: &[u32]) -> Vec<usize> {
    let num_tokens = token_ids.len();
    let reversed = |index: usize| token_ids[num_tokens - 1 - index];
    let mut shared = vec![0; num_tokens];
    // The match that reaches furthest so far is from `begin` to `end`.
    let (mut begin, mut end) = (0, 0);
    for index in 1..num_tokens {
        let mut length =
            if index < end { (end - index).min(shared[num_tokens - (index - begin)]) } else { 0 };
        while index + length < num_tokens && reversed(length) == reversed(index + length) {
            length += 1;
        }
        if index + length > end {
            (begin, end) = (index, index + length);
        }
        shared[num_tokens - index] = length;
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> DryParams {
        DryParams {
            multiplier: 0.8,
            base: 2.0,
            allowed_length: 2,
            window: usize::MAX,
            breakers: vec![".".into()],
        }
    }

    /// Returns the penalties after the text, whose tokens are its bytes.
    fn penalties(params: DryParams, text: &str) -> Vec<(char, f32)> {
        let texts: Vec<[u8; 1]> = (0..=u8::MAX).map(|byte| [byte]).collect();
        let mut repeats = Repeats::new(params);
        text.bytes().for_each(|byte| repeats.push(byte.into(), &[byte]));
        let penalties = repeats.penalties(|id| &texts[id as usize]);
        penalties.into_iter().map(|(id, penalty)| (id as u8 as char, penalty)).collect()
    }

    #[test]
    fn the_penalty_grows_with_the_repeated_text() {
        assert_eq!(penalties(params(), "abcd ab"), [('c', -0.8)]);
        assert_eq!(penalties(params(), "abcd abc"), [('d', -1.6)]);
        assert_eq!(penalties(params(), "abcd b"), [], "one token is too short");
        // The longest repetition counts for each token that follows one.
        assert_eq!(penalties(params(), "xabc abd xab"), [('c', -1.6), ('d', -0.8)]);
        assert_eq!(penalties(DryParams { allowed_length: 0, ..params() }, "ab a"), [('b', -1.6)]);
        assert_eq!(penalties(params(), ""), []);
        let long = "ab".repeat(400);
        assert_eq!(penalties(params(), &long), [('a', -MAX_PENALTY)]);
    }

    #[test]
    fn a_breaker_ends_a_repetition_and_is_never_penalised() {
        assert_eq!(penalties(params(), "ab.cd ab.c"), []);
        assert_eq!(penalties(params(), "ab.cde ab.cd"), [('e', -0.8)]);
        assert_eq!(penalties(params(), "ab. ab"), []);
        let words = DryParams { breakers: vec!["cd".into()], ..params() };
        assert_eq!(penalties(words.clone(), "abcdef abcde"), [], "one token after the breaker");
        assert_eq!(penalties(words, "abcdefg abcdef"), [('g', -0.8)]);
    }

    #[test]
    fn only_the_window_counts() {
        let window = |window| DryParams { window, ..params() };
        assert_eq!(penalties(window(6), "abcd ab"), []);
        assert_eq!(penalties(window(7), "abcd ab"), [('c', -0.8)]);
        assert_eq!(penalties(window(0), "ababab"), []);
    }

    #[test]
    fn common_suffixes_equal_their_definition() {
        let mut state = 1u32;
        for num_tokens in 0..60 {
            let tokens: Vec<u32> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 31
            })
            .take(num_tokens)
            .collect();
            let shared = |end: usize| {
                (0..end).take_while(|i| tokens[end - 1 - i] == tokens[num_tokens - 1 - i]).count()
            };
            let expected: Vec<usize> = (0..num_tokens).map(shared).collect();
            assert_eq!(common_suffixes(&tokens), expected, "{tokens:?}");
        }
    }

    #[test]
    fn of_many_continuations_the_longest_repetitions_are_penalised() {
        // The text is "x0 x1 ... x9 yx9 yx". Each number has followed an x, but only the last one has followed "x9 yx".
        let numbers = 2 * MAX_MASK_PENALTIES as u32;
        let mut repeats = Repeats::new(DryParams { allowed_length: 1, ..params() });
        let (x, y) = (numbers, numbers + 1);
        let text = (0..numbers).flat_map(|number| [x, number]).chain([y, x, numbers - 1, y, x]);
        text.for_each(|id| repeats.push(id, b"a"));
        let penalties = repeats.penalties(|_| b"a");
        assert_eq!(penalties.len(), MAX_MASK_PENALTIES);
        assert!(penalties.is_sorted_by(|(one, _), (other, _)| one < other));
        assert_eq!(penalties[..2], [(0, -0.8), (1, -0.8)]);
        assert_eq!(penalties.last(), Some(&(numbers - 1, -6.4)));
    }
}
