//! The folder of one store.
//!
//! ```text
//! lock       locked by the shard that writes, for as long as it runs
//! records    the header and one record per slot
//! blocks     the blocks
//! ```
//!
//! The folder may lie in one that others can write to, such as a volume or `/tmp`. So it must belong to this user, and
//! nobody else may write to it. It is opened once, its files are opened relative to it, and no symbolic link is
//! followed, so it makes no difference if the folder is renamed or replaced meanwhile.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::OpenError;

pub(crate) const LOCK_FILE: &str = "lock";
pub(crate) const RECORDS_FILE: &str = "records";
pub(crate) const BLOCKS_FILE: &str = "blocks";

/// The files contain conversation content, so only their owner may read them.
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The bits of a mode that let other users write.
const OTHERS_WRITE: u32 = 0o022;
/// A FIFO must not make the opener wait.
const SAFE_FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

/// The open files of a folder that no other process writes to.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) lock: StoreLock,
    pub(crate) records: File,
    pub(crate) blocks: File,
}

/// An open folder that only this user can change.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    folder: File,
}

impl Folder {
    fn open(path: &Path) -> Result<Self, OpenError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(SAFE_FLAGS | libc::O_DIRECTORY).open(path);
        let folder = opened.map_err(|source| failed_to_open(path, source))?;
        let metadata = folder.metadata().map_err(|source| failed_to_open(path, source))?;
        check_access(path, &metadata)?;
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Opens a file for reading and writing, and makes it if it does not exist and `flags` say so.
    fn open_file(&self, name: &str, flags: i32) -> Result<File, OpenError> {
        let path = self.path.join(name);
        let fail = |source| failed_to_open(&path, source);
        let c_name = CString::new(name).map_err(|error| fail(error.into()))?;
        // SAFETY: the descriptor is that of the open folder, and the name ends with a NUL.
        let descriptor = unsafe {
            libc::openat(
                self.folder.as_raw_fd(),
                c_name.as_ptr(),
                SAFE_FLAGS | libc::O_RDWR | flags,
                FILE_MODE as libc::c_uint,
            )
        };
        if descriptor < 0 {
            return Err(fail(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just opened and nothing else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let metadata = check_regular(&path, &file)?;
        check_access(&path, &metadata)?;
        if metadata.nlink() > 1 {
            let problem = format!("has {} names, so it may be another file, too", metadata.nlink());
            return Err(OpenError::Exposed { path, problem });
        }
        Ok(file)
    }
}

/// The lock of a store. No other process can open the store until it is dropped.
#[derive(Debug)]
pub struct StoreLock {
    folder: Folder,
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
        let folder = Folder::open(folder)?;
        let file = folder.open_file(LOCK_FILE, libc::O_CREAT)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { folder, file }),
            Err(TryLockError::WouldBlock) => Err(OpenError::InUse { folder: folder.path.clone() }),
            Err(TryLockError::Error(source)) => {
                Err(OpenError::System { what: "lock", path: folder.path.join(LOCK_FILE), source })
            }
        }
    }

    /// Removes a file of the store if it exists.
    pub(crate) fn remove(&self, name: &str) -> Result<(), OpenError> {
        let fail = |source| OpenError::System { what: "remove", path: self.folder.path.join(name), source };
        let name = CString::new(name).map_err(|error| fail(error.into()))?;
        // SAFETY: the descriptor is that of the open folder, and the name ends with a NUL.
        if unsafe { libc::unlinkat(self.folder.folder.as_raw_fd(), name.as_ptr(), 0) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        if source.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(fail(source)) }
    }
}

/// Takes the lock and creates the folder and the files if they do not exist.
pub(crate) fn open(folder: &Path) -> Result<Files, OpenError> {
    let lock = StoreLock::take(folder)?;
    lock.touch();
    let records = lock.folder.open_file(RECORDS_FILE, libc::O_CREAT)?;
    let blocks = lock.folder.open_file(BLOCKS_FILE, libc::O_CREAT)?;
    Ok(Files { lock, records, blocks })
}

/// Opens the files of records and blocks of a folder that another process owns, to write to them, too.
pub(crate) fn open_there(folder: &Path) -> Result<(File, File), OpenError> {
    let folder = Folder::open(folder)?;
    Ok((folder.open_file(RECORDS_FILE, 0)?, folder.open_file(BLOCKS_FILE, 0)?))
}

/// Opens a file of a folder, which may be another user's, to read it.
pub(crate) fn open_to_read(folder: &Path, name: &str) -> Result<File, OpenError> {
    let path = folder.join(name);
    let opened = OpenOptions::new().read(true).custom_flags(SAFE_FLAGS).open(&path);
    let file = opened.map_err(|source| failed_to_open(&path, source))?;
    check_regular(&path, &file)?;
    Ok(file)
}

fn make_folder(folder: &Path) -> Result<(), OpenError> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(|source| OpenError::System {
        what: "make the folder",
        path: folder.to_owned(),
        source,
    })
}

fn failed_to_open(path: &Path, source: io::Error) -> OpenError {
    // What the kernel answers for a link depends on whether a folder was asked for.
    let is_link = || path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
    if matches!(source.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) && is_link() {
        let problem = "is a symbolic link, which is not followed".to_owned();
        return OpenError::Exposed { path: path.to_owned(), problem };
    }
    OpenError::System { what: "open", path: path.to_owned(), source }
}

fn check_regular(path: &Path, file: &File) -> Result<Metadata, OpenError> {
    let metadata = file.metadata().map_err(|source| failed_to_open(path, source))?;
    if metadata.is_file() {
        return Ok(metadata);
    }
    Err(failed_to_open(path, io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")))
}

/// Fails unless this user is the only one that can change the file or folder.
fn check_access(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    // SAFETY: the call has no arguments and cannot fail.
    let (owner, user) = (metadata.uid(), unsafe { libc::geteuid() });
    let problem = if owner != user {
        format!("belongs to user {owner}, but this process runs as user {user}")
    } else if metadata.mode() & OTHERS_WRITE != 0 {
        let mode = metadata.mode() & 0o7777;
        format!("can be changed by other users, because its mode is {mode:o}; only its owner may write to it")
    } else {
        return Ok(());
    };
    Err(OpenError::Exposed { path: path.to_owned(), problem })
}
