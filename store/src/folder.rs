//! The folder of one store.
//!
//! ```text
//! lock       locked by the shard that writes, for as long as it runs
//! records    the header and one record per slot
//! blocks     the blocks
//! ```

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::SystemTime;

use crate::error::OpenError;

pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const RECORDS_FILE: &str = "records";
pub(crate) const BLOCKS_FILE: &str = "blocks";

/// The files contain conversation content, so only their owner may read them.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The open files of a folder that no other process writes to.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) lock: StoreLock,
    pub(crate) records: File,
    pub(crate) blocks: File,
}

/// The lock of a store. No other process can open the store until it is dropped.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    /// Unlocks explicitly, because a process that is forked at this moment inherits the open file, and the lock would
    /// last until that process starts its program.
    fn drop(&mut self) {
        // If this fails, closing the file unlocks it as soon as no other process has it.
        let _ = self.file.unlock();
    }
}

impl StoreLock {
    /// Notes the time as that of the store's last use, by which other stores choose what to remove.
    pub(crate) fn touch(&self) {
        // If it cannot be set, the time of the last write counts.
        let _ = self.file.set_modified(SystemTime::now());
    }

    /// Takes the lock, for which it creates the folder if that does not exist. The store is not changed.
    pub fn take(folder: &Path) -> Result<Self, OpenError> {
        make_folder(folder)?;
        let file = open_file(folder, LOCK_FILE)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { folder: folder.to_owned() }),
            Err(TryLockError::Error(source)) => {
                Err(OpenError::System { what: "lock", path: folder.join(LOCK_FILE), source })
            }
        }
    }
}

/// Takes the lock and creates the folder and the files if they do not exist.
pub(crate) fn open(folder: &Path) -> Result<Files, OpenError> {
    let lock = StoreLock::take(folder)?;
    lock.touch();
    Ok(Files { lock, records: open_file(folder, RECORDS_FILE)?, blocks: open_file(folder, BLOCKS_FILE)? })
}

fn make_folder(folder: &Path) -> Result<(), OpenError> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(|source| OpenError::System {
        what: "make the folder",
        path: folder.to_owned(),
        source,
    })
}

fn open_file(folder: &Path, name: &str) -> Result<File, OpenError> {
    let path = folder.join(name);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(FILE_MODE);
    let opened = options.open(&path).and_then(|file| {
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    });
    opened.map_err(|source| OpenError::System { what: "open", path, source })
}

/// Opens the files of records and blocks of a folder that another process owns, for writing too if `is_writable`.
pub(crate) fn open_there(folder: &Path, is_writable: bool) -> Result<(File, File), OpenError> {
    let open = |name| {
        let path = folder.join(name);
        let opened = OpenOptions::new().read(true).write(is_writable).open(&path);
        opened.map_err(|source| OpenError::System { what: "open", path, source })
    };
    Ok((open(RECORDS_FILE)?, open(BLOCKS_FILE)?))
}
