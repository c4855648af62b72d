//! Opens a store and writes, reads and erases its slots. Methods may be called from several threads at once, except
//! that a slot that is written or erased must not be used by another call.
//!
//! The process that holds the lock owns the store. Another process may attach to it and use the slots that the owner
//! leaves to it. For that reason nothing about a slot is cached here; its record is read each time.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use trunkline_contract::BlockKey;

use crate::disk::{DiskFile, Gate, Gated, read_full, write_full};
use crate::error::{OpenError, ReadError, SlotPart, WriteError};
use crate::folder::{self, BLOCKS_FILE, RECORDS_FILE, StoreLock};
use crate::layout::{Geometry, Record, Slot, StoredBlock, block_checksum};
use crate::neighbours::{Neighbours, Removed};
use crate::records::{each_slot, read_header};

/// The pause after a refused write, during which the disk is not asked again.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    pub key: BlockKey,
    pub parent: BlockKey,
    pub root: BlockKey,
    pub depth: u32,
    /// The block's tokens, from 1 to the geometry's block size.
    pub token_ids: &'a [u32],
}

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
pub struct Store {
    geometry: Geometry,
    records: Box<dyn DiskFile>,
    blocks: Box<dyn DiskFile>,
    next_sequence: AtomicU64,
    refused_at: Mutex<Option<Instant>>,
    /// [`REFUSED_PAUSE`], unless a test replaced it.
    refused_pause: Duration,
    /// The stores that share a limit with this one.
    neighbours: Option<Neighbours>,
    /// The open and locked file, until the store is given up. `None` for a store that another process owns.
    lock: Option<Lock>,
}

#[derive(Debug)]
struct Lock {
    folder: PathBuf,
    file: Mutex<Option<StoreLock>>,
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

    /// Keeps the blocks of all stores beside `folder`, which is this store's, and of this one within `max_bytes`: now
    /// and whenever this one grows, the least recently used others give up their content. Stores that a process has
    /// open, or had within [`RESTART_TIME`](crate::RESTART_TIME), keep it, so together with those the limit may be
    /// exceeded.
    pub fn share(&mut self, folder: &Path, max_bytes: u64) {
        self.neighbours = Neighbours::of(folder, max_bytes);
        if let Some(neighbours) = &self.neighbours {
            neighbours.make_room();
        }
    }

    /// Returns the stores that gave up their content since the last call.
    pub fn take_removed(&self) -> Vec<Removed> {
        self.neighbours.as_ref().map(Neighbours::take_removed).unwrap_or_default()
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
            lock.records.set_num_bytes(g.record_offset(g.num_slots)).map_err(fail)?;
            lock.blocks.set_num_bytes(g.block_offset(g.num_slots)).map_err(fail)?;
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

    fn attach_files(folder: &Path, geometry: Geometry, is_writable: bool) -> Result<Self, OpenError> {
        geometry.check()?;
        let path = folder.join(RECORDS_FILE);
        let (records, blocks) = if is_writable {
            folder::open_there(folder)?
        } else {
            (folder::open_to_read(folder, RECORDS_FILE)?, folder::open_to_read(folder, BLOCKS_FILE)?)
        };
        let fail = |source| OpenError::System { what: "read", path: path.clone(), source };
        let header = read_header(&records).map_err(fail)?;
        let unreadable = |what| OpenError::Unreadable { path: path.clone(), what };
        let there = Geometry::from_header(&header).map_err(unreadable)?;
        if there != geometry {
            return Err(unreadable(format!("is of a store of {there}, expected {geometry}")));
        }
        let mut newest = 0;
        each_slot(&records, &geometry, 0..geometry.num_slots, |_, slot| {
            if let Slot::Holds(record) = slot {
                newest = newest.max(record.block.sequence);
            }
        })
        .map_err(fail)?;
        Ok(Self {
            geometry,
            records: Box::new(records),
            blocks: Box::new(blocks),
            next_sequence: AtomicU64::new(newest.saturating_add(1)),
            refused_at: Mutex::new(None),
            refused_pause: REFUSED_PAUSE,
            neighbours: None,
            lock: None,
        })
    }

    /// Does the work of [`Store::open`] on given files. `path` names the file of records in messages.
    pub fn open_on(
        records: Box<dyn DiskFile>,
        blocks: Box<dyn DiskFile>,
        geometry: Geometry,
        path: &Path,
    ) -> Result<(Self, Found), OpenError> {
        geometry.check()?;
        let store = Self {
            geometry,
            records,
            blocks,
            next_sequence: AtomicU64::new(1),
            refused_at: Mutex::new(None),
            refused_pause: REFUSED_PAUSE,
            neighbours: None,
            lock: None,
        };
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
        self.set_sizes()?;
        write_full(&*self.records, &self.geometry.header(), 0)
    }

    fn set_sizes(&self) -> io::Result<()> {
        let g = &self.geometry;
        self.records.set_num_bytes(g.record_offset(g.num_slots))?;
        self.blocks.set_num_bytes(g.block_offset(g.num_slots))
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
        self.set_sizes()?;
        if *header != g.header() {
            write_full(&*self.records, &g.header(), 0)?;
        }
        // A record that cannot be erased will be found damaged again.
        damaged.into_iter().for_each(|slot| drop(self.erase(slot)));
        Ok(found)
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the blocks of a range of slots by ascending slot, as far as their records show. Slots that are written
    /// meanwhile may be missing.
    ///
    /// Panics if a slot does not exist.
    pub fn contents(&self, slots: Range<u32>) -> io::Result<Vec<StoredBlock>> {
        let g = &self.geometry;
        assert!(slots.end <= g.num_slots, "slots {slots:?} of {}", g.num_slots);
        let mut blocks = Vec::new();
        each_slot(&*self.records, g, slots, |_, slot| {
            if let Slot::Holds(record) = slot {
                blocks.push(record.block);
            }
        })?;
        Ok(blocks)
    }

    /// Writes a block into `slot` and replaces its previous content. Once this returns, the block survives a crash of
    /// this process. After an error the slot is empty.
    ///
    /// Panics if the slot does not exist or the block does not match the geometry.
    pub fn write(&self, slot: u32, block: &NewBlock<'_>, bytes: &[u8]) -> Result<(), WriteError> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        assert!(bytes.len() as u64 == g.block_bytes, "a block of {} bytes", bytes.len());
        let num_tokens = block.token_ids.len();
        assert!((1..=g.block_size as usize).contains(&num_tokens), "a block of {num_tokens} tokens");
        // The record is erased first, so that it never stands beside the bytes of another block.
        let refused = |source| {
            *self.refused_at.lock().expect("no panic while it is held") = Some(Instant::now());
            WriteError::Disk { slot, source }
        };
        self.erase(slot).map_err(refused)?;
        if self.is_paused() {
            return Err(WriteError::Paused { slot });
        }
        write_full(&*self.blocks, bytes, g.block_offset(slot)).map_err(refused)?;
        let record = Record {
            block: StoredBlock {
                slot,
                key: block.key,
                parent: block.parent,
                root: block.root,
                depth: block.depth,
                num_tokens: num_tokens as u32,
                written_at: unix_seconds(),
                sequence: self.next_sequence.fetch_add(1, Ordering::Relaxed),
            },
            checksum: block_checksum(bytes),
            token_ids: block.token_ids.to_vec(),
        };
        let mut encoded = Vec::new();
        record.encode(g, &mut encoded);
        write_full(&*self.records, &encoded, g.record_offset(slot)).map_err(|source| {
            // This is best effort: half a record counts as damaged, and a whole one is correct.
            drop(self.erase(slot));
            refused(source)
        })?;
        if let Some(neighbours) = &self.neighbours {
            neighbours.written(g.slot_bytes());
        }
        Ok(())
    }

    fn is_paused(&self) -> bool {
        let mut refused_at = self.refused_at.lock().expect("no panic while it is held");
        if refused_at.is_some_and(|at| at.elapsed() >= self.refused_pause) {
            *refused_at = None;
        }
        refused_at.is_some()
    }

    /// Replaces [`REFUSED_PAUSE`] as the time without writes after a refused one.
    pub fn set_refused_pause(&mut self, pause: Duration) {
        self.refused_pause = pause;
    }

    pub fn end_pause(&self) {
        *self.refused_at.lock().expect("no panic while it is held") = None;
    }

    /// Asks the system to start writing the block of `slot` back.
    pub fn begin_write_back(&self, slot: u32) {
        self.blocks.begin_write_back(self.geometry.block_offset(slot), self.geometry.block_bytes);
    }

    /// Asks the system to read the block of `slot` ahead.
    pub fn will_need(&self, slot: u32) {
        self.blocks.will_need(self.geometry.block_offset(slot), self.geometry.block_bytes);
    }

    /// Reads the block of `slot` into `bytes` and verifies its key and checksum. Returns its metadata and its tokens.
    /// After an error the content of `bytes` is unspecified. A damaged block is erased, unless the store was attached
    /// to read.
    ///
    /// Panics if the slot does not exist or `bytes` is not as long as a block.
    pub fn read(
        &self,
        slot: u32,
        key: BlockKey,
        bytes: &mut [u8],
    ) -> Result<(StoredBlock, Vec<u32>), ReadError> {
        let result = self.read_slot(slot, Some(key), bytes);
        if let Err(ReadError::Damaged { .. }) = result {
            // If this fails, the block will be found damaged again.
            drop(self.erase(slot));
        }
        result.map(|record| (record.block, record.token_ids))
    }

    /// Reads whatever block is in `slot` into `bytes` and verifies its checksums, without erasing a damaged one.
    ///
    /// Panics like [`Store::read`].
    pub fn look(&self, slot: u32, bytes: &mut [u8]) -> Result<StoredBlock, ReadError> {
        self.read_slot(slot, None, bytes).map(|record| record.block)
    }

    fn read_slot(&self, slot: u32, key: Option<BlockKey>, bytes: &mut [u8]) -> Result<Record, ReadError> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        assert!(bytes.len() as u64 == g.block_bytes, "a block of {} bytes", bytes.len());
        let fail = |source| ReadError::Disk { slot, source };
        let mut encoded = vec![0; g.record_bytes()];
        read_full(&*self.records, &mut encoded, g.record_offset(slot)).map_err(fail)?;
        let record = match Slot::decode(g, slot, &encoded) {
            Slot::Empty => return Err(ReadError::Empty { slot }),
            Slot::Damaged => return Err(ReadError::Damaged { slot, part: SlotPart::Record }),
            Slot::Holds(record) => record,
        };
        if let Some(expected) = key
            && record.block.key != expected
        {
            return Err(ReadError::OtherBlock { slot, found: record.block.key, expected });
        }
        let count = read_full(&*self.blocks, bytes, g.block_offset(slot)).map_err(fail)?;
        if count < bytes.len() || block_checksum(bytes) != record.checksum {
            return Err(ReadError::Damaged { slot, part: SlotPart::Block });
        }
        Ok(record)
    }

    /// Empties `slot`. Panics if there is no such slot.
    pub fn erase(&self, slot: u32) -> io::Result<()> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        let mut record = vec![0; g.record_bytes()];
        // An unreadable record counts as present. An empty slot is not written, so that the file stays sparse.
        let is_read = read_full(&*self.records, &mut record, g.record_offset(slot)).is_ok();
        if is_read && record.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        record.fill(0);
        write_full(&*self.records, &record, g.record_offset(slot))
    }

    /// Returns when everything that was written would survive a loss of power. The owner calls this at its end.
    pub fn sync(&self) -> io::Result<()> {
        if let Some(lock) = &self.lock
            && let Some(lock) = &*lock.file.lock().unwrap_or_else(PoisonError::into_inner)
        {
            lock.touch();
        }
        // The blocks come first: a record without its block would be a miss that costs a read.
        self.blocks.sync()?;
        self.records.sync()
    }
}

fn unix_seconds() -> u64 {
    // A clock before 1970 was never set.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
