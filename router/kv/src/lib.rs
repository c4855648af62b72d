//! The KV index of Trunkline: which prefix is computed in which block, who holds it, what goes when room is needed.
//!
//! Pure: no clock, no I/O, no locks, no randomness, no order that depends on a hash. The same calls give the same
//! answers, block ids included.
//!
//! [`KvCache`] is what a scheduler uses; it keeps the [`BlockPool`], the radix tree and an [`EvictionPolicy`] in step.
//! A sequence's blocks are a [`BlockTable`], each a [`BlockHold`] that releases by being dropped.
//!
//! Below the device lies the store: a [`StoreIndex`] finds a block there by its [`BlockKey`], which says all that comes
//! before it, so that one prompt is followed through both and the tokens of what is stored need no memory.
//!
//! Where models have layers with a window, blocks are in two parts: see [`windows`].
//!
//! Tenants have guaranteed shares of the device: see [`quota`].

// The hidden modules are public for `tests/kv` only, so that the library is not compiled again for tests of its own.
pub mod adaptive;
pub mod block;
pub mod cache;
pub mod events;
pub mod evict;
#[doc(hidden)]
pub mod ghost;
pub mod history;
pub mod hit;
pub mod inspect;
pub mod kind;
#[doc(hidden)]
pub mod low;
#[doc(hidden)]
pub mod path_table;
pub mod pins;
pub mod pool;
pub mod quota;
pub mod radix;
#[doc(hidden)]
pub mod reuse;
pub mod reuse_policy;
pub mod salt;
#[doc(hidden)]
pub mod shelves;
pub mod store;
mod store_groups;
mod store_offers;
mod store_pins;
pub mod table;
mod tiers;
pub mod windows;

pub use adaptive::AdaptivePolicy;
pub use block::{BlockHold, BlockState};
pub use cache::KvCache;
pub use events::{KvEvent, MAX_LOGGED_EVENTS, Owner, StoredEvent, Tier};
pub use evict::{EvictionPolicy, GhostTrail, LeafLru, Trail};
pub use ghost::GhostStep;
pub use history::PathHash;
pub use hit::PrefixHit;
pub use inspect::{NodeView, TreePage};
pub use kind::PolicyKind;
pub use pins::{PinCounts, PinOutcome};
pub use pool::{BlockCounts, BlockPool, Released};
pub use quota::{TenantShare, TenantUsage};
pub use radix::{MAX_GROUPS, NodeId};
pub use reuse_policy::WorthPolicy;
pub use salt::{AdapterHash, Salt};
pub use store::{Offer, StoreCounts, StoreIndex, StoredBlock, StoredHit};
pub use store_pins::{StorePins, StoreUsage};
pub use table::{BlockTable, Worth};
pub use tiers::RestoredBlock;
pub use windows::{WindowCounts, WindowLimits};
