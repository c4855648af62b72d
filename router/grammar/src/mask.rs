//! The set of tokens that may be sampled.

use std::sync::{Arc, OnceLock};

use llguidance::toktrie::SimpleVob;

/// Initial value of a digest, which is arbitrary and not zero.
const DIGEST_SEED: u64 = 0xF39C_C060_5CED_C835;

/// A set of token ids.
///
/// Bit `i % 8` of byte `i / 8` stands for token `i`. Ids beyond the last byte are not in the set. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct TokenMask {
    bytes: Arc<[u8]>,
    /// The bytes for the number of rows that was requested first.
    for_first_rows: Arc<OnceLock<(u32, Arc<[u8]>)>>,
}

impl PartialEq for TokenMask {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes) || self.bytes == other.bytes
    }
}

impl Eq for TokenMask {}

const WORD_BYTES: usize = size_of::<u32>();

/// Returns the intersection of two sets as words, without the unused capacity of `allowed`.
fn words(allowed: &SimpleVob, permitted: &SimpleVob) -> impl ExactSizeIterator<Item = u32> {
    let num_words = allowed.len().div_ceil(u32::BITS as usize);
    allowed.as_slice().iter().zip(permitted.as_slice()).take(num_words).map(|(a, b)| a & b)
}

impl TokenMask {
    pub(crate) fn new(allowed: &SimpleVob, permitted: &SimpleVob) -> Self {
        let words = words(allowed, permitted);
        let mut bytes = vec![0; words.len() * WORD_BYTES];
        for (bytes, word) in bytes.as_chunks_mut::<WORD_BYTES>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Self::from_bytes(bytes.into())
    }

    /// Creates the mask of these tokens of a vocabulary.
    pub(crate) fn of(token_ids: impl IntoIterator<Item = u32>, vocab_size: usize) -> Self {
        let none = SimpleVob::alloc(vocab_size);
        Self::new(&none, &none).with(token_ids)
    }

    fn from_bytes(bytes: Arc<[u8]>) -> Self {
        Self { bytes, for_first_rows: Arc::default() }
    }

    /// Returns true if [`TokenMask::new`] would create an equal mask.
    pub(crate) fn equals(&self, allowed: &SimpleVob, permitted: &SimpleVob) -> bool {
        let words = words(allowed, permitted);
        let (own, rest) = self.bytes.as_chunks::<WORD_BYTES>();
        // Comparing all words without an early exit lets the compiler use vector instructions.
        own.len() == words.len()
            && rest.is_empty()
            && own.iter().zip(words).fold(0, |diff, (own, word)| diff | (u32::from_le_bytes(*own) ^ word))
                == 0
    }

    /// Returns a digest, which is the same for equal masks and mostly different for others.
    pub(crate) fn digest(&self) -> u64 {
        // As in wyhash, both halves of a long product are combined, so one bit of a word changes about half of them.
        let fold = |digest: u64, word: u64| {
            let product = u128::from(digest ^ word) * 0x9E37_79B9_7F4A_7C15;
            (product >> 64) as u64 ^ product as u64
        };
        let (words, rest) = self.bytes.as_chunks();
        let digest = words.iter().fold(DIGEST_SEED, |digest, word| fold(digest, u64::from_le_bytes(*word)));
        rest.iter().fold(digest, |digest, byte| fold(digest, u64::from(*byte)))
    }

    /// Returns the mask's bytes for an output head of `num_rows` rows, cut off or filled with zeros.
    ///
    /// Calls with the number of rows that was requested first return the same memory.
    pub fn for_rows(&self, num_rows: u32) -> Arc<[u8]> {
        let (first_rows, bytes) = self.for_first_rows.get_or_init(|| (num_rows, self.resized(num_rows)));
        if *first_rows == num_rows { bytes.clone() } else { self.resized(num_rows) }
    }

    fn resized(&self, num_rows: u32) -> Arc<[u8]> {
        let num_bytes = num_rows.div_ceil(8) as usize;
        let num_bits = num_rows % 8;
        if num_bytes == self.bytes.len() && num_bits == 0 {
            return self.bytes.clone();
        }
        let mut bytes = self.bytes.to_vec();
        bytes.resize(num_bytes, 0);
        if let (Some(last), 1..) = (bytes.last_mut(), num_bits) {
            *last &= (1 << num_bits) - 1;
        }
        bytes.into()
    }

    /// Adds tokens. Ids beyond the vocabulary are ignored.
    pub(crate) fn with(self, token_ids: impl IntoIterator<Item = u32>) -> Self {
        let mut bytes = self.bytes.to_vec();
        for token_id in token_ids {
            if let Some(byte) = bytes.get_mut(token_id as usize / 8) {
                *byte |= 1 << (token_id % 8);
            }
        }
        Self::from_bytes(bytes.into())
    }

    pub(crate) fn without(self, token_ids: impl IntoIterator<Item = u32>) -> Self {
        let mut bytes = self.bytes.to_vec();
        for token_id in token_ids {
            if let Some(byte) = bytes.get_mut(token_id as usize / 8) {
                *byte &= !(1 << (token_id % 8));
            }
        }
        Self::from_bytes(bytes.into())
    }

    pub fn contains(&self, token_id: u32) -> bool {
        self.bytes.get(token_id as usize / 8).is_some_and(|byte| byte >> (token_id % 8) & 1 == 1)
    }

    /// Iterates over the ids in the mask, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(self.bytes.iter()).filter(|(_, byte)| **byte != 0).flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * index + bit)
        })
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub fn count(&self) -> usize {
        self.bytes.iter().map(|byte| byte.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_cut_to_the_rows_of_the_output_head() {
        let mut all = SimpleVob::alloc(40);
        all.set_all(true);
        let mut odd = SimpleVob::alloc(40);
        (0..40).filter(|id| id % 2 == 1).for_each(|id| odd.allow_token(id));
        let mask = TokenMask::new(&odd, &all);
        assert_eq!(mask.iter().collect::<Vec<_>>(), (0..40).filter(|id| id % 2 == 1).collect::<Vec<_>>());
        assert_eq!(mask.count(), 20);
        assert!(mask.contains(39) && !mask.contains(38) && !mask.contains(4000));
        assert_eq!(mask.for_rows(12)[..], [0b1010_1010, 0b1010]);
        assert_eq!(mask.for_rows(8)[..], [0b1010_1010]);
        assert_eq!(mask.for_rows(100)[5..], [0; 8]);
        assert_eq!(mask.for_rows(12)[..], [0b1010_1010, 0b1010]);
    }

    #[test]
    fn a_mask_of_the_heads_rows_is_not_copied() {
        // The parser allocates its sets with room for one more token.
        let mut allowed = SimpleVob::alloc_with_capacity(64, 65);
        allowed.allow_token(63);
        let mask = TokenMask::new(&allowed, &allowed);
        assert!(Arc::ptr_eq(&mask.for_rows(64), &mask.bytes));
        let padded = TokenMask::new(&allowed, &allowed);
        assert_eq!(padded.for_rows(80)[..], [0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0]);
        assert!(Arc::ptr_eq(&padded.for_rows(80), &padded.clone().for_rows(80)));
    }

    #[test]
    fn masks_are_told_apart() {
        let mut all = SimpleVob::alloc_with_capacity(100, 101);
        all.set_all(true);
        let one_of = |id| {
            let mut one = SimpleVob::alloc_with_capacity(100, 101);
            one.allow_token(id);
            one
        };
        let mask = TokenMask::new(&one_of(70), &all);
        assert!(mask.equals(&one_of(70), &all) && !mask.equals(&one_of(71), &all));
        assert!(
            !mask.equals(&one_of(70), &one_of(3))
                && TokenMask::new(&one_of(70), &one_of(3)).equals(&one_of(3), &one_of(4))
        );
        assert_eq!(mask.digest(), TokenMask::new(&one_of(70), &one_of(70)).digest());
        let digests: std::collections::HashSet<u64> =
            (0..100).map(|id| TokenMask::new(&one_of(id), &all).digest()).collect();
        assert_eq!(digests.len(), 100);
        assert_eq!(mask.clone().with([71]).iter().collect::<Vec<_>>(), [70, 71]);
        assert_eq!(mask.clone().with([4000]), mask);
        assert_eq!(mask.with([71]).without([70, 4000]).iter().collect::<Vec<_>>(), [71]);
    }
}
