//! Policies that choose which leaf of the index is evicted first.

#[doc(hidden)]
pub mod history;
mod kind;
mod low_priority;
mod lru;
mod policy;
#[doc(hidden)]
pub mod reuse_times;
#[doc(hidden)]
pub mod worth;

pub use history::PathHash;
pub(crate) use history::path_hash;
pub use kind::PolicyKind;
pub use low_priority::CachePriority;
pub(crate) use low_priority::LowPriorityBlocks;
#[doc(hidden)]
pub use low_priority::LowPriorityLeaves;
pub use lru::LeafLru;
pub use policy::{EvictionPolicy, Trail};
pub use worth::WorthPolicy;
