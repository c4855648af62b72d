//! Restores that are out, and how long anybody waits for them.
//!
//! ```text
//! planned ──result of its step──▶ until ──time is over──▶ overdue ──steps of before are told──▶ given up, late
//!    └──────────────┴───────────────┴── outcome ──▶ gone                                           │ outcome
//!                                                                                                  ▼ gone
//! ```
//!
//! A disk may hang, and nobody can take a read back from it. So a restore that takes much longer than predicted is
//! given up: its sequence gets other blocks and computes. Those that the late read may still write stay reserved until
//! its outcome comes, and meanwhile no other restore is begun.

use std::collections::BTreeMap;

use trunkline_kv::{BlockHold, RestoredBlock};

use crate::estimate::Throughput;
use crate::event::Millis;
use crate::scheduler::{Scheduler, Shard};
use crate::sequence::{Phase, SequenceKey};

/// All restores of a shard whose outcomes have not come.
#[derive(Debug, Default)]
pub(crate) struct Restoring {
    last_id: u64,
    /// Somebody waits for them.
    out: BTreeMap<u64, RestoreOut>,
    /// Nobody does any more.
    late: BTreeMap<u64, LateRestore>,
}

#[derive(Debug)]
struct RestoreOut {
    key: SequenceKey,
    num_blocks: u32,
    wait: RestoreWait,
}

#[derive(Clone, Copy, Debug)]
enum RestoreWait {
    /// The step that begins it is in flight.
    Planned { step_id: u64 },
    /// It is under way, and worth waiting for until then.
    Until(Millis),
    /// The time is over. Its outcome may come with a step that was planned by then.
    Overdue { last_step_id: u64 },
}

/// A restore that was given up.
#[derive(Debug)]
pub(crate) struct LateRestore {
    pub(crate) blocks: Vec<RestoredBlock>,
    /// Its blocks: nobody else gets them while it may write them.
    pub(crate) holds: Vec<BlockHold>,
}

fn num_windowed(blocks: &[RestoredBlock]) -> usize {
    blocks.iter().filter(|block| !block.base_only).count()
}

impl Restoring {
    /// A restore of so many blocks begins with a step. Returns its id.
    pub(crate) fn begin(&mut self, key: SequenceKey, num_blocks: u32, step_id: u64) -> u64 {
        self.last_id += 1;
        self.out.insert(self.last_id, RestoreOut { key, num_blocks, wait: RestoreWait::Planned { step_id } });
        self.last_id
    }

    /// A step's result is there: so its restores are under way.
    pub(crate) fn step_done(&mut self, step_id: u64, now: Millis, throughput: &Throughput, block_size: u32) {
        // They wait for each other.
        let num_ahead: u32 = self.out.values().map(|restore| restore.num_blocks).sum();
        for restore in self.out.values_mut() {
            if matches!(restore.wait, RestoreWait::Planned { step_id: planned } if planned == step_id) {
                let num_tokens = restore.num_blocks * block_size;
                let patience_ms = throughput.restore_patience_ms(num_ahead, num_tokens);
                restore.wait = RestoreWait::Until(now.plus(patience_ms));
            }
        }
    }

    /// The outcome of a restore that somebody waits for is there: whose it is.
    pub(crate) fn end(&mut self, restore_id: u64) -> Option<SequenceKey> {
        self.out.remove(&restore_id).map(|restore| restore.key)
    }

    /// The outcome of one that was given up is there.
    pub(crate) fn end_late(&mut self, restore_id: u64) -> Option<LateRestore> {
        self.late.remove(&restore_id)
    }

    /// Whose restore it is, if somebody waits for it.
    pub(crate) fn key(&self, restore_id: u64) -> Option<SequenceKey> {
        self.out.get(&restore_id).map(|restore| restore.key)
    }

    /// Restores that somebody waits for.
    pub(crate) fn num_out(&self) -> usize {
        self.out.len()
    }

    /// True if the store has not answered in time, and not yet since.
    pub(crate) fn is_late(&self) -> bool {
        !self.late.is_empty()
    }

    /// Window parts that they may still write.
    pub(crate) fn num_late_parts(&self) -> usize {
        self.late.values().map(|late| num_windowed(&late.blocks)).sum()
    }

    /// Blocks that restores which were given up may still write.
    pub(crate) fn late_blocks(&self) -> impl Iterator<Item = &BlockHold> {
        self.late.values().flat_map(|late| &late.holds)
    }

    /// When the next one is overdue.
    pub(crate) fn next_deadline(&self) -> Option<Millis> {
        let deadlines = self.out.values().filter_map(|restore| match restore.wait {
            RestoreWait::Until(deadline) => Some(deadline),
            RestoreWait::Planned { .. } | RestoreWait::Overdue { .. } => None,
        });
        deadlines.min()
    }

    /// Those that nobody need wait for any longer: their time is over, and all steps that were planned by then have
    /// said what they had to say. `first_in_flight`: the oldest step whose result is out.
    fn overdue(&mut self, now: Millis, last_step_id: u64, first_in_flight: Option<u64>) -> Vec<u64> {
        let mut overdue = Vec::new();
        for (&restore_id, restore) in &mut self.out {
            if matches!(restore.wait, RestoreWait::Until(deadline) if deadline <= now) {
                restore.wait = RestoreWait::Overdue { last_step_id };
            }
            if let RestoreWait::Overdue { last_step_id } = restore.wait
                && first_in_flight.is_none_or(|first| first > last_step_id)
            {
                overdue.push(restore_id);
            }
        }
        overdue
    }
}

impl Scheduler {
    /// Gives up restores that take too long.
    pub(crate) fn give_up_restores(&mut self, now: Millis) {
        let Some(shard) = self.shard.as_mut().filter(|shard| shard.restoring.num_out() > 0) else { return };
        let first_in_flight = shard.in_flight.front().map(|step| step.step_id);
        for restore_id in shard.restoring.overdue(now, shard.last_step_id, first_in_flight) {
            if self.can_do_without(restore_id) {
                self.give_up_restore(restore_id);
            }
        }
    }

    /// False if the pool is too small for the sequence beside the blocks that late restores may write: it would only
    /// keep all others waiting.
    fn can_do_without(&self, restore_id: u64) -> bool {
        let shard = self.shard.as_ref().expect("a restore has a shard");
        let sequence = &self.sequences[shard.restoring.out[&restore_id].key];
        if let (Some(windows), Some(restore)) = (shard.limits.windows, &sequence.run().restore) {
            let num_parts = shard.restoring.num_late_parts() + num_windowed(&restore.blocks);
            if num_parts as u32 + windows.least_parts(shard.limits.block_size) > windows.num_parts {
                return false;
            }
        }
        if sequence.run().phase == Phase::Ending {
            return true;
        }
        let num_late =
            shard.restoring.late_blocks().count() as u32 + shard.restoring.out[&restore_id].num_blocks;
        num_late + shard.blocks_for(sequence.num_tokens()) <= shard.limits.num_blocks
    }

    fn give_up_restore(&mut self, restore_id: u64) {
        let Some(shard) = &mut self.shard else { return };
        let key = shard.restoring.end(restore_id).expect("it is out");
        let run = self.sequences[key].run_mut();
        let restore = run.restore.take().expect("who is restored waits for it");
        assert_eq!(restore.restore_id, restore_id, "one restore of a sequence at a time");
        run.steps_in_flight -= 1;
        let holds = shard.kv.detach_restored(&mut run.table, &restore.blocks);
        run.planned -= restore.blocks.len() as u32 * shard.limits.block_size;
        run.acknowledged = run.planned;
        shard.restoring.late.insert(restore_id, LateRestore { blocks: restore.blocks, holds });
        self.counters.restores_given_up += 1;
        self.resume_without_restored(key);
        self.release_if_idle(key);
    }
}

impl Shard {
    /// The outcome of a restore that was given up: its blocks are free. False if there is none.
    pub(crate) fn take_late_restore(&mut self, restore_id: u64, num_blocks: usize) -> bool {
        let Some(late) = self.restoring.end_late(restore_id) else { return false };
        self.kv.end_late_restore(&late.blocks, num_blocks);
        true
    }
}
