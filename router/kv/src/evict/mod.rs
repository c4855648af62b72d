//! Policies that choose which leaf of the index is evicted first.

pub mod history;
mod kind;
mod low_priority;
mod lru;
mod policy;
pub mod reuse_times;
pub mod worth;

pub use history::PathHash;
pub(crate) use history::path_hash;
pub use kind::PolicyKind;
pub use low_priority::CachePriority;
pub(crate) use low_priority::LowPriorityBlocks;
pub use low_priority::LowPriorityLeaves;
pub use lru::LeafLru;
pub use policy::{EvictionPolicy, Trail};
pub use worth::WorthPolicy;
