//! One store: opens, writes, reads and erases slots. All methods may be called from several threads, as long as no two
//! of them concern one slot; two reads of one may.
//!
//! One process owns it, which holds its lock. Another one may attach, and read and write slots that the owner leaves to
//! it meanwhile: so nothing about a slot is remembered here, its record is looked at each time.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use trunkline_kv::BlockKey;

use crate::disk::{DiskFile, read_full, write_full};
use crate::error::{OpenError, ReadError, WriteError};
use crate::folder::{self, RECORDS_FILE};
use crate::layout::{Geometry, Record, Slot, StoredBlock, block_checksum};
use crate::records::{each_slot, read_header};

/// After the disk has refused, it is not asked to write for so long.
pub const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// A block that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock<'a> {
    pub key: BlockKey,
    /// The key before it.
    pub parent: BlockKey,
    /// The key before the first block of its path.
    pub root: BlockKey,
    /// Its index in its path.
    pub depth: u32,
    /// Its tokens: 1 to the geometry's block size.
    pub token_ids: &'a [u32],
}

/// What was found at opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Slots that hold a block.
    pub num_blocks: usize,
    /// Records that were not as they were written. They are erased.
    pub num_damaged: usize,
    /// Why all that was there is gone; `None` if it is kept, or there was nothing.
    pub lost: Option<String>,
}

#[derive(Debug)]
pub struct Store {
    geometry: Geometry,
    records: Box<dyn DiskFile>,
    blocks: Box<dyn DiskFile>,
    next_sequence: AtomicU64,
    /// When the disk has refused last.
    refused_at: Mutex<Option<Instant>>,
    /// Normally [`REFUSED_PAUSE`].
    refused_pause: Duration,
    /// Held for as long as the store is open.
    _lock: Option<File>,
}

impl Store {
    /// Opens the store in `folder`, making what is not there. What its files hold is kept if it is of this geometry
    /// (the number of slots may differ), else lost; it is never an error.
    pub fn open(folder: &Path, geometry: Geometry) -> Result<(Self, Found), OpenError> {
        geometry.check()?;
        let files = folder::open(folder)?;
        let path = folder.join(RECORDS_FILE);
        let (mut store, found) =
            Self::open_on(Box::new(files.records), Box::new(files.blocks), geometry, &path)?;
        store._lock = Some(files.lock);
        Ok((store, found))
    }

    /// Opens a store that another process owns, without its lock and without changing anything. Fails if it is not of
    /// exactly this geometry. Blocks written here have sequence numbers like those that the owner gives at the same
    /// time: their order by age is approximate.
    ///
    /// Only slots that the owner leaves alone meanwhile may be written or erased here. If it does not, checksums find
    /// it: the block is lost, never a wrong one read.
    pub fn attach(folder: &Path, geometry: Geometry) -> Result<Self, OpenError> {
        geometry.check()?;
        let path = folder.join(RECORDS_FILE);
        let (records, blocks) = folder::open_there(folder)?;
        let fail = |source| OpenError::System { what: "read", path: path.clone(), source };
        let header = read_header(&records).map_err(fail)?;
        let unreadable = |what| OpenError::Unreadable { path: path.clone(), what };
        let there = Geometry::from_header(&header).map_err(unreadable)?;
        if there != geometry {
            return Err(unreadable(format!("is of a store of {there}, expected {geometry}")));
        }
        let mut newest = 0;
        each_slot(&records, &geometry, |_, slot| {
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
            _lock: None,
        })
    }

    /// [`Store::open`] on given files. `path`: what the file of records is called in messages.
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
            _lock: None,
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
        // In this order: without a header nothing else counts.
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

    /// Takes over what is there.
    fn keep(&self, header: &[u8]) -> io::Result<Found> {
        let g = &self.geometry;
        let num_block_bytes = self.blocks.num_bytes()?;
        let (mut found, mut damaged) = (Found::default(), Vec::new());
        let mut newest = 0;
        each_slot(&*self.records, g, |slot, what| {
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
        // A record that cannot be erased is found to be damaged again.
        damaged.into_iter().for_each(|slot| drop(self.erase(slot)));
        Ok(found)
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Writes a block of `bytes` into `slot`; what the slot held is gone. When it returns, the block is found again
    /// whatever becomes of this process. After a failure the slot holds nothing.
    ///
    /// Panics if the geometry has no such slot or no such block.
    pub fn write(&self, slot: u32, block: &NewBlock<'_>, bytes: &[u8]) -> Result<(), WriteError> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        assert!(bytes.len() as u64 == g.block_bytes, "a block of {} bytes", bytes.len());
        let num_tokens = block.token_ids.len();
        assert!((1..=g.block_size as usize).contains(&num_tokens), "a block of {num_tokens} tokens");
        // First, so that there is never a record beside another block's bytes.
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
            // Best effort: half a record is damaged, and a whole one is right.
            drop(self.erase(slot));
            refused(source)
        })
    }

    fn is_paused(&self) -> bool {
        let mut refused_at = self.refused_at.lock().expect("no panic while it is held");
        if refused_at.is_some_and(|at| at.elapsed() >= self.refused_pause) {
            *refused_at = None;
        }
        refused_at.is_some()
    }

    /// Replaces [`REFUSED_PAUSE`], so that a test does not wait for seconds.
    #[doc(hidden)]
    pub fn set_refused_pause(&mut self, pause: Duration) {
        self.refused_pause = pause;
    }

    /// Lets the disk be asked again at once after it has refused.
    pub fn end_pause(&self) {
        *self.refused_at.lock().expect("no panic while it is held") = None;
    }

    /// Lets the system begin to write the block of `slot` back.
    pub fn begin_write_back(&self, slot: u32) {
        self.blocks.begin_write_back(self.geometry.block_offset(slot), self.geometry.block_bytes);
    }

    /// Lets the system begin to read the block of `slot`.
    pub fn will_need(&self, slot: u32) {
        self.blocks.will_need(self.geometry.block_offset(slot), self.geometry.block_bytes);
    }

    /// Reads the block of `slot` into `bytes`, if it is the one with `key` and every bit is as it was written, and
    /// returns what its record says and its tokens. On an error `bytes` may be anything; a damaged block is erased.
    ///
    /// Panics as [`Store::write`].
    pub fn read(
        &self,
        slot: u32,
        key: BlockKey,
        bytes: &mut [u8],
    ) -> Result<(StoredBlock, Vec<u32>), ReadError> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        assert!(bytes.len() as u64 == g.block_bytes, "a block of {} bytes", bytes.len());
        let fail = |source| ReadError::Disk { slot, source };
        let damaged = |what| {
            // If the disk does not obey, it is found to be damaged again.
            drop(self.erase(slot));
            Err(ReadError::Damaged { slot, what })
        };
        let mut encoded = vec![0; g.record_bytes()];
        read_full(&*self.records, &mut encoded, g.record_offset(slot)).map_err(fail)?;
        let record = match Slot::decode(g, slot, &encoded) {
            Slot::Empty => return Err(ReadError::Empty { slot }),
            Slot::Damaged => return damaged("key and tokens"),
            Slot::Holds(record) => record,
        };
        if record.block.key != key {
            return Err(ReadError::OtherBlock { slot, found: record.block.key, expected: key });
        }
        let count = read_full(&*self.blocks, bytes, g.block_offset(slot)).map_err(fail)?;
        if count < bytes.len() || block_checksum(bytes) != record.checksum {
            return damaged("bytes");
        }
        Ok((record.block, record.token_ids))
    }

    /// Empties `slot`. Panics if there is no such slot.
    pub fn erase(&self, slot: u32) -> io::Result<()> {
        let g = &self.geometry;
        assert!(slot < g.num_slots, "slot {slot} of {}", g.num_slots);
        let mut record = vec![0; g.record_bytes()];
        // What cannot be read is taken for something. An empty slot is left alone, so that its file stays sparse.
        let is_read = read_full(&*self.records, &mut record, g.record_offset(slot)).is_ok();
        if is_read && record.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        record.fill(0);
        write_full(&*self.records, &record, g.record_offset(slot))
    }

    /// Returns when everything that was written would survive a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        // In this order: a record without its block is a miss that costs a read.
        self.blocks.sync()?;
        self.records.sync()
    }
}

fn unix_seconds() -> u64 {
    // A clock before 1970 is one that was never set.
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
