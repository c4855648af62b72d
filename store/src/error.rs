//! The errors of a store.

use std::fmt;
use std::io;
use std::path::PathBuf;

use trunkline_contract::BlockKey;

/// An error of opening a store. Damaged content is never an error; the store then starts empty.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process holds the lock.
    #[error("the store in `{folder}` is used by another process; hint: give each server a folder of its own")]
    InUse { folder: PathBuf },
    /// The system refused, for example for lack of permission or because the disk is full.
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
    /// Other users can change the folder or a file of the store, or make it stand for another file.
    #[error("`{path}` {problem}")]
    Exposed { path: PathBuf, problem: String },
    /// A number of the geometry is outside the range of the format.
    #[error("`{field}` of the store is {value}, expected {expected}")]
    Geometry { field: &'static str, value: u64, expected: String },
    /// A process that does not own the store found none, or one of another format version.
    #[error("`{path}` {what}")]
    Unreadable { path: PathBuf, what: String },
}

/// An error of writing a block. The slot is then empty, unless the disk also failed to erase it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    #[error("cannot write slot {slot}: {source}")]
    Disk { slot: u32, source: io::Error },
    /// The disk refused a moment ago and is not asked again yet.
    #[error("slot {slot} is not written: the disk has just refused another write")]
    Paused { slot: u32 },
}

/// An error of reading a block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("cannot read slot {slot}: {source}")]
    Disk { slot: u32, source: io::Error },
    #[error("slot {slot} is empty")]
    Empty { slot: u32 },
    #[error("slot {slot} holds block {found}, expected {expected}")]
    OtherBlock { slot: u32, found: BlockKey, expected: BlockKey },
    /// A checksum does not match.
    #[error("slot {slot} is damaged: its {part} do not match their checksum")]
    Damaged { slot: u32, part: SlotPart },
}

/// The two parts of a slot, which lie in different files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPart {
    Record,
    Block,
}

impl fmt::Display for SlotPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "key and tokens",
            Self::Block => "bytes",
        })
    }
}
