//! The moves of a sequence between queue, run and end.
//!
//! ```text
//! Submit ──▶ waiting ──admit──▶ running ──end──▶ ending ──last step acknowledged──▶ removed
//!               ▲                  │
//!               └──── last step ── preempting
//! ```

use std::collections::VecDeque;

use crate::cells::Cells;
use crate::config::{SchedulerConfig, Speculation};
use crate::constraint::Constraint;
use crate::event::{EndReason, LaneId, Millis, Priority, SequenceId, Update};
use crate::lane::{Lane, OtherLanes};
use crate::neighbours;
use crate::plan::{SequenceError, SequenceErrorCode};
use crate::poison::Poisons;
use crate::sequence::{Loss, Phase, Run, SequenceKey, Suspicion, Waiter};
use crate::sequences::Sequences;
use crate::stats::Stats;

/// The parts of the scheduler that one event or plan concerns, and the moves between them.
///
/// Everything above this module changes a sequence's state through these moves, so queue, tenants and lane agree.
pub(crate) struct Lifecycle<'a> {
    pub(crate) config: &'a SchedulerConfig,
    pub(crate) now: Millis,
    pub(crate) sequences: &'a mut Sequences,
    /// The lane that the event or plan concerns.
    pub(crate) lane: &'a mut Lane,
    pub(crate) others: OtherLanes<'a>,
    pub(crate) cells: &'a mut Cells,
    pub(crate) poisons: &'a mut Poisons,
    pub(crate) counters: &'a mut Stats,
    /// Answers for the caller.
    pub(crate) updates: &'a mut Vec<Update>,
}

impl Lifecycle<'_> {
    /// All lanes, in no particular order.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&*self.lane).chain(self.others.iter())
    }

    /// Takes the losses of a sequence for explained.
    pub(crate) fn explain_losses(&mut self, losses: &VecDeque<Loss>) {
        for &loss in losses {
            let now = self.now;
            self.lane_mut(loss.lane).explain(loss, now);
        }
    }

    fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        if id == self.lane.id { self.lane } else { self.others.get_mut(id) }
    }

    /// Puts a sequence that has no run in the queue, at a place that depends on its prefix hit.
    pub(crate) fn enter_queue(&mut self, key: SequenceKey) {
        let (cached_tokens, num_readable) = {
            let lanes: Vec<&Lane> = self.lanes().collect();
            neighbours::cached_tokens(self.config, &lanes, &self.sequences[key])
        };
        self.sequences.enter_queue(key, cached_tokens, self.config.cached_first_window_ms);
        self.sequences[key].wait.num_readable_tokens = num_readable;
    }

    /// Looks a waiting sequence up again and gives it a new place in the queue.
    pub(crate) fn requeue(&mut self, key: SequenceKey) {
        self.sequences.leave_queue(key);
        self.enter_queue(key);
    }

    /// Moves sequences that have waited in a class for longer than the configured patience into the class above.
    pub(crate) fn promote(&mut self) {
        let Some(limit) = self.now.0.checked_sub(self.config.class_patience_ms) else { return };
        for (priority, above) in Priority::ALL.into_iter().filter_map(|class| Some((class, class.above()?))) {
            while let Some(key) = self.sequences.queue().waiting_since(priority, Millis(limit)) {
                self.sequences.leave_queue(key);
                let sequence = &mut self.sequences[key];
                sequence.request.priority = above;
                sequence.waiting_since = self.now;
                self.enter_queue(key);
                self.counters.promotions += 1;
            }
        }
    }

    /// Removes a waiting sequence without a final update, which the caller sends.
    pub(crate) fn remove_waiting(&mut self, key: SequenceKey) -> SequenceId {
        self.sequences.leave_queue(key);
        self.sequences.remove(key).request.id
    }

    /// Sends the final update of a sequence. It is removed now, or once its steps in flight are acknowledged.
    pub(crate) fn end(&mut self, key: SequenceKey, reason: EndReason) {
        match reason {
            EndReason::EndToken | EndReason::Length | EndReason::Finished => {
                self.sequences[key].is_answered = true;
                if self.sequences[key].run.is_some() {
                    self.lane.losses.worked();
                }
            }
            EndReason::Aborted | EndReason::DeadlineExceeded | EndReason::Failed(_) => self.leave(key),
            EndReason::ShardLost => {}
        }
        if let Some(run) = &mut self.sequences[key].run {
            self.lane.shard_mut().cancel_late_mask(key, run, self.now);
        }
        if self.config.speculation != Speculation::Off {
            self.sequences.keep_output(key);
        }
        let sequence = &self.sequences[key];
        self.updates.push(Update::Ended { id: sequence.request.id, reason, usage: sequence.usage() });
        self.sequences.clear_deadline(key);
        let Some(run) = &mut self.sequences[key].run else {
            self.sequences.leave_queue(key);
            self.remove(key);
            return;
        };
        let was_leaving = run.phase == Phase::Preempting;
        run.phase = Phase::Ending;
        if !was_leaving {
            self.sequences.end_running(key);
            self.lane.running.begin_leaving();
        }
        self.lane.running.remove(key);
        self.wake_waiters(key, None);
        self.release_if_idle(key);
    }

    /// Takes the losses of a suspect for explained that leaves, because it can no longer be cleared or convicted.
    pub(crate) fn leave(&mut self, key: SequenceKey) {
        let sequence = &self.sequences[key];
        if sequence.suspected.is_none() || sequence.suspicion == Suspicion::Late {
            return;
        }
        let losses = self.sequences[key].losses.clone();
        self.explain_losses(&losses);
        if !self.sequences[key].is_answered {
            self.poisons.leave(&self.sequences[key], self.now);
        }
    }

    /// Ends a sequence for which the shard's result makes no sense.
    pub(crate) fn fail_result(&mut self, key: SequenceKey, message: &str) {
        self.sequences[key].run_mut().has_failed = true;
        let error = SequenceError { code: SequenceErrorCode::InvalidResult, message: message.to_owned() };
        self.end(key, EndReason::Failed(error));
    }

    /// Preempts a running sequence.
    pub(crate) fn preempt(&mut self, key: SequenceKey) {
        self.counters.preemptions += 1;
        self.stop(key);
    }

    /// Stops a running sequence. It waits again as soon as no step in flight names it.
    pub(crate) fn stop(&mut self, key: SequenceKey) {
        let run = self.sequences[key].run_mut();
        assert_eq!(run.phase, Phase::Running, "only running sequences are preempted");
        run.phase = Phase::Preempting;
        self.sequences.end_running(key);
        self.lane.running.begin_leaving();
        self.wake_waiters(key, None);
        self.release_if_idle(key);
    }

    /// Preempts a sequence so that another tenant's may have its place at once.
    pub(crate) fn preempt_for_tenant(&mut self, victim: SequenceKey) {
        self.sequences[victim].run_mut().gave_way = true;
        self.counters.fair_preemptions += 1;
        self.preempt(victim);
    }

    /// Gives up the blocks of a sequence that ends or is preempted, once no step in flight can write them. The computed
    /// ones enter the KV index.
    pub(crate) fn release_if_idle(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        let Some(run) = sequence.run.take_if(|run| run.phase != Phase::Running && run.steps_in_flight == 0)
        else {
            return;
        };
        let phase = run.phase;
        self.lane.suspect = self.lane.suspect.filter(|&suspect| suspect != key);
        self.close(key, run);
        if phase == Phase::Ending {
            self.lane.shard_mut().renew_pin(&self.sequences[key]);
            self.remove(key);
        } else {
            self.sequences[key].waiting_since = self.now;
            self.lane.running.remove(key);
            self.enter_queue(key);
        }
    }

    /// Gives up the blocks of a leaving run. The computed ones enter the KV index.
    fn close(&mut self, key: SequenceKey, run: Run) {
        self.lane.running.end_leaving();
        let shard = self.lane.shard_mut();
        shard.adapters.release(run.adapter_slot, key);
        shard.kv.close(run.table, &self.sequences[key].tokens[..run.acknowledged as usize]);
        if run.is_on_shard {
            shard.outbox.end_sequence(run.wire_id);
        }
    }

    /// Removes a sequence that neither waits nor runs, and to which the final update was sent, or lets the run that it
    /// escaped from end first.
    pub(crate) fn remove(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        match sequence.escaped.take() {
            None => drop(self.sequences.remove(key)),
            Some(run) => {
                sequence.constraint.as_mut().and_then(Constraint::take_mask);
                sequence.run = Some(Run { phase: Phase::Ending, ..*run });
            }
        }
    }

    /// Takes a sequence off the lane at once, so that another one can go on with it. Its blocks stay held until its
    /// steps in flight are acknowledged, whose results count for nothing. It is a suspect until it is past the
    /// positions that the lane may still compute.
    pub(crate) fn escape(&mut self, key: SequenceKey) {
        self.wake_waiters(key, None);
        if self.sequences[key].is_running() {
            self.sequences.end_running(key);
            self.lane.running.begin_leaving();
        }
        let sequence = &mut self.sequences[key];
        let Some(mut run) = sequence.run.take() else { return };
        self.lane.running.remove(key);
        self.lane.suspect = self.lane.suspect.filter(|&suspect| suspect != key);
        self.lane.shard_mut().cancel_late_mask(key, &mut run, self.now);
        if let (Some(constraint), Some(mask)) = (&mut sequence.constraint, run.sent_mask.take()) {
            constraint.set_mask(mask);
        }
        if run.steps_in_flight == 0 {
            self.close(key, run);
        } else {
            (run.phase, run.has_failed) = (Phase::Escaped, true);
            let positions = self.lane.shard().steps.positions_of(&run);
            (sequence.suspected, sequence.suspicion) = (Some(positions), Suspicion::Late);
            sequence.escaped = Some(Box::new(run));
        }
        self.sequences[key].waiting_since = self.now;
        self.enter_queue(key);
        self.lane.num_escapes += 1;
    }

    /// Gives up the blocks of the run that a sequence escaped from, once no step in flight can write them. The shard
    /// answered, so the sequence is no suspect any more for being late.
    pub(crate) fn release_escaped(&mut self, key: SequenceKey) {
        let Some(run) = self.sequences[key].escaped.take_if(|run| run.steps_in_flight == 0) else { return };
        self.close(key, *run);
        let sequence = &self.sequences[key];
        if sequence.suspected.is_none() || sequence.suspicion == Suspicion::Loss {
            return;
        }
        let lane = sequence.run.as_ref().map(|run| run.lane);
        if lane.is_none() {
            self.sequences.leave_queue(key);
        }
        let sequence = &mut self.sequences[key];
        sequence.suspected.take_if(|_| sequence.suspicion == Suspicion::Late);
        sequence.suspicion = Suspicion::Loss;
        match lane {
            Some(lane) => {
                let lane = self.lane_mut(lane);
                lane.suspect = lane.suspect.filter(|&suspect| suspect != key);
            }
            None => self.enter_queue(key),
        }
    }

    /// Enters the acknowledged whole blocks of a sequence in the KV index, and wakes the sequences that wait for them.
    pub(crate) fn index(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        let run = sequence.run.as_mut().expect("the sequence does not wait");
        let before = run.table.num_indexed_blocks();
        self.lane.shard_mut().kv.index(&mut run.table, &sequence.tokens[..run.acknowledged as usize]);
        let num_blocks = run.table.num_indexed_blocks();
        if num_blocks > before && !run.waiters.is_empty() {
            self.wake_waiters(key, Some(num_blocks));
        }
    }

    /// Pins a computed prompt if its request asks for that and it was not done before. The outcome is reported before
    /// the first sampled token, so that the answer can contain it; forced tokens at the beginning may come earlier.
    pub(crate) fn pin_prompt(&mut self, key: SequenceKey) {
        let sequence = &mut self.sequences[key];
        if let Some(shard) = &mut self.lane.shard
            && let Some(pinned) = shard.pin_prompt(sequence)
        {
            self.updates.push(Update::Pinned { id: sequence.request.id, pinned });
        }
    }

    /// Returns sequences that are parked on this one to the queue: all of them, or those for which `num_blocks`
    /// suffice.
    pub(crate) fn wake_waiters(&mut self, key: SequenceKey, num_blocks: Option<usize>) {
        let Some(run) = &mut self.sequences[key].run else { return };
        let (woken, waiting): (Vec<Waiter>, Vec<Waiter>) =
            run.waiters.iter().partition(|waiter| num_blocks.is_none_or(|count| waiter.num_blocks <= count));
        run.waiters = waiting;
        for waiter in woken {
            self.requeue(waiter.key);
        }
    }

    /// Looks all waiting sequences up again, because a store was added that may have a longer prefix of them.
    pub(crate) fn requeue_all(&mut self) {
        let keys = self.sequences.keys_by_arrival();
        let waiting: Vec<_> = keys.into_iter().filter(|&key| self.sequences[key].run.is_none()).collect();
        for key in waiting {
            self.requeue(key);
        }
    }
}
