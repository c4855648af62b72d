//! Recounts the scheduler's state: for tests and for the simulator.

use std::collections::BTreeSet;

use crate::scheduler::{RUN_AHEAD, Scheduler};
use crate::sequence::Phase;

impl Scheduler {
    /// Panics where counts, lists and the KV index disagree. Cost: O(everything).
    pub fn check_invariants(&self) {
        self.fairness.check(self.sequences.iter().map(|(_, sequence)| {
            let runs = sequence.run.as_ref().is_some_and(|run| run.phase == Phase::Running);
            let num_unpaid = if runs { sequence.num_unpaid() } else { 0 };
            let waits = sequence.run.is_none();
            (sequence.tenant, waits, waits && sequence.first_start.is_none(), runs, num_unpaid)
        }));
        let Some(shard) = &self.shard else {
            assert!(self.running.is_empty() && self.num_leaving == 0, "nothing runs without a shard");
            assert_eq!(self.queue.num_waiting(), self.sequences.len(), "without a shard all wait");
            return;
        };
        shard.kv.check_invariants();
        assert!(shard.in_flight.len() <= RUN_AHEAD, "run-ahead is bounded");
        let (mut num_waiting, mut num_leaving, mut num_running, mut num_parked) = (0, 0, 0, 0);
        let (mut num_new, mut num_restoring, mut num_needs) = (0, 0, 0);
        let late: BTreeSet<_> = shard.restoring.late_blocks().map(|hold| hold.id()).collect();
        assert!(late.iter().all(|&block| shard.kv.is_held(block)), "what a late restore writes is reserved");
        for (key, sequence) in self.sequences.iter() {
            let Some(run) = &sequence.run else {
                num_waiting += 1;
                num_new += u32::from(sequence.first_start.is_none());
                assert_ne!(
                    sequence.wait.rank.is_some(),
                    sequence.wait.parked_on.is_some(),
                    "ready or parked"
                );
                if let Some(other) = sequence.wait.parked_on {
                    num_parked += 1;
                    let other = &self.sequences[other];
                    assert!(other.is_prefilling(), "who is waited for is computing its prefix");
                    assert!(
                        other.run().waiters.iter().any(|waiter| waiter.key == key),
                        "and knows who waits"
                    );
                }
                continue;
            };
            assert!(
                !sequence.constrained || sequence.allowed.is_none() || run.pending_samples == 0,
                "what may be sampled is known once the last sample is"
            );
            if let Some(step_id) = run.late_step_id {
                assert!(
                    sequence.constrained && run.phase != Phase::Ending,
                    "it awaits a mask that will come"
                );
                assert!(shard.in_flight.iter().any(|step| step.step_id == step_id), "and its step with it");
                assert!(sequence.awaits == (run.pending_samples == 1), "for the token that is known");
            }
            assert!(run.num_unsent_tokens == 0 || sequence.constrained, "others have only sampled tokens");
            num_needs += run.table.num_needed_parts() as u64;
            num_parked -= run.waiters.len() as i64;
            num_leaving += usize::from(run.phase != Phase::Running);
            num_running += usize::from(run.phase != Phase::Ending);
            assert_eq!(run.phase != Phase::Ending, self.running.contains(&key), "`running` lists who runs");
            let steps = shard.in_flight.iter().flat_map(|step| &step.chunks).filter(|chunk| chunk.key == key);
            let (num_steps, num_samples) =
                steps.fold((0, 0), |(steps, samples), chunk| (steps + 1, samples + u32::from(chunk.sample)));
            if let Some(restore) = &run.restore {
                assert_eq!(shard.restoring.key(restore.restore_id), Some(key), "a restore is known");
                assert_eq!(num_steps, 0, "who waits for the store computes nothing");
            }
            let num_waited = num_steps + u32::from(run.restore.is_some());
            assert_eq!(run.steps_in_flight, num_waited, "steps in flight");
            assert!(run.phase == Phase::Running || num_waited > 0, "who leaves waits for a step");
            num_restoring += usize::from(run.restore.is_some());
            if run.phase != Phase::Ending {
                assert_eq!(run.pending_samples, num_samples, "samples in flight");
            }
            assert!(run.acknowledged <= run.planned, "what is acknowledged was planned");
            assert!(run.acknowledged <= sequence.num_tokens(), "and its tokens are known");
            assert!(
                run.planned <= sequence.num_tokens() + run.pending_samples,
                "what is planned will be known"
            );
            let own = run.table.blocks().iter().map(|hold| hold.id());
            assert!(late.is_disjoint(&own.collect()), "what a late restore writes is nobody's");
            let num_blocks = run.table.blocks().len();
            assert!(num_blocks as u32 >= shard.blocks_for(run.planned), "a block for every position");
            assert!(
                run.table.num_indexed_blocks() as u32 * shard.limits.block_size <= run.acknowledged,
                "only acknowledged blocks are shared"
            );
        }
        num_needs += if shard.limits.windows.is_some() { shard.restoring.num_late_parts() as u64 } else { 0 };
        assert_eq!(
            num_needs,
            shard.kv.num_window_needs(),
            "window parts are needed by who runs, and late restores"
        );
        assert_eq!(num_restoring, shard.restoring.num_out(), "a restore has a sequence");
        assert_eq!(num_parked, 0, "who is parked is waited for once");
        assert_eq!(num_waiting, self.queue.num_waiting(), "waiting sequences");
        assert_eq!(num_new, self.queue.num_new(), "never started");
        assert_eq!(num_leaving, self.num_leaving, "leaving sequences");
        assert_eq!(num_running, self.running.len(), "running sequences");
        let is_ordered = self.running.is_sorted_by_key(|&key| self.sequences[key].order());
        assert!(is_ordered, "`running` is in running order");
        assert!(self.num_lent_places() <= self.max_running(), "no more run than may");
    }
}
