//! The cache of packed weights: files that the next start maps instead of packing the weights again.
//!
//! A file holds the image of all weights of one program ([`crate::program`]). Its name is a key that the caller derives
//! from the source of the weights, the code and the settings. A file that does not match the program exactly, or whose
//! bytes have changed since it was written, is a miss and never an error.
//!
//! ```text
//! file     the format of a file and its checks
//! folder   concurrent writers, leftover files and the size limit
//! stream   files whose weights exceed their memory
//! ```
//!
//! # Checks
//! The header and all bytes are checked when a file is opened, while the weights can still be packed from their source.
//! The first token reads all weights anyway, and with all threads the check costs about as much as reading them once. A
//! file with its final name is never modified, only replaced or removed, so the checked bytes do not change unless
//! another program writes to the file or the disk fails. Files that are streamed are checked while they are read
//! (`crate::weight_stream`).

mod file;
pub mod folder;
mod stream;

use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::pack::{LAYOUT_VERSION, Region};
use crate::program::{ImageTable, Packing, ProgramError, WeightImage};
use crate::threads::ThreadPool;
use file::Header;
use folder::PartFile;

pub const KEY_BYTES: usize = 32;
/// The largest size of the caller's note in bytes.
pub const MAX_NOTE_BYTES: usize = 64;
/// Number of hexadecimal digits of the key in a file name.
const NAME_DIGITS: usize = 32;

/// The location of the packed weights of one key.
#[derive(Clone, Debug)]
pub struct WeightCache {
    /// The folder of the cache. It is created when the first file is written.
    pub folder: PathBuf,
    /// Identifies everything that the packed bytes depend on, except shapes, formats and [`LAYOUT_VERSION`], which are
    /// stored in the file.
    pub key: [u8; KEY_BYTES],
    /// The size limit of all cache files in the folder, in bytes.
    pub max_bytes: u64,
    /// The most bytes of weights in memory. The rest is streamed from the file; `None` maps the whole file.
    pub memory: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Miss {
    #[error("there is no file yet")]
    Absent,
    #[error("`{path}` cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file is damaged or does not match the program. It was removed if possible.
    #[error("`{path}` {what}")]
    Unusable { path: PathBuf, what: String },
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// The file does not fit within the size limit or on the disk.
    #[error("the file takes {bytes} bytes, but `{folder}` may hold {limit}; hint: free space on its disk")]
    TooLarge {
        folder: PathBuf,
        bytes: u64,
        /// The smaller of `max_bytes` and half of the disk's free space, counting cache files as free.
        limit: u64,
    },
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The file was written, with this many bytes.
    Written(u64),
    /// Another process has already stored the same weights.
    AlreadyThere,
}

/// The result of looking for packed weights at a start.
#[derive(Debug)]
pub enum CacheState {
    /// The weights are mapped from the cache. The string is the note of the process that wrote them.
    Mapped(String),
    /// The weights were packed and can be stored.
    Missed(Miss, Box<CacheWriter>),
}

impl WeightCache {
    /// The path of the file for this key and [`LAYOUT_VERSION`].
    pub fn path(&self) -> PathBuf {
        let digits: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{}-{LAYOUT_VERSION}.{}", &digits[..NAME_DIGITS], folder::EXTENSION))
    }

    /// Maps and checks the weights of `table`; returns them with the note. An unusable file is removed, so that later
    /// starts do not read it again.
    pub(crate) fn open(&self, table: &ImageTable, pool: &mut ThreadPool) -> Result<(Region, String), Miss> {
        self.look_up(file::open(&self.path(), &self.key, table, pool))
    }

    /// Returns what was opened, or why it is a miss. Removes an unusable file.
    fn look_up<T>(&self, opened: Result<T, file::OpenError>) -> Result<T, Miss> {
        let path = self.path();
        match opened {
            Ok(opened) => Ok(opened),
            Err(file::OpenError::Io(source)) if source.kind() == io::ErrorKind::NotFound => Err(Miss::Absent),
            Err(file::OpenError::Io(source)) => Err(Miss::Unreadable { path, source }),
            Err(file::OpenError::Bad { what, identity }) => {
                folder::remove_if_same(&path, identity);
                Err(Miss::Unusable { path, what })
            }
        }
    }

    /// Finds the packed weights or packs them.
    pub(crate) fn image(
        &self,
        packing: &mut Packing<'_>,
        pool: &mut ThreadPool,
    ) -> Result<(WeightImage, CacheState), ProgramError> {
        if let Some(schedule) = self.schedule(packing)? {
            return self.streamed_image(packing, pool, schedule);
        }
        match self.open(&packing.table, pool) {
            Ok((region, note)) => {
                let (table, region) = (Arc::clone(&packing.table), Arc::new(region));
                Ok((WeightImage { table, region, gate: None }, CacheState::Mapped(note)))
            }
            Err(miss) => {
                let image = packing.pack(pool)?;
                let writer = CacheWriter { cache: self.clone(), packed: Packed::Image(image.clone()) };
                Ok((image, CacheState::Missed(miss, Box::new(writer))))
            }
        }
    }
}

#[derive(Debug)]
pub struct CacheWriter {
    cache: WeightCache,
    packed: Packed,
}

/// Packed weights that the cache does not have yet.
#[derive(Debug)]
enum Packed {
    Image(WeightImage),
    /// They are in a file that has neither header nor name.
    Part {
        table: Arc<ImageTable>,
        checksums: Vec<u64>,
        file: Mutex<PartFile>,
    },
}

impl CacheWriter {
    /// Writes the weights to a temporary file, syncs it and renames it, so that readers find either the whole file or
    /// none. If several processes store the same weights at once, the first one wins.
    ///
    /// [`CacheState::Mapped`] returns `note` to later starts. The work runs on a separate thread with idle priority
    /// while the calling thread waits.
    ///
    /// # Panics
    /// Panics if `note` is longer than [`MAX_NOTE_BYTES`].
    pub fn keep(&self, note: &str) -> Result<Kept, KeepError> {
        assert!(note.len() <= MAX_NOTE_BYTES, "a note of {} bytes", note.len());
        // Only the header is left to write.
        if matches!(self.packed, Packed::Part { .. }) {
            return self.keep_now(note);
        }
        std::thread::scope(|scope| {
            let kept = scope.spawn(|| {
                yield_to_others();
                self.keep_now(note)
            });
            kept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Like [`CacheWriter::keep`], on the calling thread and with its priority.
    pub fn keep_now(&self, note: &str) -> Result<Kept, KeepError> {
        let (path, key) = (self.cache.path(), &self.cache.key);
        let (Packed::Image(WeightImage { table, .. }) | Packed::Part { table, .. }) = &self.packed;
        if file::is_of(&path, key, table) {
            return Ok(Kept::AlreadyThere);
        }
        match &self.packed {
            Packed::Image(image) => {
                let header = Header::of(image, key, note);
                folder::put(&self.cache.folder, &path, self.cache.max_bytes, header.file_bytes(), |out| {
                    header.write(image.region.as_slice(), out)
                })
            }
            Packed::Part { checksums, file, .. } => {
                let header = Header::with_checksums(table, key, note, checksums);
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                file.write(|out| out.write_all_at(header.bytes(), 0))?;
                file.finish()?;
                Ok(Kept::Written(header.file_bytes()))
            }
        }
    }
}

/// Gives the calling thread idle priority, so that writing the file does not slow down the first requests.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    // SAFETY: the type is plain old data that is valid when zero.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: affects only the calling thread (0). Refusal is harmless.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}
