//! Numbered masks on a Step stream. Inside a string most masks of a step equal each other and those of the step before,
//! so a mask's bytes are sent once and its number is sent afterwards.
//!
//! Both sides have a table from `NAMES` to bytes, empty when a stream begins. The router decides which entry is
//! replaced, and the shard follows.

use std::ops::RangeInclusive;
use std::sync::Arc;

use lru::LruCache;
use trunkline_scheduler::{LateMask, TokenMask};

use super::{ShardError, proto};

/// The numbers that a mask can have.
pub const NAMES: RangeInclusive<u32> = 1..=64;

/// The router's table of masks.
#[derive(Debug)]
pub struct NamedMasks {
    masks: LruCache<u32, TokenMask>,
}

impl Default for NamedMasks {
    fn default() -> Self {
        Self { masks: LruCache::unbounded() }
    }
}

impl NamedMasks {
    /// Converts a late mask for the shard. The message has the mask's bytes only if the shard does not have them.
    pub fn write(&mut self, late: LateMask) -> proto::LateMask {
        let Some(mask) = late.allowed_tokens else {
            return proto::LateMask { sequence_id: late.sequence_id, ..Default::default() };
        };
        let (mask_id, is_new) = self.name(&mask);
        proto::LateMask {
            sequence_id: late.sequence_id,
            allowed_tokens: if is_new { mask.0.to_vec() } else { Vec::new() },
            mask_id,
        }
    }

    /// Returns the number of a mask, and true if it was just entered. In a full table a new mask replaces the least
    /// recently used one.
    fn name(&mut self, mask: &TokenMask) -> (u32, bool) {
        // Equal masks mostly share their bytes, so comparing pointers first avoids reading them.
        let same = self.masks.iter().find(|(_, named)| Arc::ptr_eq(&named.0, &mask.0));
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

/// A shard's table of masks. Mock shards and the replay of recorded conversations use it.
#[derive(Debug, Default)]
pub struct KnownMasks {
    masks: Vec<Option<TokenMask>>,
}

impl KnownMasks {
    /// Converts a late mask as a shard does.
    pub fn read(&mut self, late: proto::LateMask) -> Result<LateMask, ShardError> {
        let invalid = |what: &str| ShardError::InvalidMessage {
            detail: format!("late mask of sequence {}: mask {} {what}", late.sequence_id, late.mask_id),
        };
        let mask =
            (!late.allowed_tokens.is_empty()).then(|| TokenMask(late.allowed_tokens.as_slice().into()));
        let allowed_tokens = if late.mask_id == 0 {
            mask
        } else if NAMES.contains(&late.mask_id) {
            self.masks.resize(NAMES.count(), None);
            let named = &mut self.masks[(late.mask_id - NAMES.start()) as usize];
            if mask.is_some() {
                *named = mask;
            }
            Some(named.clone().ok_or_else(|| invalid("has not been sent"))?)
        } else {
            return Err(invalid("is not a name"));
        };
        Ok(LateMask { sequence_id: late.sequence_id, allowed_tokens })
    }
}
