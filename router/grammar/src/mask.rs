//! A set of tokens.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

/// Which tokens may be sampled. Bit `i % 8` of byte `i / 8` is token `i`; ids beyond the last byte are not in it.
///
/// Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask {
    bytes: Arc<[u8]>,
}

impl TokenMask {
    /// The tokens of `allowed` that are in `permitted` too.
    pub(crate) fn new(allowed: &SimpleVob, permitted: &SimpleVob) -> Self {
        let (allowed, permitted) = (allowed.as_slice(), permitted.as_slice());
        let mut bytes = vec![0; allowed.len().min(permitted.len()) * size_of::<u32>()];
        for (bytes, (a, b)) in bytes.chunks_exact_mut(size_of::<u32>()).zip(allowed.iter().zip(permitted)) {
            bytes.copy_from_slice(&(a & b).to_le_bytes());
        }
        Self { bytes: bytes.into() }
    }

    /// The first bytes, as many as an output head of so many rows needs: the rest are zero, or cut off. The mask's own
    /// where nothing is to be changed.
    pub fn for_rows(&self, num_rows: u32) -> Arc<[u8]> {
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

    /// One more. An id beyond the vocabulary is left out.
    pub(crate) fn insert(&mut self, token_id: u32) {
        if let Some(byte) = Arc::make_mut(&mut self.bytes).get_mut(token_id as usize / 8) {
            *byte |= 1 << (token_id % 8);
        }
    }

    /// Whether a token may be sampled.
    pub fn contains(&self, token_id: u32) -> bool {
        self.bytes.get(token_id as usize / 8).is_some_and(|byte| byte >> (token_id % 8) & 1 == 1)
    }

    /// Ids in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(self.bytes.iter()).filter(|(_, byte)| **byte != 0).flat_map(|(index, byte)| {
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
        assert_eq!(mask.for_rows(12)[..], [0b1010_1010, 0b1010]);
        assert_eq!(mask.for_rows(8)[..], [0b1010_1010]);
        assert_eq!(mask.for_rows(100)[5..], [0; 8]);
        let num_rows = 8 * mask.bytes.len() as u32;
        assert!(Arc::ptr_eq(&mask.for_rows(num_rows), &mask.bytes));
    }
}
