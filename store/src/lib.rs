//! KV blocks on disk, which survive a restart or a crash of the shard that wrote them.
//!
//! ```text
//! layout     the layout of both files: header, records, offsets of blocks
//! disk       the file operations that a store needs; tests substitute failing ones
//! folder     the folder of one store, its lock and its two files
//! neighbours the other stores in the same folder, which share a limit
//! records    reads the records of a range of slots, or of a store that nobody has open
//! store      opens a store; writes, reads and erases slots
//! transfer   the requests to the transfer threads and their outcomes
//! transfers  threads that write and read blocks beside the steps
//! archive    the blocks of one path in one file
//! trouble    recent failures, as one log line a minute
//! ```
//!
//! The shard writes and reads. The router decides which block goes into which slot and keeps the index, which it builds
//! from [`Store::contents`] as the shard reports them. There is no index on disk: each slot has a record that says what
//! the slot holds and is written after the block itself. The router may attach to the store to write and read the slots
//! that it reserves for an object store. See docs/decisions/0014-store-on-disk.md.
//!
//! The crate may use the contract and nothing of router or kernels. Begin with `store` and `layout`.

pub mod archive;
pub mod disk;
pub mod error;
mod folder;
pub mod layout;
mod neighbours;
mod records;
pub mod store;
pub mod transfer;
pub mod transfers;
mod trouble;

pub use archive::{ArchiveError, Imported, export, import};
pub use trunkline_contract::BlockKey;

pub use error::{OpenError, ReadError, SlotPart, WriteError};
pub use folder::StoreLock;
pub use layout::{Geometry, StoredBlock};
pub use neighbours::{RESTART_TIME, Removed};
pub use records::{Records, records};
pub use store::{Found, NewBlock, Store};
pub use transfer::{Outcomes, Piece, RestoreBlock, RestoreOutcome, StoreBlock, StoreOutcome, TransferError};
pub use transfers::Transfers;
pub use trouble::{Counts, Troubles};
