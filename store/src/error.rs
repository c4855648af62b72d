//! What can go wrong with a store.

use std::io;
use std::path::PathBuf;

use trunkline_kv::BlockKey;

/// Why a store cannot be opened. What is *in* its files is never a reason: then it starts anew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process writes to it.
    #[error("the store in `{folder}` is used by another process; hint: give each server a folder of its own")]
    InUse { folder: PathBuf },
    /// The system refuses: no permission, a read-only file system, a full disk.
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
    /// The geometry is outside of what the format holds.
    #[error("`{field}` of the store is {value}, expected {expected}")]
    Geometry {
        /// Name of the parameter.
        field: &'static str,
        value: u64,
        expected: String,
    },
    /// There is no store there, or one that this version does not read: only for readers that do not own it.
    #[error("`{path}` {what}")]
    Unreadable {
        /// The file of records.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Why a block was not written. The slot then holds nothing, as far as the disk obeyed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    #[error("cannot write slot {slot}: {source}")]
    Disk { slot: u32, source: io::Error },
    /// It refused a moment ago and is not asked again yet.
    #[error("slot {slot} is not written: the disk has just refused another one")]
    Paused { slot: u32 },
}

/// Why a block was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("cannot read slot {slot}: {source}")]
    Disk { slot: u32, source: io::Error },
    /// There is no block.
    #[error("slot {slot} is empty")]
    Empty { slot: u32 },
    /// There is another one.
    #[error("slot {slot} holds block {found}, expected {expected}")]
    OtherBlock {
        slot: u32,
        found: BlockKey,
        /// The one asked for.
        expected: BlockKey,
    },
    /// Its bytes are not those that were written. The slot is empty now.
    #[error("slot {slot} is damaged: its {what} do not match their checksum")]
    Damaged { slot: u32, what: &'static str },
}
