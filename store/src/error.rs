//! What can go wrong with a store.

use std::io;
use std::path::PathBuf;

use trunkline_contract::BlockKey;

/// Why a store cannot be opened. What is *in* its files is never a reason: then it starts anew.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process writes to it.
    #[error("the store in `{folder}` is used by another process; hint: give each server a folder of its own")]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refuses: no permission, a read-only file system, a full disk.
    #[error("cannot {what} `{path}`: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The geometry is outside of what the format holds.
    #[error("`{field}` of the store is {value}, expected {expected}")]
    Geometry {
        /// Name of the parameter.
        field: &'static str,
        /// Value received.
        value: u64,
        /// What is allowed.
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
    /// The disk refused.
    #[error("cannot write slot {slot}: {source}")]
    Disk {
        /// Which slot.
        slot: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// It refused a moment ago and is not asked again yet.
    #[error("slot {slot} is not written: the disk has just refused another one")]
    Paused {
        /// Which slot.
        slot: u32,
    },
}

/// Why a block was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The disk refused.
    #[error("cannot read slot {slot}: {source}")]
    Disk {
        /// Which slot.
        slot: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no block.
    #[error("slot {slot} is empty")]
    Empty {
        /// Which slot.
        slot: u32,
    },
    /// There is another one.
    #[error("slot {slot} holds block {found}, expected {expected}")]
    OtherBlock {
        /// Which slot.
        slot: u32,
        /// Its block.
        found: BlockKey,
        /// The one asked for.
        expected: BlockKey,
    },
    /// Its bytes are not those that were written. The slot is empty now.
    #[error("slot {slot} is damaged: its {what} do not match their checksum")]
    Damaged {
        /// Which slot.
        slot: u32,
        /// Of what.
        what: &'static str,
    },
}
