//! KV blocks in an object store (S3, GCS, Azure, a folder) that replicas share: what one has computed the others find.
//!
//! ```text
//! format    what the bytes of an object mean
//! location  the URL of a store, as a person writes it
//! remote    gets and puts blocks, verified
//! objects   what a store has to do
//! folder    a folder as a store
//! breaker   leaves a store alone that fails
//! rates     what it was measured to do, and whether asking it is worth its time
//! memory    bounded memory of keys: what is not there, what is broken
//! ```
//!
//! An object is one block, named by its key below the numeric fingerprint of what made it: equal names mean equal
//! contents, so that nobody coordinates anything. See docs/decisions/0016-object-tier.md.

pub mod breaker;
pub mod folder;
pub mod format;
pub mod location;
pub mod memory;
pub mod objects;
pub mod rates;
pub mod remote;

pub use breaker::Breaker;
pub use format::{Block, BlockShape, FormatError};
pub use location::{Location, LocationError};
pub use memory::KeyMemory;
pub use objects::{Objects, Refusal};
pub use rates::Rates;
pub use remote::{Remote, RemoteError};
