//! A store, whose slots are written, read and erased; `open.rs` opens it. Methods may be called from several threads at
//! once, except that a slot that is written or erased must not be used by another call.
//!
//! The process that holds the lock owns the store. Another process may attach to it and use the slots that the owner
//! leaves to it. For that reason nothing about a slot is cached here; its record is read each time.

mod open;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use trunkline_contract::BlockKey;

use crate::disk::{DiskFile, read_full, write_full};
use crate::error::{ReadError, SlotPart, WriteError};
use crate::layout::{Geometry, Record, Slot, StoredBlock, block_checksum};
use crate::neighbours::{Neighbours, Removed};
use crate::records::each_slot;

use open::Lock;

pub use open::Found;

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

impl Store {
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
