//! Reads and writes pieces of a file past the page cache, which would evict what is needed next.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Offsets, lengths and addresses of direct reads are multiples of this.
pub(crate) const BLOCK_BYTES: usize = 4096;

#[derive(Debug)]
pub(crate) struct DirectFile {
    file: File,
    /// The name that the file has, or will have once it is complete.
    pub(crate) path: PathBuf,
    /// False on file systems that read only through the page cache. The pages are dropped after each read.
    is_direct: bool,
}

impl DirectFile {
    /// Opens the file at `at`, whose final name is `path`.
    pub(crate) fn open(at: &Path, path: &Path) -> io::Result<Self> {
        let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(at);
        let (file, is_direct) = match open(DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0)?, false),
            opened => (opened?, true),
        };
        Ok(Self { file, path: path.to_owned(), is_direct })
    }

    /// Creates a file of `num_bytes` in `folder`. It has no name, and its room on the disk is reserved.
    #[cfg(target_os = "linux")]
    pub(crate) fn temporary(folder: &Path, num_bytes: u64) -> io::Result<Self> {
        use std::os::fd::AsRawFd;

        let open = |flags| {
            OpenOptions::new().read(true).write(true).custom_flags(flags | libc::O_TMPFILE).open(folder)
        };
        let (file, is_direct) = match open(DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0)?, false),
            opened => (opened?, true),
        };
        let len = libc::off_t::try_from(num_bytes).map_err(io::Error::other)?;
        // SAFETY: the call takes a descriptor that `file` holds open, and numbers.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => Ok(Self { file, path: folder.to_owned(), is_direct }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn temporary(_folder: &Path, _num_bytes: u64) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Writes whole blocks at `offset`.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        if !self.is_direct {
            self.file.sync_data()?;
            drop_cached(&self.file, offset, bytes.len());
        }
        Ok(())
    }

    /// Reads the file from `offset` on into `into`, of which the first `wanted` bytes must be in the file.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64, wanted: usize) -> io::Result<()> {
        let mut num_read = 0;
        while num_read < wanted {
            match self.file.read_at(&mut into[num_read..], offset + num_read as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => num_read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !self.is_direct {
            drop_cached(&self.file, offset, into.len());
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
const DIRECT: i32 = libc::O_DIRECT;
#[cfg(not(target_os = "linux"))]
const DIRECT: i32 = 0;

/// Drops pages of a file that are in the page cache and not dirty.
#[cfg(target_os = "linux")]
pub(crate) fn drop_cached(file: &File, offset: u64, len: usize) {
    use std::os::fd::AsRawFd;

    let (offset, len) = (offset as libc::off_t, len as libc::off_t);
    // SAFETY: the call takes a descriptor that `file` holds open, and numbers. Refusal is harmless.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn drop_cached(_file: &File, _offset: u64, _len: usize) {}
