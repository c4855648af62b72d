//! The blocks of one conversation in a file that can be copied to another machine.
//!
//! ```text
//! header     the header of a store with one slot per block
//! records    one per block, in the order of the path
//! blocks     in the same order
//! ```
//!
//! An archive is therefore a small store in one file, and every check of a store applies to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::ReadError;
use crate::layout::{Geometry, HEADER_BYTES, Record, Slot, StoredBlock, block_checksum, is_header};
use crate::store::{NewBlock, Store};

/// The file contains conversation content, so only its owner may read it.
const FILE_MODE: u32 = 0o600;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    #[error("cannot {what} `{path}`: {source}")]
    System { what: &'static str, path: PathBuf, source: io::Error },
    /// A block of the store is missing or damaged.
    #[error(transparent)]
    Block(#[from] ReadError),
    /// The file does not begin like an archive.
    #[error(
        "`{path}` is not an export of `trunkline cache export`; hint: give the file that `trunkline cache export` wrote"
    )]
    NoArchive { path: PathBuf },
    #[error("`{path}` {what}; hint: copy the file again, or write it again with `trunkline cache export`")]
    Damaged { path: PathBuf, what: String },
    /// The archive comes from another model, dtype or version of the kernels.
    #[error(
        "`{path}` holds {found}, but the store holds {expected}; hint: import into a server with the same weights, dtype and version"
    )]
    Foreign { path: PathBuf, found: String, expected: String },
    #[error(
        "the import needs room for {needed} more blocks, but the store has room for {free}; hint: raise `--kv-disk-size`"
    )]
    Full { free: usize, needed: usize },
    #[error(transparent)]
    Write(#[from] crate::error::WriteError),
}

/// A file that gets its name once it is complete. Dropping it before removes it.
struct NewFile {
    path: PathBuf,
    partial: PathBuf,
    file: File,
}

impl NewFile {
    /// Makes a file under another name beside `path`, where there must be none.
    fn create(path: &Path) -> io::Result<Self> {
        let mut partial = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        if path.symlink_metadata().is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = path.with_file_name(partial);
        let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&partial)?;
        Ok(Self { path: path.to_owned(), partial, file })
    }

    /// Gives the file its name, unless another process has made a file with that name meanwhile.
    fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        match fs::hard_link(&self.partial, &self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                // Not every file system has several names for a file.
                if self.path.symlink_metadata().is_ok() {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                fs::rename(&self.partial, &self.path)
            }
            linked => linked,
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // It may have been renamed.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Writes the blocks of a path, from the first on, to a new file, which is complete or not there at all. Returns its
/// size in bytes.
pub fn export(store: &Store, path_blocks: &[StoredBlock], file: &Path) -> Result<u64, ArchiveError> {
    let fail = |what| move |source| ArchiveError::System { what, path: file.to_owned(), source };
    let geometry = Geometry { num_slots: path_blocks.len() as u32, ..store.geometry().clone() };
    let mut bytes = vec![0; geometry.block_bytes as usize];
    let mut records = Vec::new();
    let new = NewFile::create(file).map_err(fail("make"))?;
    let mut out = &new.file;
    // The records precede the blocks, so all blocks are read, and verified, twice.
    for (slot, block) in (0..).zip(path_blocks) {
        let (found, token_ids) = store.read(block.slot, block.key, &mut bytes)?;
        let record =
            Record { block: StoredBlock { slot, ..found }, checksum: block_checksum(&bytes), token_ids };
        let mut encoded = Vec::new();
        record.encode(&geometry, &mut encoded);
        records.extend(encoded);
    }
    out.write_all(&geometry.header()).and_then(|()| out.write_all(&records)).map_err(fail("write"))?;
    for block in path_blocks {
        store.read(block.slot, block.key, &mut bytes)?;
        out.write_all(&bytes).map_err(fail("write"))?;
    }
    new.finish().map_err(fail("write"))?;
    Ok(HEADER_BYTES as u64 + records.len() as u64 + path_blocks.len() as u64 * geometry.block_bytes)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    pub num_new: usize,
    pub num_known: usize,
}

/// Writes the blocks of an archive into free slots of a store that no other process has open.
pub fn import(store: &Store, present: &[StoredBlock], file: &Path) -> Result<Imported, ArchiveError> {
    let system = |source| ArchiveError::System { what: "read", path: file.to_owned(), source };
    let damaged = |what: String| ArchiveError::Damaged { path: file.to_owned(), what };
    let mut input = File::open(file).map_err(system)?;
    let mut header = Vec::new();
    (&mut input).take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(system)?;
    if !is_header(&header) {
        return Err(ArchiveError::NoArchive { path: file.to_owned() });
    }
    let ends_early = || damaged("ends before its last block".to_owned());
    if header.len() < HEADER_BYTES {
        return Err(ends_early());
    }
    let mut fill = |bytes: &mut [u8]| {
        input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ends_early(),
            _ => system(error),
        })
    };
    let geometry = Geometry::from_header(&header).map_err(&damaged)?;
    if !geometry.holds_blocks_of(store.geometry()) {
        let (found, expected) = (geometry.to_string(), store.geometry().to_string());
        return Err(ArchiveError::Foreign { path: file.to_owned(), found, expected });
    }
    let mut records = Vec::new();
    for slot in 0..geometry.num_slots {
        let mut bytes = vec![0; geometry.record_bytes()];
        fill(&mut bytes)?;
        match Slot::decode(&geometry, slot, &bytes) {
            Slot::Holds(record) => records.push(record),
            Slot::Empty | Slot::Damaged => {
                return Err(damaged(format!("has a damaged record, number {slot}")));
            }
        }
    }
    let is_known = |record: &&Record| present.iter().any(|block| block.key == record.block.key);
    let num_known = records.iter().filter(is_known).count();
    let is_used: std::collections::HashSet<u32> = present.iter().map(|block| block.slot).collect();
    let mut free = (0..store.geometry().num_slots).filter(|slot| !is_used.contains(slot));
    let (needed, num_free) = (records.len() - num_known, store.geometry().num_slots as usize - is_used.len());
    if needed > num_free {
        return Err(ArchiveError::Full { free: num_free, needed });
    }
    let mut bytes = vec![0; geometry.block_bytes as usize];
    for record in &records {
        fill(&mut bytes)?;
        if block_checksum(&bytes) != record.checksum {
            return Err(damaged(format!("has a damaged block, number {}", record.block.slot)));
        }
        if is_known(&record) {
            continue;
        }
        let block = NewBlock {
            key: record.block.key,
            parent: record.block.parent,
            root: record.block.root,
            depth: record.block.depth,
            token_ids: &record.token_ids,
        };
        let slot = free.next().expect("counted above");
        store.write(slot, &block, &bytes)?;
    }
    Ok(Imported { num_new: needed, num_known })
}
