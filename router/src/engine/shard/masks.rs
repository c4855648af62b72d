//! Numbered masks on a Step stream. Inside a string most masks of a step equal each other and those of the step before,
//! so a mask's bytes are sent once and its number is sent afterwards.
//!
//! Both sides have a table from `NAMES` to bytes, empty when a stream begins. The router decides which entry is
//! replaced, and the shard follows.

use std::ops::RangeInclusive;
use std::sync::Arc;

use trunkline_scheduler::{LateMask, TokenMask};

use super::{ShardError, proto};

/// The numbers that a mask can have.
pub const NAMES: RangeInclusive<u32> = 1..=64;

/// The router's table of masks.
#[derive(Debug, Default)]
pub struct NamedMasks {
    /// The mask at index i has the i-th number.
    masks: Vec<Named>,
    /// The number of uses so far, which orders entries by their last use.
    num_uses: u64,
}

#[derive(Debug)]
struct Named {
    mask: TokenMask,
    last_use: u64,
}

impl NamedMasks {
    /// Converts a late mask for the shard. The message has the mask's bytes only if the shard does not have them.
    pub fn write(&mut self, late: LateMask) -> proto::LateMask {
        let Some(mask) = late.allowed_tokens else {
            return proto::LateMask { sequence_id: late.sequence_id, ..Default::default() };
        };
        let (index, is_new) = self.name(&mask);
        proto::LateMask {
            sequence_id: late.sequence_id,
            allowed_tokens: if is_new { mask.0.to_vec() } else { Vec::new() },
            mask_id: NAMES.start() + index as u32,
        }
    }

    /// Returns the index of a mask, and true if it was just entered. A new mask replaces the least recently used one if
    /// the table is full.
    fn name(&mut self, mask: &TokenMask) -> (usize, bool) {
        self.num_uses += 1;
        let last_use = self.num_uses;
        // Equal masks mostly share their bytes, so comparing pointers first avoids reading them.
        let same = self.masks.iter().position(|named| Arc::ptr_eq(&named.mask.0, &mask.0));
        if let Some(index) = same.or_else(|| self.masks.iter().position(|named| named.mask == *mask)) {
            self.masks[index].last_use = last_use;
            return (index, false);
        }
        let named = Named { mask: mask.clone(), last_use };
        if self.masks.len() < NAMES.count() {
            self.masks.push(named);
            return (self.masks.len() - 1, true);
        }
        let oldest = (0..self.masks.len()).min_by_key(|&index| self.masks[index].last_use).unwrap_or(0);
        self.masks[oldest] = named;
        (oldest, true)
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
