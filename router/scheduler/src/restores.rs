//! The restores in flight, and how long sequences wait for them.
//!
//! ```text
//! planned ──result of its step──▶ until ──deadline──▶ overdue ──earlier steps are answered──▶ abandoned
//!    └──────────────┴───────────────┴── outcome ──▶ done                                         │ outcome
//!                                                                                                ▼ done
//! ```
//!
//! A disk may hang, and a read that has begun cannot be taken back. A restore that takes much longer than predicted is
//! therefore abandoned: its sequence gets other blocks and computes. The blocks that the read may still write stay
//! reserved until its outcome arrives, and no other restore begins meanwhile.

use std::collections::BTreeMap;

use trunkline_kv::{BlockHold, RestoredBlock};

use crate::estimate::Throughput;
use crate::event::Millis;
use crate::sequence::SequenceKey;
use crate::shared_store::StoreSource;

/// All restores of a shard whose outcomes have not arrived.
#[derive(Debug, Default)]
pub(crate) struct Restores {
    last_id: u64,
    /// Restores that a sequence waits for.
    awaited: BTreeMap<u64, AwaitedRestore>,
    abandoned: BTreeMap<u64, AbandonedRestore>,
}

#[derive(Debug)]
struct AwaitedRestore {
    key: SequenceKey,
    num_blocks: u32,
    wait: RestoreWait,
}

#[derive(Clone, Copy, Debug)]
enum RestoreWait {
    /// The step that begins it is in flight.
    Planned { step_id: u64 },
    /// The read has begun, and is worth waiting for until this moment.
    Until(Millis),
    /// The time is over. The outcome may still arrive with a step that was planned by then.
    Overdue { last_step_id: u64 },
}

/// A restore that no sequence waits for any more.
#[derive(Debug)]
pub(crate) struct AbandonedRestore {
    pub(crate) blocks: Vec<RestoredBlock>,
    /// The store of another lane that has the blocks; none if it is the own one.
    pub(crate) source: Option<StoreSource>,
    /// Keeps the blocks reserved while the read may write them.
    pub(crate) holds: Vec<BlockHold>,
}

impl Restores {
    /// Adds a restore of `num_blocks` blocks that begins with the given step, and returns its id.
    pub(crate) fn begin(&mut self, key: SequenceKey, num_blocks: u32, step_id: u64) -> u64 {
        self.last_id += 1;
        let wait = RestoreWait::Planned { step_id };
        self.awaited.insert(self.last_id, AwaitedRestore { key, num_blocks, wait });
        self.last_id
    }

    /// Sets the deadlines of the restores that began with a step, whose result has arrived.
    pub(crate) fn begin_waiting(
        &mut self,
        step_id: u64,
        now: Millis,
        throughput: &Throughput,
        block_size: u32,
    ) {
        // Reads are done one after the other.
        let num_ahead: u32 = self.awaited.values().map(|restore| restore.num_blocks).sum();
        for restore in self.awaited.values_mut() {
            if matches!(restore.wait, RestoreWait::Planned { step_id: planned } if planned == step_id) {
                let num_tokens = restore.num_blocks * block_size;
                let patience_ms = throughput.restore_patience_ms(num_ahead, num_tokens);
                restore.wait = RestoreWait::Until(now.plus(patience_ms));
            }
        }
    }

    /// Removes a restore that a sequence waits for, and returns the sequence.
    pub(crate) fn end(&mut self, restore_id: u64) -> Option<SequenceKey> {
        self.awaited.remove(&restore_id).map(|restore| restore.key)
    }

    /// Keeps the blocks of a restore reserved that no sequence waits for any more.
    pub(crate) fn abandon(&mut self, restore_id: u64, restore: AbandonedRestore) {
        self.abandoned.insert(restore_id, restore);
    }

    /// Removes an abandoned restore whose outcome has arrived.
    pub(crate) fn end_abandoned(&mut self, restore_id: u64) -> Option<AbandonedRestore> {
        self.abandoned.remove(&restore_id)
    }

    /// The sequence that waits for a restore.
    pub(crate) fn key(&self, restore_id: u64) -> Option<SequenceKey> {
        self.awaited.get(&restore_id).map(|restore| restore.key)
    }

    /// The sequences that wait for restores.
    pub(crate) fn awaiting(&self) -> impl Iterator<Item = SequenceKey> {
        self.awaited.values().map(|restore| restore.key)
    }

    /// The number of restores that sequences wait for.
    pub(crate) fn num_awaited(&self) -> usize {
        self.awaited.len()
    }

    /// Returns true while the outcome of an abandoned restore is missing.
    pub(crate) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Window parts that abandoned restores may still write.
    pub(crate) fn num_abandoned_parts(&self) -> usize {
        self.abandoned.values().map(|restore| num_windowed(&restore.blocks)).sum()
    }

    /// The restores that may still write their blocks, although no sequence waits for them.
    pub(crate) fn abandoned(&self) -> impl Iterator<Item = &AbandonedRestore> {
        self.abandoned.values()
    }

    /// Blocks that abandoned restores may still write.
    pub(crate) fn abandoned_blocks(&self) -> impl Iterator<Item = &BlockHold> {
        self.abandoned.values().flat_map(|restore| &restore.holds)
    }

    /// The earliest moment at which a restore becomes overdue.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        let deadlines = self.awaited.values().filter_map(|restore| match restore.wait {
            RestoreWait::Until(deadline) => Some(deadline),
            RestoreWait::Planned { .. } | RestoreWait::Overdue { .. } => None,
        });
        deadlines.min()
    }

    /// The restores that may be abandoned: their deadlines have passed, and all steps that were planned by then are
    /// answered. `oldest_in_flight` is the oldest step without an answer.
    pub(crate) fn overdue(
        &mut self,
        now: Millis,
        last_step_id: u64,
        oldest_in_flight: Option<u64>,
    ) -> Vec<u64> {
        let mut overdue = Vec::new();
        for (&restore_id, restore) in &mut self.awaited {
            if matches!(restore.wait, RestoreWait::Until(deadline) if deadline <= now) {
                restore.wait = RestoreWait::Overdue { last_step_id };
            }
            if let RestoreWait::Overdue { last_step_id } = restore.wait
                && oldest_in_flight.is_none_or(|oldest| oldest > last_step_id)
            {
                overdue.push(restore_id);
            }
        }
        overdue
    }
}

/// The number of these blocks that come with their window parts.
pub(crate) fn num_windowed(blocks: &[RestoredBlock]) -> usize {
    blocks.iter().filter(|block| !block.base_only).count()
}
