//! Packed weights kept in a file, so that the next start maps them instead of packing them again.
//!
//! A file holds the image of all weights of one program ([`crate::program`]) and is named after a key, by which the
//! caller says which source, code and settings it was made from. A file that is not exactly what the program asks for,
//! or whose bytes have changed since it was written, is a miss, never an error.
//!
//! ```text
//! file     what is in it, and checks of it: a list of entries with a checksum each
//! folder   who else writes, what is left over, how much there may be
//! ```
//!
//! # What is checked, and when
//! Header and all bytes are checked at each opening, before anything is computed with them: the first token needs all
//! weights anyway, and with all threads the check costs about as much as reading memory once. So damage is found while
//! there is still the source to pack again. A file under its final name is never written again (only replaced or
//! removed), so what was checked stays as it is, unless somebody else writes to the file or the disk fails later.

mod file;
#[doc(hidden)]
pub mod folder;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::pack::{LAYOUT_VERSION, Region};
use crate::program::{ImageTable, WeightImage};
use crate::threads::ThreadPool;
use file::Header;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Most bytes of the caller's note.
pub const MAX_NOTE_BYTES: usize = 64;
/// Of the key, digits in the file's name.
const NAME_DIGITS: usize = 32;

/// Where packed weights of one key are kept.
#[derive(Clone, Debug)]
pub struct WeightCache {
    /// A folder of ours; made when there is something to put into it.
    pub folder: PathBuf,
    /// Stands for everything that the packed bytes depend on, but for shapes, formats and [`LAYOUT_VERSION`]: those are
    /// in the file.
    pub key: [u8; KEY_BYTES],
    /// Most bytes of all our files in the folder.
    pub max_bytes: u64,
}

/// Why there are no packed weights to map.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Miss {
    /// Nobody has kept them yet.
    #[error("there is none yet")]
    Absent,
    /// The system does not let the file be read.
    #[error("`{path}` cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file is not whole, or not what the program asks for. It was removed, if that was possible.
    #[error("`{path}` {what}")]
    Unusable {
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Why packed weights were not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// They and those of other models do not fit.
    #[error("they take {bytes} bytes, and {limit} are allowed in `{folder}`; hint: free space on its disk")]
    TooLarge {
        folder: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// What may be taken: the limit, or half of what the disk could give.
        limit: u64,
    },
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
}

/// What became of packed weights that were to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The file is there now, of this many bytes.
    Written(u64),
    /// Another process has kept the same ones meanwhile.
    AlreadyThere,
}

/// What a start found in the cache.
pub enum CacheState {
    /// The weights are mapped from it. The note of whoever wrote it.
    Mapped(String),
    /// They were packed, and can be kept.
    Missed(Miss, CacheWriter),
}

impl fmt::Debug for CacheState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(note) => formatter.debug_tuple("Mapped").field(note).finish(),
            Self::Missed(miss, _) => formatter.debug_tuple("Missed").field(miss).finish(),
        }
    }
}

impl WeightCache {
    /// The file of this key and layout.
    pub fn path(&self) -> PathBuf {
        let digits: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{}-{LAYOUT_VERSION}.{}", &digits[..NAME_DIGITS], folder::EXTENSION))
    }

    /// Maps and checks the weights of `table`; returns them with the note. A file that is found to be unusable is
    /// removed, so that the next one to look need not read it.
    pub(crate) fn open(&self, table: &ImageTable, pool: &mut ThreadPool) -> Result<(Region, String), Miss> {
        let path = self.path();
        match file::open(&path, &self.key, table, pool) {
            Ok(opened) => Ok(opened),
            Err(file::OpenError::Io(source)) if source.kind() == io::ErrorKind::NotFound => Err(Miss::Absent),
            Err(file::OpenError::Io(source)) => Err(Miss::Unreadable { path, source }),
            Err(file::OpenError::Bad { what, identity }) => {
                folder::remove_if_same(&path, identity);
                Err(Miss::Unusable { path, what })
            }
        }
    }

    /// Who keeps `image`, which may happen on another thread.
    pub(crate) fn writer(self, image: &WeightImage) -> CacheWriter {
        CacheWriter { cache: self, image: image.clone() }
    }
}

/// Keeps weights that were packed.
#[derive(Debug)]
pub struct CacheWriter {
    cache: WeightCache,
    image: WeightImage,
}

impl CacheWriter {
    /// Writes the file under a name of its own, makes it durable and gives it its final name: whoever looks finds all
    /// of it or nothing. Of several processes that do so at once, the first one wins.
    ///
    /// `note` (at most [`MAX_NOTE_BYTES`]) comes back from [`CacheState::Mapped`]. A thread of its own does it
    /// in the time that nobody else wants, while the calling one waits.
    pub fn keep(&self, note: &str) -> Result<Kept, KeepError> {
        assert!(note.len() <= MAX_NOTE_BYTES, "a note of {} bytes", note.len());
        std::thread::scope(|scope| {
            let kept = scope.spawn(|| {
                yield_to_others();
                self.keep_now(note)
            });
            kept.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// [`CacheWriter::keep`] by the calling thread, as urgent as that is: tests need not wait for an idle machine.
    #[doc(hidden)]
    pub fn keep_now(&self, note: &str) -> Result<Kept, KeepError> {
        let path = self.cache.path();
        let table = Arc::clone(&self.image.table);
        if file::is_of(&path, &self.cache.key, &table) {
            return Ok(Kept::AlreadyThere);
        }
        let header = Header::of(&self.image, &self.cache.key, note);
        folder::put(&self.cache.folder, &path, self.cache.max_bytes, header.file_bytes(), |out| {
            header.write(self.image.region.as_slice(), out)
        })
    }
}

/// Lets every other thread go first: the first requests come while the file is written.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    // SAFETY: plain old data, valid when zero.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: concerns the calling thread (0); refusal is fine, it only costs others some time.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}

#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}
