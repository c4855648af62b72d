//! Reads the records of a store.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::disk::{DiskFile, read_full};
use crate::error::OpenError;
use crate::folder::{RECORDS_FILE, open_to_read};
use crate::layout::{Geometry, HEADER_BYTES, Slot, StoredBlock};

const PIECE_BYTES: usize = 1 << 20;

/// The contents of a store according to its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    pub geometry: Geometry,
    /// The blocks by ascending slot. Their bytes have not been verified; that happens when they are read.
    pub blocks: Vec<StoredBlock>,
    /// The slots of damaged records, ascending. They count as empty.
    pub damaged_slots: Vec<u32>,
}

/// Reads the records of the store in `folder` without a lock and without changing anything.
///
/// A shard may have the store open; records that it writes meanwhile may be missing. Cost: some milliseconds for
/// 13,000 slots in the page cache.
pub fn records(folder: &Path) -> Result<Records, OpenError> {
    let path = folder.join(RECORDS_FILE);
    let fail = |source| OpenError::System { what: "read", path: path.clone(), source };
    let file = open_to_read(folder, RECORDS_FILE)?;
    let header = read_header(&file).map_err(fail)?;
    let geometry =
        Geometry::from_header(&header).map_err(|what| OpenError::Unreadable { path: path.clone(), what })?;
    let mut found = Records { geometry, blocks: Vec::new(), damaged_slots: Vec::new() };
    each_slot(&file, &found.geometry, 0..found.geometry.num_slots, |index, slot| match slot {
        Slot::Empty => {}
        Slot::Damaged => found.damaged_slots.push(index),
        Slot::Holds(record) => found.blocks.push(record.block),
    })
    .map_err(fail)?;
    Ok(found)
}

/// Reads the header's bytes, or as many as the file has.
pub(crate) fn read_header(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let mut header = vec![0; HEADER_BYTES];
    let count = read_full(file, &mut header, 0)?;
    header.truncate(count);
    Ok(header)
}

/// Calls `take` for each of the `slots` in ascending order. Slots behind the end of the file are skipped, and one that
/// the end cuts is damaged.
pub(crate) fn each_slot(
    file: &dyn DiskFile,
    geometry: &Geometry,
    slots: Range<u32>,
    mut take: impl FnMut(u32, Slot),
) -> io::Result<()> {
    let record_bytes = geometry.record_bytes();
    let at_once = (PIECE_BYTES / record_bytes).max(1) as u32;
    let mut piece = vec![0; at_once.min(slots.len() as u32) as usize * record_bytes];
    for first in slots.clone().step_by(at_once as usize) {
        let wanted = at_once.min(slots.end - first) as usize * record_bytes;
        let count = read_full(file, &mut piece[..wanted], geometry.record_offset(first))?;
        for (slot, bytes) in (first..).zip(piece[..count].chunks_exact(record_bytes)) {
            take(slot, Slot::decode(geometry, slot, bytes));
        }
        if count % record_bytes != 0 {
            take(first + (count / record_bytes) as u32, Slot::Damaged);
        }
        if count < wanted {
            break;
        }
    }
    Ok(())
}
