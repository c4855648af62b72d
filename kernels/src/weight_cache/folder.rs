//! The folder of the cache: temporary files, other writers, and the bound on its size.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::file::Identity;
use super::{KeepError, Kept};

pub(super) const EXTENSION: &str = "weights";
/// Of files that are being written. Whoever writes one holds a lock on it, however long that takes.
const TEMPORARY_EXTENSION: &str = "weights-part";
/// Files of ours that are looked at; more are left alone.
const MAX_FILES: usize = 4096;
/// Part of the disk's free bytes, with those of our own files, that we may take.
const FREE_SPACE_DIVISOR: u64 = 2;

/// Puts a file of `file_bytes` with the final name `path` into `folder`, after making room for it.
pub fn put(
    folder: &Path,
    path: &Path,
    max_bytes: u64,
    file_bytes: u64,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<Kept, KeepError> {
    let fail = |what, path: &Path| {
        let path = path.to_owned();
        move |source| KeepError::System { what, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(fail("make the folder", folder))?;
    remove_left_over(folder);
    make_room(folder, path, max_bytes, file_bytes)?;
    let temporary = Temporary::create(folder, path).map_err(fail("make a file in", folder))?;
    let mut file = &temporary.file;
    reserve(file, file_bytes).map_err(fail("reserve the space of", &temporary.path))?;
    write(&mut file.try_clone().map_err(fail("write", &temporary.path))?)
        .map_err(fail("write", &temporary.path))?;
    io::Write::flush(&mut file).map_err(fail("write", &temporary.path))?;
    file.sync_all().map_err(fail("sync", &temporary.path))?;
    fs::rename(&temporary.path, path).map_err(fail("rename to", path))?;
    temporary.is_kept();
    // The name is durable once the folder is; where folders cannot be synced, a crash loses the file, not its content.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(Kept::Written(file_bytes))
}

/// A file that is being written; removed when dropped, unless it got its final name.
struct Temporary {
    file: File,
    path: PathBuf,
    is_kept: std::cell::Cell<bool>,
}

impl Temporary {
    fn create(folder: &Path, path: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Nanoseconds, since process ids repeat in containers that share a folder.
            let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.subsec_nanos());
            let name = format!("{stem}.{}-{number}-{nanos}.{TEMPORARY_EXTENSION}", std::process::id());
            let path = folder.join(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            match file.try_lock() {
                // Between its creation and its lock another writer may have taken the file for one left over.
                Ok(()) if is_same(&path, identity(&file)?) => {
                    return Ok(Self { file, path, is_kept: std::cell::Cell::new(false) });
                }
                Ok(()) | Err(fs::TryLockError::WouldBlock) => {}
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    fn is_kept(&self) {
        self.is_kept.set(true);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept.get() {
            // Else it is removed by the next writer, as one that nobody has locked.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Takes the space at once, so that a full disk shows before gigabytes are written. A file system that cannot do so
/// shows it later.
#[cfg(target_os = "linux")]
fn reserve(file: &File, num_bytes: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(num_bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: takes a descriptor that `file` holds open, and numbers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(error) }
}

#[cfg(not(target_os = "linux"))]
fn reserve(_file: &File, _num_bytes: u64) -> io::Result<()> {
    Ok(())
}

/// Removes temporary files whose writer is gone.
fn remove_left_over(folder: &Path) {
    for path in files(folder, TEMPORARY_EXTENSION) {
        let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
        if file.try_lock().is_ok() {
            // Somebody else may have been quicker.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes our files that were not used for the longest time until `file_bytes` more fit. Processes that have mapped a
/// removed file keep it.
fn make_room(folder: &Path, path: &Path, max_bytes: u64, file_bytes: u64) -> Result<(), KeepError> {
    let mut known: Vec<(SystemTime, u64, PathBuf)> = files(folder, EXTENSION)
        .filter(|known| known != path)
        .filter_map(|path| {
            let metadata = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        })
        .collect();
    known.sort();
    let mut taken: u64 = known.iter().map(|(_, num_bytes, _)| num_bytes).sum();
    let limit = match free_bytes(folder) {
        Some(free) => max_bytes.min(free.saturating_add(taken) / FREE_SPACE_DIVISOR),
        None => max_bytes,
    };
    if file_bytes > limit {
        return Err(KeepError::TooLarge { folder: folder.to_owned(), bytes: file_bytes, limit });
    }
    for (_, num_bytes, path) in known {
        if taken + file_bytes <= limit {
            break;
        }
        if fs::remove_file(&path).is_ok() || !path.exists() {
            taken -= num_bytes;
        }
    }
    if taken + file_bytes > limit {
        return Err(KeepError::TooLarge { folder: folder.to_owned(), bytes: taken + file_bytes, limit });
    }
    Ok(())
}

/// Our files with this extension.
fn files(folder: &Path, extension: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
    entries
        .map(|entry| entry.path())
        .filter(move |path| path.extension().is_some_and(|found| found == extension))
}

/// Bytes of the disk that an ordinary user may still take.
#[cfg(target_os = "linux")]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;

    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain old data, valid when zero.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends with a zero, and room for the answer.
    let status = unsafe { libc::statvfs(path.as_ptr(), &raw mut answer) };
    (status == 0).then(|| answer.f_bavail.saturating_mul(answer.f_frsize))
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Removes `path`, if it still is the file that was opened.
pub(super) fn remove_if_same(path: &Path, identity: Identity) {
    if is_same(path, identity) {
        // Impossible in a folder that is read-only: then it is found again, and is a miss again.
        let _ = fs::remove_file(path);
    }
}

fn is_same(path: &Path, identity: Identity) -> bool {
    fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == identity)
}

fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}
