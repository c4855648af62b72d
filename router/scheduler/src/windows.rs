//! Window parts of those that run: what they let go, and what those that wait would need.

use trunkline_kv::PrefixHit;

use crate::scheduler::Scheduler;
use crate::sequence::{Phase, SequenceKey};

impl Scheduler {
    /// Lets go the window parts that no position still to be planned looks at. Only now, with a new plan: those planned
    /// before may look at them, and parts are dropped before anything else that a plan says. Cost: O(running).
    pub(crate) fn pass_windows(&mut self) {
        let Some(shard) = self.shard.as_mut().filter(|shard| shard.limits.windows.is_some()) else { return };
        for &key in &self.running {
            let run = self.sequences[key].run_mut();
            shard.kv.pass_window(&mut run.table, run.planned);
        }
    }

    /// True if a sequence with this hit, beside those that run, would soon want more window parts than there are,
    /// restored or not. Never if nobody needs any but restores that were given up: these leave enough for one.
    pub(crate) fn lacks_parts(&self, hit: &PrefixHit, num_tokens: u32) -> bool {
        let Some(shard) = &self.shard else { return false };
        let Some(windows) = shard.limits.windows else { return false };
        let most = windows.least_parts(shard.limits.block_size);
        let reserved = self.running.iter().map(|&key| {
            let sequence = &self.sequences[key];
            let run = sequence.run();
            if run.phase != Phase::Running || sequence.is_finishing(run) {
                return 0;
            }
            let soon = (shard.blocks_for(sequence.num_tokens()) + 1).min(most);
            soon.saturating_sub(run.table.num_needed_parts() as u32)
        });
        // A part of the hit that nobody needs now is one of those available, and is used.
        let own = (shard.blocks_for(num_tokens) + 1).min(most);
        let mut num_shared = shard.kv.num_shared_parts(hit);
        if !hit.stored().is_empty() {
            num_shared = num_shared.min(shard.kv.num_shared_parts(&hit.clone().without_stored()));
        }
        reserved.sum::<u32>() + own.saturating_sub(num_shared) > shard.kv.available_parts()
    }

    /// What was to be restored is not there. Where layers have windows, blocks before it may lack the parts that are
    /// looked at now: the sequence is looked up anew.
    pub(crate) fn resume_without_restored(&mut self, key: SequenceKey) {
        let has_windows = self.shard.as_ref().is_some_and(|shard| shard.limits.windows.is_some());
        if has_windows && self.sequences[key].run().phase == Phase::Running {
            self.preempt(key);
        }
    }
}
