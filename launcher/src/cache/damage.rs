//! Finds damaged slots without changing anything.

use std::path::{Path, PathBuf};

use trunkline_store::{BlockKey, ReadError, Records, SlotPart, Store};

use super::CacheError;

/// A slot whose content does not match its checksum.
pub(crate) struct Damage {
    pub slot: u32,
    /// The damaged block; `None` if the record is damaged.
    pub key: Option<BlockKey>,
    pub file: PathBuf,
    pub offset: u64,
}

/// Reads all blocks of the store in `dir` and returns the damaged slots in ascending order.
pub(crate) fn find(dir: &Path, records: &Records) -> Result<Vec<Damage>, CacheError> {
    let geometry = &records.geometry;
    let open = Store::attach_to_read(dir, geometry.clone())?;
    let mut bytes = vec![0; geometry.block_bytes as usize];
    let mut damaged_part = |slot| match open.look(slot, &mut bytes) {
        Ok(_) | Err(ReadError::Empty { .. }) => Ok(None),
        Err(ReadError::Damaged { part, .. }) => Ok(Some(part)),
        Err(error) => Err(error),
    };
    let blocks = records.blocks.iter().map(|block| (block.slot, Some(block.key)));
    let damaged_records = records.damaged_slots.iter().map(|slot| (*slot, None));
    let mut found = Vec::new();
    for (slot, key) in blocks.chain(damaged_records) {
        // A slot that a server is writing looks damaged once, but not twice.
        if damaged_part(slot)?.is_none() {
            continue;
        }
        let (key, name, offset) = match damaged_part(slot)? {
            None => continue,
            Some(SlotPart::Record) => (None, "records", geometry.record_offset(slot)),
            Some(SlotPart::Block) => (key, "blocks", geometry.block_offset(slot)),
        };
        found.push(Damage { slot, key, file: dir.join(name), offset });
    }
    found.sort_by_key(|damage| damage.slot);
    Ok(found)
}
