//! Which block lies in which slot: all records, read at once.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::disk::{DiskFile, read_full};
use crate::error::OpenError;
use crate::folder::RECORDS_FILE;
use crate::layout::{Geometry, HEADER_BYTES, Slot, StoredBlock};

/// Read from the file at once.
const PIECE_BYTES: usize = 1 << 20;

/// What the records of a store say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// Sizes of the store.
    pub geometry: Geometry,
    /// Slots that hold a block, in their order. Whether its bytes are whole shows when it is read.
    pub blocks: Vec<StoredBlock>,
    /// Records that are not as they were written: their slots hold nothing.
    pub num_damaged: usize,
}

/// Reads the records of the store in `folder`, which a shard may have open: what it writes meanwhile may be missing.
/// Takes no lock and changes nothing. Cost: some milliseconds for 13,000 slots in the page cache.
pub fn records(folder: &Path) -> Result<Records, OpenError> {
    let path = folder.join(RECORDS_FILE);
    let fail = |source| OpenError::System { what: "read", path: path.clone(), source };
    let file = File::open(&path).map_err(fail)?;
    let header = read_header(&file).map_err(fail)?;
    let geometry =
        Geometry::from_header(&header).map_err(|what| OpenError::Unreadable { path: path.clone(), what })?;
    let mut found = Records { geometry, blocks: Vec::new(), num_damaged: 0 };
    each_slot(&file, &found.geometry, |_, slot| match slot {
        Slot::Empty => {}
        Slot::Damaged => found.num_damaged += 1,
        Slot::Holds(record) => found.blocks.push(record.block),
    })
    .map_err(fail)?;
    Ok(found)
}

/// The header's bytes, or as many as there are.
pub(crate) fn read_header(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let mut header = vec![0; HEADER_BYTES];
    let count = read_full(file, &mut header, 0)?;
    header.truncate(count);
    Ok(header)
}

/// Hands over the slots of a store in their order; those that the file has no record of are not.
pub(crate) fn each_slot(
    file: &dyn DiskFile,
    geometry: &Geometry,
    mut take: impl FnMut(u32, Slot),
) -> io::Result<()> {
    let record_bytes = geometry.record_bytes();
    let at_once = (PIECE_BYTES / record_bytes).max(1) as u32;
    let mut piece = vec![0; at_once as usize * record_bytes];
    for first in (0..geometry.num_slots).step_by(at_once as usize) {
        let wanted = at_once.min(geometry.num_slots - first) as usize * record_bytes;
        let count = read_full(file, &mut piece[..wanted], geometry.record_offset(first))?;
        for (slot, bytes) in (first..).zip(piece[..count].chunks_exact(record_bytes)) {
            take(slot, Slot::decode(geometry, slot, bytes));
        }
        if count < wanted {
            break;
        }
    }
    Ok(())
}
