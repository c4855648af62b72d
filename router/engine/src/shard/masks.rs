//! Numbered masks on a Step stream. Inside a string most masks of a step equal each other and those of the step before,
//! and the choices of a request share the mask of its `allowed_token_ids`. So a mask's bytes are sent once and its
//! number is sent afterwards.
//!
//! Both sides have a table from `NAMES` to bytes, empty when a stream begins. The router decides which entry is
//! replaced, and the shard follows.

use std::ops::RangeInclusive;

use bytes::Bytes;
use lru::LruCache;

use super::proto;

/// The numbers that a mask can have.
pub const NAMES: RangeInclusive<u32> = 1..=64;

/// The router's table of masks.
#[derive(Debug)]
pub struct NamedMasks {
    masks: LruCache<u32, Bytes>,
}

impl Default for NamedMasks {
    fn default() -> Self {
        Self { masks: LruCache::unbounded() }
    }
}

impl NamedMasks {
    /// Replaces the masks of a request by their numbers where the shard has them, and numbers the others.
    pub fn name_all(&mut self, request: &mut proto::StepRequest) {
        // The shard reads late masks first, and names refer to the last mask before them.
        for late in &mut request.late_masks {
            late.mask_id = self.write(&mut late.allowed_tokens);
        }
        let starts = request.plan.iter_mut().flat_map(|plan| &mut plan.starts);
        for sampling in starts.filter_map(|start| start.sampling.as_mut()) {
            sampling.mask_id = self.write(&mut sampling.allowed_tokens);
        }
    }

    /// Returns a mask's number, or 0 for no mask. Empties the mask if the shard has it.
    fn write(&mut self, mask: &mut Bytes) -> u32 {
        if mask.is_empty() {
            return 0;
        }
        let (mask_id, is_new) = self.name(mask);
        if !is_new {
            mask.clear();
        }
        mask_id
    }

    /// Returns the number of a mask, and true if it was just entered. In a full table a new mask replaces the least
    /// recently used one.
    fn name(&mut self, mask: &Bytes) -> (u32, bool) {
        // Equal masks mostly share their bytes, so comparing pointers first avoids reading them.
        let place = |mask: &Bytes| (mask.as_ptr(), mask.len());
        let same = self.masks.iter().find(|(_, named)| place(named) == place(mask));
        let same = same.or_else(|| self.masks.iter().find(|(_, named)| *named == mask));
        if let Some((&name, _)) = same {
            self.masks.promote(&name);
            return (name, false);
        }
        let is_full = self.masks.len() == NAMES.count();
        let oldest = if is_full { self.masks.pop_lru() } else { None };
        let name = oldest.map_or(NAMES.start() + self.masks.len() as u32, |(name, _)| name);
        self.masks.put(name, mask.clone());
        (name, true)
    }
}
