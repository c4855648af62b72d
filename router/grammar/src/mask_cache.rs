//! Masks that the sequences of a grammar share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::mask::TokenMask;

/// Most bytes of masks that a grammar keeps. Within a text there are few distinct masks.
const MAX_CACHED_BYTES: usize = 512 << 10;
/// Number of masks that are kept whatever their size.
const MIN_CACHED_MASKS: usize = 8;

/// A mask and the facts about it that decide how a sequence continues.
#[derive(Debug)]
pub(crate) struct CachedMask {
    pub(crate) mask: TokenMask,
    /// The first token that is not an end token.
    pub(crate) first_text_token: Option<u32>,
    /// True if at most one token is not an end token.
    pub(crate) has_one_text_token: bool,
    pub(crate) may_end: bool,
}

impl CachedMask {
    fn new(mask: TokenMask, end_token_ids: &[u32]) -> Self {
        let (first_text_token, has_one_text_token) = {
            let mut ids = mask.iter().filter(|id| !end_token_ids.contains(id));
            (ids.next(), ids.next().is_none())
        };
        let may_end = end_token_ids.iter().any(|&id| mask.contains(id));
        Self { mask, first_text_token, has_one_text_token, may_end }
    }

    /// Creates a mask of an output that has no grammar. Each of its tokens is sampled, and it ends like any output.
    pub(crate) fn unforced(mask: TokenMask) -> Self {
        Self { has_one_text_token: false, may_end: false, ..Self::new(mask, &[]) }
    }
}

/// The distinct masks of a grammar.
///
/// Equal masks share memory, so comparing or sending one need not read it. Reading is slow, because a step of a model
/// evicts masks from the processor's caches.
#[derive(Debug, Default)]
pub(crate) struct MaskCache {
    by_digest: Mutex<HashMap<u64, Arc<CachedMask>>>,
}

impl MaskCache {
    /// Returns the cached mask that is equal to `mask`, after inserting `mask` if there is none.
    pub(crate) fn intern(&self, mask: TokenMask, end_token_ids: &[u32]) -> Arc<CachedMask> {
        let digest = mask.digest();
        let mut masks = self.by_digest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = masks.get(&digest).filter(|cached| cached.mask == mask) {
            return cached.clone();
        }
        // The masks in use are soon inserted again.
        if masks.len() >= (MAX_CACHED_BYTES / mask.num_bytes().max(1)).max(MIN_CACHED_MASKS) {
            masks.clear();
        }
        let cached = Arc::new(CachedMask::new(mask, end_token_ids));
        masks.insert(digest, cached.clone());
        cached
    }
}

#[cfg(test)]
mod tests {
    use llguidance::toktrie::SimpleVob;

    use super::*;

    const VOCAB_SIZE: usize = 1 << 18;
    const MAX_MASKS: usize = MAX_CACHED_BYTES / (VOCAB_SIZE / 8);

    fn mask(ids: &[u32]) -> TokenMask {
        let mut allowed = SimpleVob::alloc_with_capacity(VOCAB_SIZE, VOCAB_SIZE + 1);
        ids.iter().for_each(|&id| allowed.allow_token(id));
        TokenMask::new(&allowed, &allowed)
    }

    #[test]
    fn equal_masks_share_memory_until_the_cache_is_full() {
        let cache = MaskCache::default();
        let first = cache.intern(mask(&[7, 9]), &[9]);
        assert_eq!((first.first_text_token, first.has_one_text_token, first.may_end), (Some(7), true, true));
        assert!(Arc::ptr_eq(&first, &cache.intern(mask(&[7, 9]), &[9])));
        for id in 10..10 + MAX_MASKS as u32 {
            let other = cache.intern(mask(&[id]), &[9]);
            assert_eq!(other.mask, mask(&[id]));
            assert_eq!(other.may_end, id == 9);
        }
        let again = cache.intern(mask(&[7, 9]), &[9]);
        assert!(!Arc::ptr_eq(&first, &again));
        assert_eq!(first.mask, again.mask);
        assert!(cache.by_digest.lock().unwrap().len() <= MAX_MASKS);
    }
}
