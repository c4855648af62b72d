//! A fake store that outlives its shards. A block is stored when its outcome is reported, or by chance after a kill.
//! Some writes fail, and some blocks become damaged.

use trunkline_scheduler::{
    BlockKey, LaneId, Millis, Restore, RestoreOutcome, SlotId, StoreContents, StoredBlock,
};

use super::rng::Rng;

/// The chances of faults, once in so many times and never for 0, and the time of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct StorePlan {
    pub num_slots: u32,
    pub write_fault: u64,
    pub broken_block: u64,
    pub max_delay_ms: u64,
    /// The chance of a read that hangs for up to `MAX_HANG_MS`.
    pub hung_read: u64,
    /// Writes fail from the first moment to the second, as on a full disk.
    pub full: Option<(Millis, Millis)>,
    /// From this moment on all reads and writes fail, as when the store is handed to another process.
    pub lost_at: Option<Millis>,
    /// Every so many milliseconds a user removes a node, or a prompt's blocks come from the tier below; never for 0.
    pub visit_ms: u64,
}

/// Several times as long as a sequence waits for a read.
const MAX_HANG_MS: u64 = 10_000;

impl StorePlan {
    /// Returns the time of a read.
    pub fn read_ms(&self, rng: &mut Rng) -> u64 {
        let hang_ms = if rng.once_in(self.hung_read) { rng.range(0, MAX_HANG_MS) } else { 0 };
        hang_ms + rng.range(0, self.max_delay_ms)
    }

    pub fn is_lost(&self, now: Millis) -> bool {
        self.lost_at.is_some_and(|at| at <= now)
    }

    fn is_full(&self, now: Millis) -> bool {
        self.full.is_some_and(|(from, to)| (from..to).contains(&now))
    }
}

/// A block in the store.
#[derive(Clone, Debug)]
pub struct Record {
    pub key: BlockKey,
    pub parent: Option<BlockKey>,
    pub depth: u32,
    /// The hashes that stand for K and V.
    pub hashes: Vec<u64>,
}

/// A block that is being written.
#[derive(Clone, Debug)]
pub struct Write {
    pub slot: u32,
    pub record: Record,
    /// True if the chunk that filled it did not fail.
    pub is_good: bool,
}

pub struct FakeStore {
    pub plan: StorePlan,
    /// Tokens per block. A store is replaced when this changes.
    pub block_size: u32,
    slots: Vec<Option<(u64, Record)>>,
    is_busy: Vec<bool>,
    sequence: u64,
    /// Counts the shards that have opened the store.
    pub opening: u64,
}

impl FakeStore {
    pub fn new(plan: StorePlan, block_size: u32) -> Self {
        let num_slots = plan.num_slots as usize;
        Self {
            plan,
            block_size,
            slots: vec![None; num_slots],
            is_busy: vec![false; num_slots],
            sequence: 0,
            opening: 0,
        }
    }

    /// Returns the contents that a starting shard finds.
    pub fn contents(&mut self, lane: LaneId) -> StoreContents {
        self.is_busy.fill(false);
        self.opening += 1;
        let blocks = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let (sequence, record) = slot.as_ref()?;
            Some(StoredBlock {
                slot: SlotId(index as u32),
                key: record.key,
                parent: record.parent,
                depth: record.depth,
                sequence: *sequence,
            })
        });
        StoreContents {
            num_slots: self.plan.num_slots,
            blocks: blocks.collect(),
            is_in_memory: false,
            folder: Some(lane.0.to_string().into()),
            reads_others: true,
        }
    }

    pub fn discard(&mut self, slot: u32) {
        assert!(!self.is_busy[slot as usize], "a slot in a transfer is not emptied");
        self.slots[slot as usize] = None;
    }

    /// Begins to overwrite a slot, whose content is lost.
    pub fn begin_write(&mut self, slot: u32) {
        let is_busy = std::mem::replace(&mut self.is_busy[slot as usize], true);
        assert!(!is_busy, "a slot is in one transfer");
        self.slots[slot as usize] = None;
    }

    /// Ends a write, and returns true if the block is stored.
    pub fn end_write(&mut self, write: Write, now: Millis, rng: &mut Rng) -> bool {
        self.is_busy[write.slot as usize] = false;
        let is_refused = self.plan.is_full(now) || self.plan.is_lost(now);
        let is_stored = write.is_good && !rng.once_in(self.plan.write_fault) && !is_refused;
        if is_stored {
            self.sequence += 1;
            self.slots[write.slot as usize] = Some((self.sequence, write.record));
        }
        is_stored
    }

    /// Reads blocks, and returns them with the outcome that the shard reports. The read was planned in an `opening` of
    /// the store. In a later one, the slots may be written or hold other blocks.
    pub fn read(
        &mut self,
        restore: &Restore,
        opening: u64,
        now: Millis,
        rng: &mut Rng,
    ) -> (Vec<(u32, Vec<u64>)>, RestoreOutcome) {
        let mut read = Vec::new();
        for block in restore.blocks.iter().filter(|_| !self.plan.is_lost(now)) {
            let is_current = opening == self.opening;
            let is_busy = self.is_busy[block.slot as usize];
            assert!(!is_current || !is_busy, "a slot that is read is not written");
            if rng.once_in(self.plan.broken_block) {
                if !restore.store_folder.is_empty() {
                    break; // The store's own shard finds the damage later.
                }
                self.slots[block.slot as usize] = None;
            }
            // Another read may have found the damage before.
            let Some((_, record)) = &self.slots[block.slot as usize] else { break };
            let is_same = record.key.as_bytes() == &block.key[..];
            assert!(is_same || !is_current, "a slot that is to be read keeps its block");
            if !is_same || is_busy {
                break;
            }
            read.push((block.block_id, record.hashes.clone()));
        }
        let outcome = RestoreOutcome {
            restore_id: restore.restore_id,
            num_blocks: read.len() as u32,
            time_us: 50 * restore.blocks.len() as u64,
        };
        (read, outcome)
    }
}
