//! The steps in flight: plans that the shard has and whose results have not arrived.

use std::collections::VecDeque;
use std::ops::Range;

use trunkline_contract::SlotId;
use trunkline_kv::Salt;

use crate::event::{Millis, SequenceId};
use crate::plan::LogitsRows;
use crate::sequence::{Run, Sequence, SequenceKey};
use crate::step_cost::StepWork;

/// The most plans that may be in flight at once. The second one waits at the shard while the first is computed.
pub const RUN_AHEAD: usize = 2;
/// The next step is planned this long before the one in flight is predicted to end. The way of a plan takes some tenths
/// of a millisecond, and predictions err.
const LEAD_MS: u64 = 8;
/// For long steps, whose predictions err by more, it is this part of the predicted time.
const LEAD_DIVISOR: u64 = 4;
/// A step is late after so many times its predicted time. Predictions seldom err by more than the half; a step that
/// compiles a kernel or shares its device with others takes a few times as long.
const LATE_FACTOR: f64 = 8.0;
/// No step is late before this time, because a busy machine holds any process up for some tens of milliseconds. Streams
/// should pause for at most 300 ms, and the other lane needs a part of that for its next steps.
pub const LEAST_LATE_MS: u64 = 150;

/// The steps in flight of one shard. It also reuses the memory of finished steps.
#[derive(Debug, Default)]
pub(crate) struct StepsInFlight {
    /// Oldest first; at most [`RUN_AHEAD`].
    steps: VecDeque<StepInFlight>,
    /// Empty chunk lists of finished steps, so that the next steps need not allocate; at most [`RUN_AHEAD`].
    spare_chunks: Vec<Vec<PlannedChunk>>,
    last_step_id: u64,
    /// The moment before which no further step is planned, because the only one in flight takes long. A request that
    /// arrives until then is in the next step instead of the one after it.
    waits_until: Option<Millis>,
    /// The moment at which the shard could begin with the oldest step, or go on with it after its last mask.
    oldest_since: Millis,
    /// True if the last answer was late.
    was_late: bool,
    /// True once it was noticed that the oldest step is late.
    is_noticed: bool,
}

/// A plan whose result has not arrived.
#[derive(Debug)]
pub(crate) struct StepInFlight {
    pub(crate) step_id: u64,
    pub(crate) chunks: Vec<PlannedChunk>,
    pub(crate) num_prefill_tokens: u32,
    pub(crate) work: StepWork,
    /// The predicted time of the device; 0 before any was measured.
    pub(crate) predicted_ms: u64,
    /// The time after which it is late; none before any was measured.
    pub(crate) late_after_ms: Option<u64>,
    /// Masks that the shard waits for in this step.
    pub(crate) num_awaited_masks: u32,
    /// Slots of the store that the shard empties before it computes.
    pub(crate) discards: Vec<SlotId>,
}

/// The part of a chunk that is needed again when its result arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedChunk {
    pub(crate) key: SequenceKey,
    pub(crate) wire_id: u64,
    pub(crate) first: u32,
    /// One past its last position.
    pub(crate) end: u32,
    pub(crate) rows: LogitsRows,
    /// The positions behind `end` that drafts have, and how many of them are for the shard's draft model.
    pub(crate) num_drafts: u32,
    pub(crate) num_own_drafts: u32,
    /// The cost that is reserved for it.
    pub(crate) cost: u64,
}

impl PlannedChunk {
    /// The positions that are computed, drafts included.
    pub(crate) fn num_rows(&self) -> u32 {
        self.end + self.num_drafts - self.first
    }
}

/// What a step in flight computes for one sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceInStep<'a> {
    pub id: SequenceId,
    /// The id of the sequence in plans and results.
    pub wire_id: u64,
    pub salt: &'a Salt,
    /// Positions of the prompt, and those that are computed again after a preemption or loss.
    pub num_prefill_tokens: u32,
    /// 1 if the step computes the last token of the output to sample the one behind it.
    pub num_decode_tokens: u32,
    /// Drafts that are named in the plan.
    pub num_drafts: u32,
}

impl<'a> SequenceInStep<'a> {
    pub(crate) fn new(chunk: &PlannedChunk, sequence: &'a Sequence) -> Self {
        let num_decode_tokens = u32::from(chunk.rows.sample && chunk.end > sequence.num_prompt_tokens);
        Self {
            id: sequence.request.id,
            wire_id: chunk.wire_id,
            salt: &sequence.request.salt,
            num_prefill_tokens: chunk.end - chunk.first - num_decode_tokens,
            num_decode_tokens,
            num_drafts: chunk.num_drafts - chunk.num_own_drafts,
        }
    }
}

/// The milliseconds after which a step is late that is predicted to take so many microseconds.
pub(crate) fn late_after_ms(predicted_us: f64) -> u64 {
    ((LATE_FACTOR * predicted_us / 1e3) as u64).max(LEAST_LATE_MS)
}

/// Returns the work of these chunks together.
pub(crate) fn work_of(chunks: &[PlannedChunk]) -> StepWork {
    let mut work = StepWork::default();
    chunks.iter().for_each(|chunk| work.add(chunk.first, chunk.num_rows()));
    work
}

impl StepsInFlight {
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns true if no further plan may be sent before a result arrives.
    pub(crate) fn is_full(&self) -> bool {
        self.steps.len() >= RUN_AHEAD
    }

    pub(crate) fn next_step_id(&self) -> u64 {
        self.last_step_id + 1
    }

    pub(crate) fn last_step_id(&self) -> u64 {
        self.last_step_id
    }

    pub(crate) fn oldest_step_id(&self) -> Option<u64> {
        self.steps.front().map(|step| step.step_id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &StepInFlight> {
        self.steps.iter()
    }

    /// The positions of a run that the shard may compute, drafts included.
    pub(crate) fn positions_of(&self, run: &Run) -> Range<u32> {
        let chunks = self.steps.iter().flat_map(|step| &step.chunks);
        let chunks = chunks.filter(|chunk| chunk.wire_id == run.wire_id);
        chunks.fold(run.planned..run.planned, |range, chunk| {
            range.start.min(chunk.first)..range.end.max(chunk.first + chunk.num_rows())
        })
    }

    /// Adds the step with [`StepsInFlight::next_step_id`].
    pub(crate) fn push(&mut self, step: StepInFlight, now: Millis) {
        self.last_step_id = step.step_id;
        self.steps.push_back(step);
        if self.steps.len() == 1 {
            self.restart_clock(now);
        }
        self.wait_for_only_step(now);
    }

    /// Removes the oldest step if it is the one named. Results arrive in the order of the plans.
    pub(crate) fn take(&mut self, step_id: u64, now: Millis) -> Option<StepInFlight> {
        if self.oldest_step_id() != Some(step_id) {
            return None;
        }
        self.was_late = self.are_late(now);
        let step = self.steps.pop_front();
        self.wait_for_only_step(now);
        self.restart_clock(now);
        step
    }

    fn restart_clock(&mut self, now: Millis) {
        (self.oldest_since, self.is_noticed) = (now, false);
    }

    /// Notes that the shard has a mask, or the notice that there is none, for which a chunk of this step waited.
    pub(crate) fn end_awaiting_mask(&mut self, step_id: u64, now: Millis) {
        if let Some(step) = self.steps.iter_mut().find(|step| step.step_id == step_id) {
            step.num_awaited_masks -= 1;
        }
        if self.oldest_step_id() == Some(step_id) {
            self.oldest_since = now;
        }
    }

    /// The moment from which the oldest step is late; none if there is no such moment. A shard that waits for masks is
    /// not late.
    fn late_at(&self) -> Option<Millis> {
        let oldest = self.steps.front().filter(|step| step.num_awaited_masks == 0)?;
        oldest.late_after_ms.map(|ms| self.oldest_since.plus(ms))
    }

    /// Returns true while the oldest step takes much longer than predicted.
    pub(crate) fn are_late(&self, now: Millis) -> bool {
        self.late_at().is_some_and(|at| at <= now)
    }

    /// Returns true if nothing speaks for it that the whole machine is held up: the last answer was not late, and the
    /// oldest step has not taken half of the time after which it is.
    pub(crate) fn are_timely(&self, now: Millis) -> bool {
        let Some(at) = self.late_at() else { return true };
        !self.was_late && 2 * now.since(self.oldest_since) < at.since(self.oldest_since)
    }

    /// Like [`StepsInFlight::are_late`]. After that [`StepsInFlight::next_lateness`] does not name the moment any more.
    pub(crate) fn notice_lateness(&mut self, now: Millis) -> bool {
        self.is_noticed |= self.are_late(now);
        self.are_late(now)
    }

    /// The moment from which the oldest step is late, until that was noticed.
    pub(crate) fn next_lateness(&self) -> Option<Millis> {
        self.late_at().filter(|_| !self.is_noticed)
    }

    /// Sets the moment of the next plan, if the only step in flight begins now.
    fn wait_for_only_step(&mut self, now: Millis) {
        self.waits_until = match (self.steps.front(), self.steps.len()) {
            (Some(step), 1) => {
                let lead_ms = LEAD_MS.max(step.predicted_ms / LEAD_DIVISOR);
                let wait_ms = step.predicted_ms.saturating_sub(lead_ms);
                (wait_ms > 0).then(|| now.plus(wait_ms))
            }
            _ => None,
        };
    }

    /// Returns true while it is too early for a further step.
    pub(crate) fn is_early(&mut self, now: Millis) -> bool {
        self.waits_until = self.waits_until.filter(|&until| now < until);
        self.waits_until.is_some()
    }

    /// The moment at which a further step is no longer too early; none if it is not.
    pub(crate) fn waits_until(&self) -> Option<Millis> {
        self.waits_until
    }

    /// Notes that a sequence's chunk in this step samples nothing after all. The step may be over already.
    pub(crate) fn cancel_sample(&mut self, step_id: u64, key: SequenceKey) {
        let step = self.steps.iter_mut().find(|step| step.step_id == step_id);
        if let Some(chunk) = step.and_then(|step| step.chunks.iter_mut().find(|chunk| chunk.key == key)) {
            chunk.rows.sample = false;
        }
    }

    /// An empty list for the chunks of a new step.
    pub(crate) fn spare_chunks(&mut self) -> Vec<PlannedChunk> {
        self.spare_chunks.pop().unwrap_or_default()
    }

    /// Keeps the memory of a step's chunks for [`StepsInFlight::spare_chunks`].
    pub(crate) fn recycle(&mut self, mut chunks: Vec<PlannedChunk>) {
        if self.spare_chunks.len() < RUN_AHEAD {
            chunks.clear();
            self.spare_chunks.push(chunks);
        }
    }
}
