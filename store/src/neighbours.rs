//! The stores beside a store, which share a limit of bytes with it.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::error::OpenError;
use crate::folder::{BLOCKS_FILE, LOCK_FILE, RECORDS_FILE, StoreLock, open_to_read};
use crate::layout::is_header;
use crate::records::read_header;

/// The part of the limit that stays free for the blocks that are written until the sizes are looked at again.
const FREE_PART: u64 = 64;
/// The time after its last use in which a store keeps its content, so that another server has it again after a restart.
pub const RESTART_TIME: Duration = Duration::from_secs(600);
/// The size of the units in which the system counts what a sparse file takes.
const UNIT_BYTES: u64 = 512;

/// A store that lost its content because another one needed the room, or should have.
#[derive(Debug)]
pub struct Removed {
    pub folder: PathBuf,
    /// The bytes that its blocks took.
    pub num_bytes: u64,
    /// Why it could not be removed.
    pub error: Option<OpenError>,
}

/// Keeps the blocks of all stores in one folder within a limit: the least recently used store that no process has open,
/// nor had within [`RESTART_TIME`], gives up its content when this one grows.
#[derive(Debug)]
pub(crate) struct Neighbours {
    folder: PathBuf,
    /// The name of the own store's folder.
    own: OsString,
    max_bytes: u64,
    /// The bytes that were written since the sizes were looked at.
    num_written: AtomicU64,
    removed: Mutex<Vec<Removed>>,
}

/// A store beside the own one.
struct Neighbour {
    folder: PathBuf,
    num_bytes: u64,
    used_at: SystemTime,
}

impl Neighbours {
    /// Returns `None` for a store whose folder is in no other one.
    pub(crate) fn of(folder: &Path, max_bytes: u64) -> Option<Self> {
        Some(Self {
            folder: folder.parent()?.to_owned(),
            own: folder.file_name()?.to_owned(),
            max_bytes,
            num_written: AtomicU64::new(0),
            removed: Mutex::default(),
        })
    }

    /// Notes that a block was written and makes room after every few.
    pub(crate) fn written(&self, num_bytes: u64) {
        let before = self.num_written.fetch_add(num_bytes, Ordering::Relaxed);
        if before < self.free_bytes() && before + num_bytes >= self.free_bytes() {
            self.num_written.store(0, Ordering::Relaxed);
            self.make_room();
        }
    }

    /// Removes the content of other stores until some room is free, or until all others are in use.
    pub(crate) fn make_room(&self) {
        let mut others = self.others();
        let newest = SystemTime::now().checked_sub(RESTART_TIME).unwrap_or(SystemTime::UNIX_EPOCH);
        let own = allocated_bytes(&self.folder.join(&self.own));
        let mut num_bytes = own + others.iter().map(|other| other.num_bytes).sum::<u64>();
        others.sort_by_key(|other| other.used_at);
        for Neighbour { folder, num_bytes: freed, used_at } in others {
            if num_bytes.saturating_add(self.free_bytes()) <= self.max_bytes || used_at > newest {
                return;
            }
            let error = match remove(&folder) {
                Ok(()) => None,
                Err(OpenError::InUse { .. }) => continue,
                Err(error) => Some(error),
            };
            num_bytes -= if error.is_none() { freed } else { 0 };
            let removed = Removed { folder, num_bytes: freed, error };
            self.removed.lock().unwrap_or_else(PoisonError::into_inner).push(removed);
        }
    }

    pub(crate) fn take_removed(&self) -> Vec<Removed> {
        std::mem::take(&mut *self.removed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn free_bytes(&self) -> u64 {
        (self.max_bytes / FREE_PART).max(1)
    }

    /// Returns the other stores that take room. Whatever else lies in the folder is not ours, and neither is what
    /// cannot be read.
    fn others(&self) -> Vec<Neighbour> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| {
            entry.file_name() != self.own && entry.file_type().is_ok_and(|kind| kind.is_dir())
        });
        let others = folders.filter_map(|entry| {
            let folder = entry.path();
            let records = open_to_read(&folder, RECORDS_FILE).ok()?;
            let is_store = read_header(&records).is_ok_and(|header| is_header(&header));
            let num_bytes = allocated_bytes(&folder);
            let used_at = [LOCK_FILE, RECORDS_FILE].iter().filter_map(|name| {
                fs::symlink_metadata(folder.join(name)).and_then(|metadata| metadata.modified()).ok()
            });
            let used_at = used_at.max()?;
            (is_store && num_bytes > 0).then_some(Neighbour { folder, num_bytes, used_at })
        });
        others.collect()
    }
}

/// Returns the bytes that the blocks of a store take on the disk; 0 if there is none.
fn allocated_bytes(folder: &Path) -> u64 {
    let metadata = fs::symlink_metadata(folder.join(BLOCKS_FILE));
    metadata.as_ref().map(Metadata::blocks).unwrap_or(0) * UNIT_BYTES
}

/// Removes the content of a store that no process has open. The lock stays, because another process may be about to
/// take it: with a new file, both would have one.
fn remove(folder: &Path) -> Result<(), OpenError> {
    let lock = StoreLock::take(folder)?;
    // The blocks come first: those of a store without records would not be counted if this process ended in between.
    lock.remove(BLOCKS_FILE)?;
    lock.remove(RECORDS_FILE)
}
