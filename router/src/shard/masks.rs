//! Names of masks on a Step stream: inside a text a step's masks are mostly those of the step before, and of each
//! other.
//!
//! Each side has a table of them, from `NAMES` to bytes, both empty when a stream begins. The router chooses which one
//! gives way; the shard only follows.

use std::ops::RangeInclusive;
use std::sync::Arc;

use trunkline_scheduler::{LateMask, TokenMask};

use super::{ShardError, proto};

/// What a mask may be called.
pub const NAMES: RangeInclusive<u32> = 1..=64;

/// The router's table.
#[derive(Debug, Default)]
pub struct NamedMasks {
    /// The i-th has the i-th name.
    masks: Vec<Named>,
    /// Counts uses.
    num_uses: u64,
}

#[derive(Debug)]
struct Named {
    mask: TokenMask,
    last_use: u64,
}

impl NamedMasks {
    /// What a step under way may sample, on its way to the shard: with its bytes if the shard does not have them.
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

    /// Where a mask is, and whether it is so only now, in place of the one that was least recently used.
    fn name(&mut self, mask: &TokenMask) -> (usize, bool) {
        self.num_uses += 1;
        let last_use = self.num_uses;
        // Equal ones are mostly one and the same, which can be told without reading them.
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

/// A shard's table: for mock shards and for the replay of recorded conversations.
#[derive(Debug, Default)]
pub struct KnownMasks {
    masks: Vec<Option<TokenMask>>,
}

impl KnownMasks {
    /// What a step under way may sample.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// More masks than names.
    const NUM_MASKS: u64 = 80;

    fn mask(number: u64) -> TokenMask {
        TokenMask(number.to_le_bytes().as_slice().into())
    }

    /// Says one; returns whether it went with its bytes.
    fn say(names: &mut NamedMasks, known: &mut KnownMasks, number: u64) -> bool {
        let late = LateMask { sequence_id: number + 1, allowed_tokens: Some(mask(number)) };
        let message = names.write(late.clone());
        let is_new = !message.allowed_tokens.is_empty();
        assert_eq!(known.read(message).unwrap(), late);
        is_new
    }

    #[test]
    fn the_shards_table_follows_the_routers_in_any_order() {
        for seed in 0..20u64 {
            let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
            let mut state = seed;
            let mut num_new = 0;
            for _ in 0..2000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                num_new += usize::from(say(&mut names, &mut known, (state >> 33) % NUM_MASKS));
            }
            // Of 80 that are equally likely 64 have names.
            assert!((80..1000).contains(&num_new), "seed {seed}: {num_new} of 2000 went with their bytes");
        }
    }

    #[test]
    fn the_least_recently_used_mask_gives_way() {
        let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
        let count = NAMES.count() as u64;
        assert!((0..count).all(|number| say(&mut names, &mut known, number)));
        assert!(!(0..count).any(|number| say(&mut names, &mut known, number)), "each has a name");
        assert!(!say(&mut names, &mut known, 0));
        assert!(say(&mut names, &mut known, count), "one more, in place of the second");
        assert!(!say(&mut names, &mut known, 0) && !say(&mut names, &mut known, 2));
        assert!(say(&mut names, &mut known, 1));
    }

    #[test]
    fn a_new_stream_begins_without_masks() {
        let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
        assert!(say(&mut names, &mut known, 7));
        let late = LateMask { sequence_id: 1, allowed_tokens: Some(mask(7)) };
        assert!(KnownMasks::default().read(names.write(late)).is_err());
        assert!(say(&mut NamedMasks::default(), &mut KnownMasks::default(), 7));
    }

    #[test]
    fn that_nothing_is_sampled_needs_no_mask_and_a_mask_no_name() {
        let (mut names, mut known) = (NamedMasks::default(), KnownMasks::default());
        let late = LateMask { sequence_id: 3, allowed_tokens: None };
        let message = names.write(late.clone());
        assert_eq!(message, proto::LateMask { sequence_id: 3, ..Default::default() });
        assert_eq!(known.read(message).unwrap(), late);
        let plain = proto::LateMask { sequence_id: 3, allowed_tokens: vec![1, 2], mask_id: 0 };
        assert_eq!(known.read(plain).unwrap().allowed_tokens, Some(TokenMask([1, 2].as_slice().into())));
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        for (mask_id, what) in [(5, "has not been sent"), (65, "is not a name"), (u32::MAX, "is not a name")]
        {
            let late = proto::LateMask { sequence_id: 9, mask_id, ..Default::default() };
            let error = KnownMasks::default().read(late).unwrap_err().to_string();
            assert!(error.contains(&format!("sequence 9: mask {mask_id} {what}")), "{error}");
        }
    }
}
