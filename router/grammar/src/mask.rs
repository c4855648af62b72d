//! A set of tokens.

use llguidance::toktrie::SimpleVob;

/// Which tokens may be sampled. Bit `i % 8` of byte `i / 8` is token `i`; ids beyond the last byte are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    bytes: Vec<u8>,
}

impl TokenMask {
    /// The tokens of `allowed` that are in `permitted` too.
    pub(crate) fn new(allowed: &SimpleVob, permitted: &SimpleVob) -> Self {
        let words = allowed.as_slice().iter().zip(permitted.as_slice());
        Self { bytes: words.flat_map(|(a, b)| (a & b).to_le_bytes()).collect() }
    }

    /// The first bytes, as many as an output head of so many rows needs: the rest are zero, or cut off.
    pub fn for_rows(&self, num_rows: u32) -> Vec<u8> {
        let num_bytes = num_rows.div_ceil(8) as usize;
        let mut bytes = self.bytes.clone();
        bytes.resize(num_bytes, 0);
        if let (Some(last), rest @ 1..) = (bytes.last_mut(), num_rows % 8) {
            *last &= (1 << rest) - 1;
        }
        bytes
    }

    /// One more. An id beyond the vocabulary is left out.
    pub(crate) fn insert(&mut self, token_id: u32) {
        if let Some(byte) = self.bytes.get_mut(token_id as usize / 8) {
            *byte |= 1 << (token_id % 8);
        }
    }

    /// Whether a token may be sampled.
    pub fn contains(&self, token_id: u32) -> bool {
        self.bytes.get(token_id as usize / 8).is_some_and(|byte| byte >> (token_id % 8) & 1 == 1)
    }

    /// Ids in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.bytes).filter(|(_, byte)| **byte != 0).flat_map(|(index, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| 8 * index + bit)
        })
    }

    /// Number of ids in it.
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
        assert_eq!(mask.for_rows(12), [0b1010_1010, 0b1010]);
        assert_eq!(mask.for_rows(8), [0b1010_1010]);
        assert_eq!(mask.for_rows(100)[5..], [0; 8]);
    }
}
