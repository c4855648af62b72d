//! How a sequence moves between queue, run and end.
//!
//! ```text
//! Submit ──▶ waiting ──admit──▶ running ──end──▶ ending ──last step acknowledged──▶ gone
//!               ▲                  │
//!               └──── last step ── preempting
//! ```

use crate::event::{EndReason, Millis, Priority, Update};
use crate::scheduler::Scheduler;
use crate::sequence::{Phase, Sequence, SequenceKey, Wait};

impl Scheduler {
    /// Puts a sequence that has no run in the queue.
    pub(crate) fn enter_queue(&mut self, key: SequenceKey) {
        let (rank, num_uncached_tokens) = self.rank(key);
        let sequence = &mut self.sequences[key];
        sequence.wait = Wait { rank: Some(rank), num_uncached_tokens, ..Wait::default() };
        let is_new = sequence.first_start.is_none();
        self.fairness.begin_waiting(rank.tenant, is_new, num_uncached_tokens);
        let tenant_rank = self.fairness.rank(rank.tenant);
        self.queue.enter(rank, tenant_rank, key, is_new, num_uncached_tokens);
    }

    /// Takes a waiting sequence out of the queue.
    pub(crate) fn leave_queue(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        let wait = std::mem::take(&mut sequence.wait);
        let is_new = sequence.first_start.is_none();
        self.fairness.end_waiting(sequence.tenant, is_new, wait.num_uncached_tokens);
        self.queue.leave(wait.rank, is_new, wait.num_uncached_tokens);
        if let Some(other) = wait.parked_on
            && let Some(run) = &mut self.sequences[other].run
        {
            run.waiters.retain(|waiter| waiter.key != key);
        }
    }

    /// Moves those that have waited in a class for longer than anybody should into the one above.
    pub(crate) fn promote(&mut self) {
        let Some(limit) = self.now.0.checked_sub(self.config.class_patience_ms) else { return };
        for (priority, above) in Priority::ALL.into_iter().filter_map(|class| Some((class, class.above()?))) {
            while let Some(key) = self.queue.waiting_since(priority, Millis(limit)) {
                self.leave_queue(key);
                let sequence = &mut self.sequences[key];
                sequence.priority = above;
                sequence.waiting_since = self.now;
                self.enter_queue(key);
                self.counters.promotions += 1;
            }
        }
    }

    /// Removes a sequence that neither waits nor runs.
    pub(crate) fn forget(&mut self, key: SequenceKey) -> Sequence {
        let sequence = self.sequences.remove(key);
        self.fairness.leave(sequence.tenant);
        if let Some(deadline) = sequence.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        sequence
    }

    /// The final update of a sequence. It goes at once, or with its steps in flight.
    pub(crate) fn end(&mut self, key: SequenceKey, reason: EndReason, updates: &mut Vec<Update>) {
        self.cancel_late(key);
        let sequence = &mut self.sequences[key];
        updates.push(Update::Ended { id: sequence.id, reason, usage: sequence.usage() });
        if let Some(deadline) = sequence.deadline.take() {
            self.deadlines.remove(&(deadline, key));
        }
        let Some(run) = &mut sequence.run else {
            self.leave_queue(key);
            self.forget(key);
            return;
        };
        let was_leaving = run.phase == Phase::Preempting;
        run.phase = Phase::Ending;
        if !was_leaving {
            let sequence = &self.sequences[key];
            self.fairness.end_running(sequence.tenant, sequence.num_unpaid());
        }
        self.running.retain(|&other| other != key);
        self.num_leaving += usize::from(!was_leaving);
        self.wake_waiters(key, None);
        self.release_if_idle(key);
    }

    /// Stops a running sequence; it waits again as soon as no step in flight names it.
    pub(crate) fn preempt(&mut self, key: SequenceKey) {
        let run = self.sequences[key].run_mut();
        assert_eq!(run.phase, Phase::Running, "only running sequences are preempted");
        run.phase = Phase::Preempting;
        let sequence = &self.sequences[key];
        self.fairness.end_running(sequence.tenant, sequence.num_unpaid());
        self.counters.preemptions += 1;
        self.num_leaving += 1;
        self.wake_waiters(key, None);
        self.release_if_idle(key);
    }

    /// Gives up the blocks of a sequence that ends or is preempted, once no step in flight can write them. What is
    /// computed in them enters the KV index.
    pub(crate) fn release_if_idle(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        let Some(run) = sequence.run.take_if(|run| run.phase != Phase::Running && run.steps_in_flight == 0)
        else {
            return;
        };
        self.num_leaving -= 1;
        let shard = self.shard.as_mut().expect("who runs has a shard");
        shard.kv.close(run.table, &sequence.tokens[..run.acknowledged as usize]);
        if run.phase == Phase::Ending {
            shard.renew_pin(sequence);
        }
        if run.is_on_shard {
            shard.ends.push(run.wire_id);
        }
        if run.phase == Phase::Ending {
            self.forget(key);
        } else {
            sequence.waiting_since = self.now;
            self.running.retain(|&other| other != key);
            self.enter_queue(key);
        }
    }

    /// Gives a place to those that wait for this sequence's prefix: all of them, or those that `num_blocks` suffice.
    pub(crate) fn wake_waiters(&mut self, key: SequenceKey, num_blocks: Option<usize>) {
        let Some(run) = &mut self.sequences[key].run else { return };
        let (woken, waiting) =
            run.waiters.iter().partition(|waiter| num_blocks.is_none_or(|count| waiter.num_blocks <= count));
        run.waiters = waiting;
        for waiter in Vec::<crate::sequence::Waiter>::into_iter(woken) {
            self.leave_queue(waiter.key);
            self.enter_queue(waiter.key);
        }
    }
}
