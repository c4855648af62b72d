//! What a store asks of its files.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A file of a store. Tests put one in its place that fails, tears and flips.
pub trait DiskFile: Send + Sync + fmt::Debug {
    /// Its bytes.
    fn num_bytes(&self) -> io::Result<u64>;
    /// Cuts it off, or lengthens it by zeros that take no space.
    fn set_num_bytes(&self, num_bytes: u64) -> io::Result<()>;
    /// Reads up to `bytes.len()` bytes from `offset`; 0 at the end of the file.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes up to `bytes.len()` bytes at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Returns when everything that was written would survive a loss of power.
    fn sync(&self) -> io::Result<()>;
    /// Lets the system begin to write these bytes back, so that they do not pile up. A hint.
    fn begin_write_back(&self, _offset: u64, _num_bytes: u64) {}
    /// Lets the system begin to read these bytes. A hint.
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
        // SAFETY: takes a descriptor that `self` holds open, and numbers. A hint: its refusal changes nothing.
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

/// Reads until `bytes` are full or the file ends; returns how many were read.
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
