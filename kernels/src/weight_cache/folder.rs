//! The cache folder: temporary files, concurrent writers and the size limit.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::{KeepError, Kept};

pub(super) const EXTENSION: &str = "weights";
/// Extension of files that are being written. The writer holds a lock on the file until it is finished.
const TEMPORARY_EXTENSION: &str = "weights-part";
/// The most directory entries that are examined.
const MAX_FILES: usize = 4096;
/// Cache files may use the disk's free space, including their own, divided by this.
const FREE_SPACE_DIVISOR: u64 = 2;

/// Device and inode, which identify a file regardless of its name.
pub(crate) type Identity = (u64, u64);

/// Writes a file of `file_bytes` bytes to `path` in `folder`, after evicting older files to make room for it.
pub fn put(
    folder: &Path,
    path: &Path,
    max_bytes: u64,
    file_bytes: u64,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<Kept, KeepError> {
    let mut part = PartFile::create(folder, path, max_bytes, file_bytes)?;
    part.write(write)?;
    part.finish()?;
    Ok(Kept::Written(file_bytes))
}

fn fail(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeepError {
    let path = path.to_owned();
    move |source| KeepError::System { what, path, source }
}

/// A file that is written before it gets its final name. Dropping it removes the file unless it was finished.
#[derive(Debug)]
pub(crate) struct PartFile {
    temporary: Temporary,
    folder: PathBuf,
    path: PathBuf,
}

impl PartFile {
    /// Creates a file of `file_bytes` bytes, after evicting older files to make room for it.
    pub(crate) fn create(
        folder: &Path,
        path: &Path,
        max_bytes: u64,
        file_bytes: u64,
    ) -> Result<Self, KeepError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(fail("create the folder", folder))?;
        remove_left_over(folder);
        make_room(folder, path, max_bytes, file_bytes)?;
        let temporary = Temporary::create(folder, path).map_err(fail("create a file in", folder))?;
        reserve(&temporary.file, file_bytes).map_err(fail("reserve space for", &temporary.path))?;
        Ok(Self { temporary, folder: folder.to_owned(), path: path.to_owned() })
    }

    /// The name that the file has until it is finished.
    pub(crate) fn temporary_path(&self) -> &Path {
        &self.temporary.path
    }

    pub(crate) fn write(&mut self, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), KeepError> {
        write(&mut self.temporary.file).map_err(fail("write", &self.temporary.path))
    }

    /// Syncs the file and gives it its final name.
    pub(crate) fn finish(&mut self) -> Result<(), KeepError> {
        let temporary = &mut self.temporary;
        temporary.file.sync_all().map_err(fail("sync", &temporary.path))?;
        fs::rename(&temporary.path, &self.path).map_err(fail("rename to", &self.path))?;
        temporary.is_kept = true;
        // The new name is durable once the folder is synced. If it cannot be, a crash may lose the file, but never
        // leaves a damaged one.
        let _ = File::open(&self.folder).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// A file that is being written. Dropping it removes the file unless it was renamed to its final name.
#[derive(Debug)]
struct Temporary {
    file: File,
    path: PathBuf,
    is_kept: bool,
}

impl Temporary {
    fn create(folder: &Path, path: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Containers that share a folder may have equal process ids, so the name also contains the time.
            let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.subsec_nanos());
            let name = format!("{stem}.{}-{number}-{nanos}.{TEMPORARY_EXTENSION}", std::process::id());
            let path = folder.join(name);
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            match file.try_lock() {
                // Before the file was locked, another writer may have removed it as a leftover.
                Ok(()) if is_same(&path, identity(&file)?) => {
                    return Ok(Self { file, path, is_kept: false });
                }
                Ok(()) | Err(fs::TryLockError::WouldBlock) => {}
                Err(fs::TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_kept {
            // If this fails, the next writer removes the file as a leftover.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Reserves disk space, so that a full disk is detected before gigabytes are written. Does nothing on file systems that
/// do not support it.
#[cfg(target_os = "linux")]
fn reserve(file: &File, num_bytes: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(num_bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: `file` holds the descriptor open; the other arguments are numbers.
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

/// Removes temporary files that no writer has locked.
fn remove_left_over(folder: &Path) {
    for path in files(folder, TEMPORARY_EXTENSION) {
        let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
        if file.try_lock().is_ok() {
            // Another process may have removed it already.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Removes the least recently used cache files until `file_bytes` more bytes fit. Processes that have mapped a removed
/// file keep their mapping.
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

fn files(folder: &Path, extension: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_FILES);
    entries
        .map(|entry| entry.path())
        .filter(move |path| path.extension().is_some_and(|found| found == extension))
}

/// Free bytes on the disk that an unprivileged user may use.
#[cfg(target_os = "linux")]
fn free_bytes(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;

    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain old data, valid when zero.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is nul-terminated, and `answer` has the type that the call writes.
    let status = unsafe { libc::statvfs(path.as_ptr(), &raw mut answer) };
    (status == 0).then(|| answer.f_bavail.saturating_mul(answer.f_frsize))
}

#[cfg(not(target_os = "linux"))]
fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Removes `path` if it is still the file that was opened.
pub(crate) fn remove_if_same(path: &Path, identity: Identity) {
    if is_same(path, identity) {
        // Fails in a read-only folder, where each start finds the file and misses again.
        let _ = fs::remove_file(path);
    }
}

fn is_same(path: &Path, identity: Identity) -> bool {
    fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == identity)
}

pub(crate) fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}
