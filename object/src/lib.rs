//! KV blocks in an object store (S3, GCS, Azure, a folder) that replicas share, so that one replica finds the blocks
//! that another has computed.
//!
//! ```text
//! format    the layout of an object
//! location  the URL of a store
//! remote    gets and puts blocks and verifies them
//! objects   the interface of a store
//! folder    a folder as a store
//! breaker   stops asking a store that fails
//! rates     measured latency and hit ratio, and whether asking is predicted to save time
//! memory    a bounded set of keys that are absent or damaged
//! ```
//!
//! An object holds one block. Its name is the block's key below the numeric fingerprint of the model and kernels that
//! computed it. Equal names mean equal contents, so replicas need no coordination. See
//! docs/decisions/0016-object-tier.md.
//!
//! The crate may use the contract and the store's type of blocks, but nothing of the router. Begin with [`remote`].

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
