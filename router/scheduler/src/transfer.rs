//! Blocks between the device and the store: which are worth reading, what is written, and what became of it.

use trunkline_kv::{BlockTable, PrefixHit};

use crate::plan::{BlockStore, Restore, RestoreOutcome, Transfers};
use crate::scheduler::{Scheduler, Shard};
use crate::sequence::{Phase, RunRestore, SequenceKey};

/// Most blocks of one sequence that a step is told to store: more would make the step wait for the disk.
/// (Not where layers have windows: a block whose window part is gone cannot be stored any more.)
const MAX_STORES_PER_CHUNK: usize = 16;

impl Shard {
    /// Begins to store the blocks that are full when `num_positions` are computed.
    pub(crate) fn begin_stores(&mut self, table: &mut BlockTable, num_positions: u32) -> Vec<BlockStore> {
        let num_full_blocks = (num_positions / self.limits.block_size) as usize;
        let next = std::iter::from_fn(|| self.kv.begin_store(table, num_full_blocks));
        let most = if self.limits.windows.is_some() { usize::MAX } else { MAX_STORES_PER_CHUNK };
        next.take(most).map(|(block_idx, slot)| BlockStore { block_index: block_idx as u32, slot }).collect()
    }

    /// Begins to read what a hit found in the store into the blocks of a table that has grown by them.
    pub(crate) fn begin_restore(
        &mut self,
        key: SequenceKey,
        table: &mut BlockTable,
        hit: &PrefixHit,
    ) -> Option<RunRestore> {
        if hit.stored().is_empty() {
            return None;
        }
        let blocks = self.kv.begin_restore(table, hit);
        // It goes with the plan that is being made.
        let restore_id = self.restoring.begin(key, blocks.len() as u32, self.last_step_id + 1);
        self.restores.push(Restore { restore_id, blocks: blocks.clone() });
        Some(RunRestore { restore_id, blocks })
    }
}

impl Scheduler {
    /// The hit with what is to be read from the store, or without it where computing is quicker.
    pub(crate) fn worth_restoring(&mut self, hit: PrefixHit) -> PrefixHit {
        if hit.stored().is_empty() {
            return hit;
        }
        let num_computed = hit.num_stored_tokens() - hit.partial().map_or(0, |(_, num_tokens)| num_tokens);
        let is_late = self.shard.as_ref().is_some_and(|shard| shard.restoring.is_late());
        if !is_late && self.throughput.is_restore_quicker(hit.stored().len() as u32, num_computed) {
            return hit.without_partial();
        }
        self.counters.restores_declined += 1;
        hit.without_stored()
    }

    /// What became of transfers.
    pub(crate) fn take_transfers(&mut self, transfers: &Transfers) {
        for outcome in &transfers.stores {
            let Some(shard) = &mut self.shard else { continue };
            let is_expected = shard.kv.end_store(outcome.slot, outcome.is_stored);
            self.counters.unexpected_results += u64::from(!is_expected);
            self.counters.stored_blocks += u64::from(is_expected && outcome.is_stored);
            self.counters.store_failures += u64::from(is_expected && !outcome.is_stored);
        }
        for outcome in &transfers.restores {
            self.take_restore(outcome);
        }
    }

    fn take_restore(&mut self, outcome: &RestoreOutcome) {
        let Some(shard) = &mut self.shard else { return };
        let Some(key) = shard.restoring.end(outcome.restore_id) else {
            let is_expected = shard.take_late_restore(outcome.restore_id, outcome.num_blocks as usize);
            self.counters.unexpected_results += u64::from(!is_expected);
            if is_expected {
                self.throughput.add_restore(outcome.num_blocks, outcome.time_us);
            }
            return;
        };
        let run = self.sequences[key].run_mut();
        let restore = run.restore.take().expect("who is restored waits for it");
        assert_eq!(restore.restore_id, outcome.restore_id, "one restore of a sequence at a time");
        run.steps_in_flight -= 1;
        let num_good = (outcome.num_blocks as usize).min(restore.blocks.len());
        shard.kv.end_restore(&mut run.table, &restore.blocks, num_good);
        let num_bad = (restore.blocks.len() - num_good) as u32;
        run.planned -= num_bad * shard.limits.block_size;
        run.acknowledged = run.planned;
        self.throughput.add_restore(num_good as u32, outcome.time_us);
        self.counters.restored_blocks += num_good as u64;
        self.counters.restore_failures += u64::from(num_bad > 0);
        if run.phase == Phase::Running {
            self.index(key);
        }
        if num_bad > 0 {
            self.resume_without_restored(key);
        }
        self.release_if_idle(key);
    }
}
