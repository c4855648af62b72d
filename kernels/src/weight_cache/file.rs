//! The format of one cache file: a header that describes the contents, followed by the image.
//!
//! ```text
//! magic, header bytes, layout version     8, 4, 4 bytes; numbers are little-endian
//! image's offset, image's bytes           8, 8
//! key, note's bytes, note                 32, 4, 64
//! number of entries                       4
//! each: kind, zero, number of parts       1, 1, 2
//!       format's name                     8
//!       rows, columns, offset, bytes      8 each; offset in the image
//!       checksum of its bytes             8
//!       parts                             4 each
//! checksum of the bytes above             8
//! zeros up to the image's offset, then the image, to the end of the file
//! ```
//!
//! Checksums are XXH3-64. They detect accidental damage, not deliberate changes: anyone who can write to the folder can
//! also change the model files.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use super::folder::{Identity, identity};
use super::{KEY_BYTES, MAX_NOTE_BYTES};
use crate::pack::{Format, LAYOUT_VERSION, Region};
use crate::program::{Entry, EntryKind, ImageTable, WeightImage};
use crate::threads::ThreadPool;

const MAGIC: &[u8; 8] = b"TRNKWGT\n";
/// Bytes from the magic to the number of entries.
const FIXED_BYTES: usize = 8 + 4 + 4 + 8 + 8 + KEY_BYTES + 4 + MAX_NOTE_BYTES + 4;
const CHECKSUM_BYTES: usize = 8;
/// Bytes reserved for the name of a format.
const NAME_BYTES: usize = 8;
/// Bytes of an entry without its parts.
const ENTRY_BYTES: usize = 4 + NAME_BYTES + 4 * 8 + CHECKSUM_BYTES;
/// The largest header size in bytes. It suffices for 2^16 tensors of a few parts.
const MAX_HEADER_BYTES: usize = 16 << 20;
/// Images begin at a multiple of this, and large images at a multiple of [`HUGE_PAGE_BYTES`].
const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes passed to one write call.
const WRITE_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(super) enum OpenError {
    Io(io::Error),
    Bad { what: String, identity: Identity },
}

#[derive(Debug)]
pub(super) struct Header {
    bytes: Vec<u8>,
    image_offset: usize,
    image_bytes: usize,
}

impl Header {
    /// Builds the header of `image`. Reads the whole image for its checksums.
    pub(super) fn of(image: &WeightImage, key: &[u8; KEY_BYTES], note: &str) -> Self {
        let region = image.region.as_slice();
        Self::build(&image.table, key, note, &|entry| xxh3_64(&region[entry.offset..][..entry.num_bytes]))
    }

    /// Builds the header of an image whose entries have these checksums.
    pub(super) fn with_checksums(
        table: &ImageTable,
        key: &[u8; KEY_BYTES],
        note: &str,
        checksums: &[u64],
    ) -> Self {
        let next = AtomicUsize::new(0);
        Self::build(table, key, note, &|_| checksums[next.fetch_add(1, Ordering::Relaxed)])
    }

    fn build(
        table: &ImageTable,
        key: &[u8; KEY_BYTES],
        note: &str,
        checksum: &dyn Fn(&Entry) -> u64,
    ) -> Self {
        let entry_bytes = |entry: &Entry| ENTRY_BYTES + 4 * entry.parts.len();
        let len = FIXED_BYTES + table.entries.iter().map(entry_bytes).sum::<usize>() + CHECKSUM_BYTES;
        let boundary = if table.num_bytes < HUGE_PAGE_BYTES { PAGE_BYTES } else { HUGE_PAGE_BYTES };
        let image_offset = len.next_multiple_of(boundary);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(MAGIC);
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend(LAYOUT_VERSION.to_le_bytes());
        bytes.extend((image_offset as u64).to_le_bytes());
        bytes.extend((table.num_bytes as u64).to_le_bytes());
        bytes.extend(key);
        bytes.extend((note.len() as u32).to_le_bytes());
        bytes.extend(note.as_bytes());
        bytes.resize(FIXED_BYTES - 4, 0);
        bytes.extend((table.entries.len() as u32).to_le_bytes());
        for entry in &table.entries {
            let (kind, format, rows, columns) = match entry.kind {
                EntryKind::Matrix(layout) => {
                    (0, layout.format(), layout.out_features(), layout.in_features())
                }
                EntryKind::Vector { len } => (1, Format::F32, 1, len),
            };
            bytes.extend([kind, 0]);
            bytes.extend((entry.parts.len() as u16).to_le_bytes());
            // Names stay the same when formats are added; discriminants may not.
            let mut name = [0; NAME_BYTES];
            name[..format.name().len()].copy_from_slice(format.name().as_bytes());
            bytes.extend(name);
            for number in [rows, columns, entry.offset, entry.num_bytes] {
                bytes.extend((number as u64).to_le_bytes());
            }
            bytes.extend(checksum(entry).to_le_bytes());
            entry.parts.iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        }
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        debug_assert_eq!(bytes.len(), len);
        Self { bytes, image_offset, image_bytes: table.num_bytes }
    }

    pub(super) fn file_bytes(&self) -> u64 {
        (self.image_offset + self.image_bytes) as u64
    }

    pub(super) fn image_offset(&self) -> usize {
        self.image_offset
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn write(&self, image: &[u8], out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.bytes)?;
        out.write_all(&vec![0; self.image_offset - self.bytes.len()])?;
        image.chunks(WRITE_BYTES).try_for_each(|piece| out.write_all(piece))
    }
}

/// The header fields that do not follow from the program.
pub(super) struct Stored {
    pub(super) note: String,
    pub(super) checksums: Vec<u64>,
    pub(super) image_offset: usize,
}

/// Compares `bytes`, the beginning of a file of `file_bytes` bytes, with the header that the program expects.
fn read_header(
    bytes: &[u8],
    file_bytes: u64,
    key: &[u8; KEY_BYTES],
    table: &ImageTable,
) -> Result<Stored, String> {
    let number =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
    if bytes.len() < FIXED_BYTES || bytes[..8] != *MAGIC {
        return Err("is not a file of packed weights".to_owned());
    }
    let len = number(8);
    if !(FIXED_BYTES + CHECKSUM_BYTES..=MAX_HEADER_BYTES).contains(&len) || len > bytes.len() {
        return Err("has a damaged or incomplete header".to_owned());
    }
    let (covered, checksum) = bytes[..len].split_at(len - CHECKSUM_BYTES);
    if xxh3_64(covered).to_le_bytes() != checksum {
        return Err("has a damaged header".to_owned());
    }
    let note_at = FIXED_BYTES - 4 - MAX_NOTE_BYTES;
    let note = covered.get(note_at..note_at + number(note_at - 4).min(MAX_NOTE_BYTES));
    let note = note.and_then(|note| std::str::from_utf8(note).ok()).unwrap_or_default().to_owned();
    // All other bytes follow from the key and the program, so the header must equal the one that would be written.
    let mut checksums = Vec::with_capacity(table.entries.len());
    let mut at = FIXED_BYTES + ENTRY_BYTES - CHECKSUM_BYTES;
    for entry in &table.entries {
        let stored = covered.get(at..at + 8).ok_or("was made for another program")?;
        checksums.push(u64::from_le_bytes(stored.try_into().expect("8 bytes")));
        at += ENTRY_BYTES + 4 * entry.parts.len();
    }
    let expected = Header::with_checksums(table, key, &note, &checksums);
    if expected.bytes != bytes[..len] {
        return Err("was made from other weights, by another version or for another program".to_owned());
    }
    if expected.file_bytes() != file_bytes {
        return Err(format!("has {file_bytes} bytes, expected {}", expected.file_bytes()));
    }
    Ok(Stored { note, checksums, image_offset: expected.image_offset })
}

/// Returns true if the file exists and has the header that the program expects. Does not check the image.
pub(super) fn is_of(path: &Path, key: &[u8; KEY_BYTES], table: &ImageTable) -> bool {
    open_header(path, key, table).is_ok()
}

/// Reads and checks the header of a file, and sets its modification time for the order of eviction.
pub(super) fn open_header(
    path: &Path,
    key: &[u8; KEY_BYTES],
    table: &ImageTable,
) -> Result<Stored, OpenError> {
    let file = File::open(path).map_err(OpenError::Io)?;
    let file_bytes = file.metadata().map_err(OpenError::Io)?.len();
    let identity = identity(&file).map_err(OpenError::Io)?;
    let mut bytes = Vec::new();
    let room = MAX_HEADER_BYTES.min(header_room(table)) as u64;
    (&file).take(room).read_to_end(&mut bytes).map_err(OpenError::Io)?;
    let stored = read_header(&bytes, file_bytes, key, table);
    touch(&file);
    stored.map_err(|what| OpenError::Bad { what, identity })
}

fn touch(file: &File) {
    // Fails in a read-only folder, where nothing can be evicted either.
    let _ = file.set_modified(std::time::SystemTime::now());
}

fn header_room(table: &ImageTable) -> usize {
    Header::build(table, &[0; KEY_BYTES], "", &|_| 0).bytes.len()
}

/// Maps a file, checks it completely with the pool's threads, and sets its modification time for the order of eviction.
pub(super) fn open(
    path: &Path,
    key: &[u8; KEY_BYTES],
    table: &ImageTable,
    pool: &mut ThreadPool,
) -> Result<(Region, String), OpenError> {
    let file = File::open(path).map_err(OpenError::Io)?;
    let metadata = file.metadata().map_err(OpenError::Io)?;
    let bad = |what| OpenError::Bad { what, identity: (metadata.dev(), metadata.ino()) };
    if metadata.len() < FIXED_BYTES as u64 {
        return Err(bad(format!("has {} bytes", metadata.len())));
    }
    // SAFETY: this module never modifies a file that has its final name, and the owner of the folder must not let other
    // programs do so.
    let map = unsafe { Mmap::map(&file) }.map_err(OpenError::Io)?;
    let stored = read_header(&map, metadata.len(), key, table).map_err(bad)?;
    let region =
        Region::of_file(map, stored.image_offset).ok_or_else(|| bad("has misaligned weights".to_owned()))?;
    if let Some(index) = first_damaged(&region, table, &stored.checksums, pool) {
        return Err(bad(format!("has damaged bytes in entry {index} of {}", table.entries.len())));
    }
    touch(&file);
    Ok((region, stored.note))
}

fn first_damaged(
    region: &Region,
    table: &ImageTable,
    checksums: &[u64],
    pool: &mut ThreadPool,
) -> Option<usize> {
    let next = AtomicUsize::new(0);
    let damaged = Mutex::new(None);
    pool.run(|_, _| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = table.entries.get(index) else { return };
            let bytes = &region.as_slice()[entry.offset..][..entry.num_bytes];
            prefault(bytes);
            if xxh3_64(bytes) != checksums[index] {
                let mut damaged = damaged.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *damaged = Some(damaged.map_or(index, |known: usize| known.min(index)));
            }
        }
    });
    damaged.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Maps all pages of `bytes` with one call instead of one page fault each.
#[cfg(target_os = "linux")]
fn prefault(bytes: &[u8]) {
    let start = bytes.as_ptr().addr() / PAGE_BYTES * PAGE_BYTES;
    let len = bytes.as_ptr().addr() + bytes.len() - start;
    // SAFETY: the pages hold the slice, and the advice changes no content. Old kernels refuse it, which is harmless.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), len, libc::MADV_POPULATE_READ) };
}

#[cfg(not(target_os = "linux"))]
fn prefault(_bytes: &[u8]) {}
