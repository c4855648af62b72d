//! KV blocks on disk: what survives a restart or a crash of the shard that wrote them.
//!
//! ```text
//! layout     what the bytes of both files mean: header, records, places of blocks
//! disk       the few operations on files that are needed; tests put failing ones in their place
//! folder     the folder of one store, its lock, its two files
//! records    which block lies in which slot, read at once: for whoever keeps the index
//! store      opens, writes, reads and erases slots
//! transfer   what is asked of those threads, and what became of it
//! transfers  threads that do so beside the steps
//! archive    blocks of one path in a file
//! trouble    what went wrong lately, in one line a minute
//! ```
//!
//! The shard writes and reads; the router decides which block goes into which slot and keeps the index, which it makes
//! from [`records()`] when it starts. There is no index on disk: each slot's record says what the slot holds, and is
//! written after the block itself. The router may attach to the store to write and read slots that it gave nobody else:
//! what comes from and goes to an object store. See docs/decisions/0014-store-on-disk.md.

pub mod archive;
pub mod disk;
pub mod error;
mod folder;
pub mod layout;
mod records;
pub mod store;
pub mod transfer;
pub mod transfers;
mod trouble;

pub use archive::{ArchiveError, Imported, export, import};
pub use trunkline_kv::BlockKey;

pub use error::{OpenError, ReadError, WriteError};
pub use layout::{Geometry, StoredBlock};
pub use records::{Records, records};
pub use store::{Found, NewBlock, Store};
pub use transfer::{Outcomes, Piece, RestoreBlock, RestoreOutcome, StoreBlock, StoreOutcome, TransferError};
pub use transfers::Transfers;
pub use trouble::{Counts, Troubles};
