//! Policies that choose which leaf of the index is evicted first.

mod adaptive;
#[doc(hidden)]
pub mod ghost;
#[doc(hidden)]
pub mod history;
mod kind;
mod low_priority;
mod lru;
#[doc(hidden)]
pub mod path_table;
mod policy;
#[doc(hidden)]
pub mod reuse_times;
mod trail;
#[doc(hidden)]
pub mod worth;
#[doc(hidden)]
pub mod worth_buckets;

pub use adaptive::AdaptivePolicy;
pub use history::PathHash;
pub(crate) use history::path_hash;
pub use kind::PolicyKind;
pub use low_priority::CachePriority;
pub(crate) use low_priority::LowPriorityBlocks;
#[doc(hidden)]
pub use low_priority::LowPriorityLeaves;
pub use lru::LeafLru;
pub use policy::EvictionPolicy;
#[doc(hidden)]
pub use trail::GhostStep;
pub use trail::Trail;
pub use worth::WorthPolicy;
