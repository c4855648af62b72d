//! The policies of eviction by name.

use crate::adaptive::AdaptivePolicy;
use crate::evict::{EvictionPolicy, LeafLru};
use crate::reuse_policy::WorthPolicy;

/// A policy of eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// [`LeafLru`].
    Lru,
    /// [`WorthPolicy`].
    Worth,
    /// [`AdaptivePolicy`].
    #[default]
    Adaptive,
}

impl PolicyKind {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Worth, Self::Adaptive];

    /// What flags and tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Worth => "worth",
            Self::Adaptive => "adaptive",
        }
    }

    /// One for a cache of `num_blocks` blocks.
    pub fn build(self, num_blocks: u32) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::<LeafLru>::default(),
            Self::Worth => Box::new(WorthPolicy::new(num_blocks)),
            Self::Adaptive => Box::new(AdaptivePolicy::new(num_blocks)),
        }
    }
}
