//! The index of the device: a radix tree from token prefixes to blocks.

mod node;
mod tree;

pub use node::{MAX_GROUPS, NodeId};
pub(crate) use tree::{Cursor, Inserted, PrefixMatch, RadixTree};
