//! The KV index of Trunkline: which prefix is computed in which block, who holds the block, and what is evicted.
//!
//! The crate is pure. It has no clock, I/O, locks or randomness, and no order that depends on a hash. The same calls
//! give the same answers, including block ids. It may use the contract.
//!
//! [`KvCache`] is the interface of the scheduler. Its parts have private state and import each other in one direction:
//!
//! ```text
//! cache ──▶ device   the pool of blocks, window parts, and what keeps pool, index and policies consistent
//!   │         ├──▶ index     a radix tree from token prefixes to blocks
//!   │         └──▶ tenants   shares and usage, and for each tenant a policy ──▶ evict
//!   └─────▶ store    the index of blocks on disk or in host memory, by key
//! ```
//!
//! The blocks of a sequence are a [`BlockTable`] of [`BlockHold`]s, which release their blocks when they are dropped.
//! The store finds a block by its [`BlockKey`](trunkline_contract::BlockKey), which identifies all tokens up to the
//! block's end. One prompt can therefore be followed through both tiers, and the tokens of stored blocks need no
//! memory.

mod cache;
mod device;
pub mod events;
pub mod evict;
mod index;
mod pin_table;
mod salt;
mod store;
mod tenants;

pub use cache::{KvCache, NodeView, PinCounts, PinOutcome, RestoredBlock, TreePage};
pub use device::{
    BlockCounts, BlockHold, BlockPool, BlockState, BlockTable, DeviceTier, PrefixHit, Released, WindowCounts,
    WindowLimits,
};
pub use events::{KvEvent, MAX_LOGGED_EVENTS, Owner, StoredEvent, Tier};
pub use evict::{CachePriority, EvictionPolicy, LeafLru, PathHash, PolicyKind, Trail, WorthPolicy};
pub use index::{MAX_GROUPS, NodeId};
pub use salt::{AdapterHash, Salt, SaltAdapter};
pub use store::{Offer, StoreCounts, StoreIndex, StorePins, StoreUsage, StoredBlock, StoredHit};
pub use tenants::{TenantShare, TenantUsage};
