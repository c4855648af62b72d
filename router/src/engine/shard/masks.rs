//! Numbered masks on a Step stream. Inside a string most masks of a step equal each other and those of the step before,
//! and the choices of a request share the mask of its `allowed_token_ids`. So a mask's bytes are sent once and its
//! number is sent afterwards.
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
    /// Converts a late mask for the shard.
    pub fn write_late(&mut self, late: LateMask) -> proto::LateMask {
        let (allowed_tokens, mask_id) =
            late.allowed_tokens.map_or_else(Default::default, |mask| self.write(&mask));
        proto::LateMask { sequence_id: late.sequence_id, allowed_tokens, mask_id }
    }

    /// Returns a mask's bytes, or none if the shard has them, and its number.
    pub fn write(&mut self, mask: &TokenMask) -> (Vec<u8>, u32) {
        let (mask_id, is_new) = self.name(mask);
        (if is_new { mask.0.to_vec() } else { Vec::new() }, mask_id)
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
    pub fn read_late(&mut self, late: proto::LateMask) -> Result<LateMask, ShardError> {
        let allowed_tokens = self.read(&late.allowed_tokens, late.mask_id, late.sequence_id)?;
        Ok(LateMask { sequence_id: late.sequence_id, allowed_tokens })
    }

    /// Puts the bytes of named masks into the starts of a plan.
    pub fn resolve(&mut self, plan: &mut proto::StepPlan) -> Result<(), ShardError> {
        for start in &mut plan.starts {
            let Some(sampling) = &mut start.sampling else { continue };
            let mask = self.read(&sampling.allowed_tokens, sampling.mask_id, start.sequence_id)?;
            sampling.allowed_tokens = mask.map_or_else(Vec::new, |mask| mask.0.to_vec());
        }
        Ok(())
    }

    fn read(&mut self, bytes: &[u8], name: u32, sequence_id: u64) -> Result<Option<TokenMask>, ShardError> {
        let invalid = |what: &str| ShardError::InvalidMessage {
            detail: format!("mask of sequence {sequence_id}: mask {name} {what}"),
        };
        let mask = (!bytes.is_empty()).then(|| TokenMask(bytes.into()));
        if name == 0 {
            return Ok(mask);
        }
        if !NAMES.contains(&name) {
            return Err(invalid("is not a name"));
        }
        self.masks.resize(NAMES.count(), None);
        let named = &mut self.masks[(name - NAMES.start()) as usize];
        if mask.is_some() {
            *named = mask;
        }
        named.clone().map(Some).ok_or_else(|| invalid("has not been sent"))
    }
}
