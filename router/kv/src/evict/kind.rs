use super::lru::LeafLru;
use super::policy::EvictionPolicy;
use super::worth::WorthPolicy;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Evicts the least recently used leaf: [`LeafLru`].
    Lru,
    /// Evicts the leaf that is least worth keeping: [`WorthPolicy`].
    #[default]
    Worth,
}

impl PolicyKind {
    /// All policies, in the order of benchmark tables.
    pub const ALL: [Self; 2] = [Self::Lru, Self::Worth];

    /// Returns the name that flags and tables use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Worth => "worth",
        }
    }

    pub fn build(self, num_blocks: u32) -> Box<dyn EvictionPolicy> {
        match self {
            Self::Lru => Box::<LeafLru>::default(),
            Self::Worth => Box::new(WorthPolicy::new(num_blocks)),
        }
    }
}
