//! The file operations that a store needs.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

/// A file of a store. Tests substitute one that fails, tears writes and flips bits.
pub trait DiskFile: Send + Sync + fmt::Debug {
    fn num_bytes(&self) -> io::Result<u64>;
    /// Truncates the file, or extends it by zeros that take no space.
    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()>;
    /// Reads up to `bytes.len()` bytes from `offset` and returns their number, which is 0 at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes up to `bytes.len()` bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Returns when everything that was written would survive a loss of power.
    fn sync(&self) -> io::Result<()>;
    /// Asks the system to start writing these bytes back, so that dirty pages do not pile up. This is only a hint.
    fn begin_write_back(&self, _offset: u64, _num_bytes: u64) {}
    /// Asks the system to start reading these bytes ahead. This is only a hint.
    fn will_need(&self, _offset: u64, _num_bytes: u64) {}
}

impl DiskFile for File {
    fn num_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()> {
        self.set_len(num_bytes)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn begin_write_back(&self, offset: u64, num_bytes: u64) {
        use std::os::fd::AsRawFd;

        let (offset, num_bytes) = (offset.cast_signed(), num_bytes.cast_signed());
        // SAFETY: takes a descriptor that `self` holds open, and numbers. The result of a hint does not matter.
        unsafe { libc::sync_file_range(self.as_raw_fd(), offset, num_bytes, libc::SYNC_FILE_RANGE_WRITE) };
    }

    #[cfg(target_os = "linux")]
    fn will_need(&self, offset: u64, num_bytes: u64) {
        use std::os::fd::AsRawFd;

        let (offset, num_bytes) = (offset.cast_signed(), num_bytes.cast_signed());
        // SAFETY: as above.
        unsafe { libc::posix_fadvise(self.as_raw_fd(), offset, num_bytes, libc::POSIX_FADV_WILLNEED) };
    }
}

/// Ends the reads and writes of files that another process takes over.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: RwLock<bool>,
}

impl Gate {
    /// Returns once no read or write runs. Those that follow fail.
    pub(crate) fn close(&self) {
        *self.is_closed.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Lets reads and writes in again.
    pub(crate) fn open(&self) {
        *self.is_closed.write().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Fails if the gate is closed. It stays open while the result is held.
    fn enter(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        let is_closed = self.is_closed.read().unwrap_or_else(PoisonError::into_inner);
        if *is_closed {
            Err(io::Error::other("another process has taken the store over"))
        } else {
            Ok(is_closed)
        }
    }
}

/// A file behind a gate.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) file: File,
    pub(crate) gate: Arc<Gate>,
}

impl DiskFile for Gated {
    fn num_bytes(&self) -> io::Result<u64> {
        self.file.num_bytes()
    }

    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()> {
        let _open = self.gate.enter()?;
        self.file.set_num_bytes(num_bytes)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let _open = self.gate.enter()?;
        DiskFile::read_at(&self.file, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _open = self.gate.enter()?;
        DiskFile::write_at(&self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn begin_write_back(&self, offset: u64, num_bytes: u64) {
        self.file.begin_write_back(offset, num_bytes);
    }

    fn will_need(&self, offset: u64, num_bytes: u64) {
        self.file.will_need(offset, num_bytes);
    }
}

/// Reads until `bytes` is full or the file ends, and returns the number of bytes read.
pub(crate) fn read_full(file: &dyn DiskFile, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes all of `bytes`.
pub(crate) fn write_full(file: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.write_at(&bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
