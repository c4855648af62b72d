//! Masks that the sequences of a grammar have in common.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::TokenMask;

/// Bytes of masks that a grammar keeps, at most: within a text they are few.
const MAX_SEEN_BYTES: usize = 512 << 10;
/// So many masks are kept whatever their size.
const MIN_SEEN: usize = 8;

/// A mask, and what of it says how to go on.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) mask: TokenMask,
    /// The first that ends nothing, and whether it is the only one.
    pub(crate) first: Option<u32>,
    pub(crate) is_single: bool,
    pub(crate) may_end: bool,
}

impl Seen {
    fn new(mask: TokenMask, end_token_ids: &[u32]) -> Self {
        let (first, is_single) = {
            let mut ids = mask.iter().filter(|id| !end_token_ids.contains(id));
            (ids.next(), ids.next().is_none())
        };
        let may_end = end_token_ids.iter().any(|&id| mask.contains(id));
        Self { mask, first, is_single, may_end }
    }
}

/// Masks of all sequences of a grammar: equal ones are one, so that who compares them, or sends them on, need not read
/// them. A step of a model leaves nothing of them in a near cache.
#[derive(Debug, Default)]
pub(crate) struct SeenMasks {
    /// By their digests.
    masks: Mutex<HashMap<u64, Arc<Seen>>>,
}

impl SeenMasks {
    /// The one that is equal to it: itself if there is none.
    pub(crate) fn find(&self, mask: TokenMask, end_token_ids: &[u32]) -> Arc<Seen> {
        let digest = mask.digest();
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = masks.get(&digest).filter(|seen| seen.mask == mask) {
            return seen.clone();
        }
        // Those that are in use are soon here again.
        if masks.len() >= (MAX_SEEN_BYTES / mask.num_bytes().max(1)).max(MIN_SEEN) {
            masks.clear();
        }
        let seen = Arc::new(Seen::new(mask, end_token_ids));
        masks.insert(digest, seen.clone());
        seen
    }
}

#[cfg(test)]
mod tests {
    use llguidance::toktrie::SimpleVob;

    use super::*;

    const VOCAB_SIZE: usize = 1 << 18;
    const MAX_MASKS: usize = MAX_SEEN_BYTES / (VOCAB_SIZE / 8);

    fn mask(ids: &[u32]) -> TokenMask {
        let mut allowed = SimpleVob::alloc_with_capacity(VOCAB_SIZE, VOCAB_SIZE + 1);
        ids.iter().for_each(|&id| allowed.allow_token(id));
        TokenMask::new(&allowed, &allowed)
    }

    #[test]
    fn equal_masks_are_one_until_they_are_too_many() {
        let seen = SeenMasks::default();
        let first = seen.find(mask(&[7, 9]), &[9]);
        assert_eq!((first.first, first.is_single, first.may_end), (Some(7), true, true));
        assert!(Arc::ptr_eq(&first, &seen.find(mask(&[7, 9]), &[9])));
        for id in 10..10 + MAX_MASKS as u32 {
            let other = seen.find(mask(&[id]), &[9]);
            assert_eq!(other.mask, mask(&[id]));
            assert_eq!(other.may_end, id == 9);
        }
        let again = seen.find(mask(&[7, 9]), &[9]);
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!(first.mask, again.mask);
        assert!(seen.masks.lock().unwrap().len() <= MAX_MASKS);
    }
}
