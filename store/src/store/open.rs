//! Opens a store, gives it up to another process and takes it back, or attaches to one that another process owns.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{REFUSED_PAUSE, Store};
use crate::disk::{DiskFile, Gate, Gated, write_full};
use crate::error::OpenError;
use crate::folder::{self, BLOCKS_FILE, RECORDS_FILE, StoreLock};
use crate::layout::{Geometry, Slot};
use crate::records::{each_slot, read_header};

/// The contents that were found at opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub num_blocks: usize,
    /// The number of damaged records, which have been erased.
    pub num_damaged: usize,
    /// The reason why all content was discarded; `None` if it was kept or there was none.
    pub lost: Option<String>,
}

#[derive(Debug)]
pub(super) struct Lock {
    folder: PathBuf,
    pub(super) file: Mutex<Option<StoreLock>>,
    gate: Arc<Gate>,
    /// The same files without the gate.
    records: File,
    blocks: File,
}

impl Store {
    /// Opens the store in `folder`, creating it if it does not exist. Its content is kept if it has this geometry (the
    /// number of slots may differ) and is discarded otherwise. Content is never an error.
    pub fn open(folder: &Path, geometry: Geometry) -> Result<(Self, Found), OpenError> {
        geometry.check()?;
        let files = folder::open(folder)?;
        let path = folder.join(RECORDS_FILE);
        let gate = Arc::<Gate>::default();
        let fail = |source| OpenError::System { what: "open", path: path.clone(), source };
        let gated = |file: &File| Ok(Box::new(Gated { file: file.try_clone()?, gate: gate.clone() }));
        let (records, blocks) = (gated(&files.records).map_err(fail)?, gated(&files.blocks).map_err(fail)?);
        let (mut store, found) = Self::open_on(records, blocks, geometry, &path)?;
        store.lock = Some(Lock {
            folder: folder.to_owned(),
            file: Mutex::new(Some(files.lock)),
            gate,
            records: files.records,
            blocks: files.blocks,
        });
        Ok((store, found))
    }

    /// Releases the lock, so that another process can open the store. Reads and writes that run are finished first;
    /// all that follow fail. A block that is being written is dropped or complete, never half there.
    pub fn give_up(&self) {
        if let Some(lock) = &self.lock {
            lock.gate.close();
            drop(lock.file.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Takes a store back that was given up. Reads and writes work again, with the blocks that the other process left
    /// there.
    ///
    /// Fails if another process has the store open, or has replaced it by another one. It stays given up then.
    pub fn take_back(&self) -> Result<(), OpenError> {
        let Some(lock) = &self.lock else { return Ok(()) };
        let mut held = lock.file.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_some() {
            return Ok(());
        }
        let files = folder::open(&lock.folder)?;
        self.restore(lock, &files)?;
        *held = Some(files.lock);
        lock.gate.open();
        self.end_pause();
        Ok(())
    }

    /// Restores the header and the sizes of files that another process may have changed.
    fn restore(&self, lock: &Lock, there: &folder::Files) -> Result<(), OpenError> {
        let path = lock.folder.join(RECORDS_FILE);
        let fail = |source| OpenError::System { what: "restore", path: path.clone(), source };
        let is_same = |one: &File, other: &File| -> io::Result<bool> {
            let (one, other) = (one.metadata()?, other.metadata()?);
            Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
        };
        let are_same = is_same(&lock.records, &there.records).map_err(fail)?
            && is_same(&lock.blocks, &there.blocks).map_err(fail)?;
        let unreadable = |what: String| OpenError::Unreadable { path: path.clone(), what };
        if !are_same {
            return Err(unreadable("was replaced by another file".to_owned()));
        }
        let g = &self.geometry;
        let header = read_header(&lock.records).map_err(fail)?;
        let found = Geometry::from_header(&header).map_err(unreadable)?;
        if !found.holds_blocks_of(g) {
            return Err(unreadable(format!("is of a store of {found}, expected {g}")));
        }
        if found != *g {
            // Blocks behind the end of a smaller store are lost, and reads of them fail.
            set_sizes(g, &lock.records, &lock.blocks).map_err(fail)?;
            write_full(&lock.records, &g.header(), 0).map_err(fail)?;
        }
        Ok(())
    }

    /// Attaches to a store that another process owns, without its lock and without changing anything. Fails if the
    /// store does not have exactly this geometry. Blocks that are written here and blocks that the owner writes at the
    /// same time get similar sequence numbers, so their order by age is approximate.
    ///
    /// Only slots that the owner does not use meanwhile may be written or erased here. Otherwise the checksums fail:
    /// the block is lost, but a wrong block is never read.
    pub fn attach(folder: &Path, geometry: Geometry) -> Result<Self, OpenError> {
        Self::attach_files(folder, geometry, true)
    }

    /// Attaches to a store like [`Store::attach`], with files that are open for reading only: nothing that is called
    /// here can change the store.
    pub fn attach_to_read(folder: &Path, geometry: Geometry) -> Result<Self, OpenError> {
        Self::attach_files(folder, geometry, false)
    }

    /// Attaches to another store that has blocks of the same kind, to read them.
    pub fn attach_beside(&self, folder: &Path) -> Result<Self, OpenError> {
        let (records, blocks, there) =
            open_attached(folder, false, &self.geometry, |there| there.holds_blocks_of(&self.geometry))?;
        Ok(Self::on(Box::new(records), Box::new(blocks), there))
    }

    fn attach_files(folder: &Path, geometry: Geometry, is_writable: bool) -> Result<Self, OpenError> {
        geometry.check()?;
        let (records, blocks, _) = open_attached(folder, is_writable, &geometry, |there| *there == geometry)?;
        let mut newest = 0;
        each_slot(&records, &geometry, 0..geometry.num_slots, |_, slot| {
            if let Slot::Holds(record) = slot {
                newest = newest.max(record.block.sequence);
            }
        })
        .map_err(|source| OpenError::System {
            what: "read",
            path: folder.join(RECORDS_FILE),
            source,
        })?;
        let store = Self::on(Box::new(records), Box::new(blocks), geometry);
        store.next_sequence.store(newest.saturating_add(1), Ordering::Relaxed);
        Ok(store)
    }

    fn on(records: Box<dyn DiskFile>, blocks: Box<dyn DiskFile>, geometry: Geometry) -> Self {
        Self {
            geometry,
            records,
            blocks,
            next_sequence: AtomicU64::new(1),
            refused_at: Mutex::new(None),
            refused_pause: REFUSED_PAUSE,
            neighbours: None,
            lock: None,
        }
    }

    /// Does the work of [`Store::open`] on given files. `path` names the file of records in messages.
    pub fn open_on(
        records: Box<dyn DiskFile>,
        blocks: Box<dyn DiskFile>,
        geometry: Geometry,
        path: &Path,
    ) -> Result<(Self, Found), OpenError> {
        geometry.check()?;
        let store = Self::on(records, blocks, geometry);
        let fail = |what, source| OpenError::System { what, path: PathBuf::from(path), source };
        let header = read_header(&*store.records).map_err(|error| fail("read", error))?;
        let lost = match Geometry::from_header(&header) {
            Ok(there) if there.holds_blocks_of(&store.geometry) => None,
            Ok(there) => {
                Some(format!("`{}` is of a store of {there}, expected {}", path.display(), store.geometry))
            }
            Err(_) if header.is_empty() => Some(String::new()),
            Err(what) => Some(format!("`{}` {what}", path.display())),
        };
        let Some(lost) = lost else {
            let found = store.keep(&header).map_err(|error| fail("open", error))?;
            return Ok((store, found));
        };
        store.begin_anew().map_err(|error| fail("write", error))?;
        let lost = (!lost.is_empty()).then_some(lost);
        Ok((store, Found { lost, ..Found::default() }))
    }

    fn begin_anew(&self) -> io::Result<()> {
        // The records come first: without a header the blocks do not count.
        self.records.set_num_bytes(0)?;
        self.blocks.set_num_bytes(0)?;
        set_sizes(&self.geometry, &*self.records, &*self.blocks)?;
        write_full(&*self.records, &self.geometry.header(), 0)
    }

    /// Reads the existing records and erases damaged ones.
    fn keep(&self, header: &[u8]) -> io::Result<Found> {
        let g = &self.geometry;
        let num_block_bytes = self.blocks.num_bytes()?;
        let (mut found, mut damaged) = (Found::default(), Vec::new());
        let mut newest = 0;
        each_slot(&*self.records, g, 0..g.num_slots, |slot, what| {
            let is_whole = g.block_offset(slot) + g.block_bytes <= num_block_bytes;
            match what {
                Slot::Empty => {}
                Slot::Holds(record) if is_whole => {
                    found.num_blocks += 1;
                    newest = newest.max(record.block.sequence);
                }
                Slot::Damaged | Slot::Holds(_) => damaged.push(slot),
            }
        })?;
        self.next_sequence.store(newest.saturating_add(1), Ordering::Relaxed);
        found.num_damaged = damaged.len();
        set_sizes(&self.geometry, &*self.records, &*self.blocks)?;
        if *header != g.header() {
            write_full(&*self.records, &g.header(), 0)?;
        }
        // A record that cannot be erased will be found damaged again.
        damaged.into_iter().for_each(|slot| drop(self.erase(slot)));
        Ok(found)
    }
}

/// Opens the files of a store that another process owns. Fails unless its geometry, which is returned, `fits`.
fn open_attached(
    folder: &Path,
    is_writable: bool,
    expected: &Geometry,
    fits: impl FnOnce(&Geometry) -> bool,
) -> Result<(File, File, Geometry), OpenError> {
    let (records, blocks) = if is_writable {
        folder::open_there(folder)?
    } else {
        (folder::open_to_read(folder, RECORDS_FILE)?, folder::open_to_read(folder, BLOCKS_FILE)?)
    };
    let path = folder.join(RECORDS_FILE);
    let header = match read_header(&records) {
        Ok(header) => header,
        Err(source) => return Err(OpenError::System { what: "read", path, source }),
    };
    match Geometry::from_header(&header) {
        Ok(there) if fits(&there) => Ok((records, blocks, there)),
        Ok(there) => Err(OpenError::Unreadable {
            path,
            what: format!("is of a store of {there}, expected {expected}"),
        }),
        Err(what) => Err(OpenError::Unreadable { path, what }),
    }
}

fn set_sizes(g: &Geometry, records: &dyn DiskFile, blocks: &dyn DiskFile) -> io::Result<()> {
    records.set_num_bytes(g.record_offset(g.num_slots))?;
    blocks.set_num_bytes(g.block_offset(g.num_slots))
}
