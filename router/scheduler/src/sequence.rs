//! One sequence and its state.
//!
//! ```text
//! tokens        [ prompt ............ | output ... ]  + pending_samples that steps in flight will append
//! acknowledged  ───────────────▶                      K and V are computed
//! planned       ───────────────────────────▶          K and V are computed once the steps in flight are done
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use trunkline_contract::{BlockId, TokenMask};
use trunkline_kv::{BlockTable, RestoredBlock};

use crate::constraint::Constraint;
use crate::estimate::OwnAcceptance;
use crate::event::{LaneId, Millis, Pinned, Pooling, Priority, Restored, SequenceRequest, Usage};
use crate::fairness::TenantKey;
use crate::shared_store::StoreSource;

/// Names a sequence in a [`SequenceMap`](crate::sequence_map::SequenceMap). A key is reused after its sequence is
/// removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceKey(pub(crate) u32);

/// One sequence, from `Submit` until it has ended and no step in flight names it.
#[derive(Debug)]
pub struct Sequence {
    /// The submitted request, without its prompt. A long wait raises its class.
    pub request: SequenceRequest,
    /// The prompt, then the output.
    pub tokens: Vec<u32>,
    pub num_prompt_tokens: u32,
    /// The highest token id of the prompt.
    pub highest_token_id: u32,
    pub tenant: TenantKey,
    /// Its adapter among those of the tenant.
    pub adapter: TenantKey,
    /// Leading tokens of the prompt that cost nothing more, because the tenant was charged for them or they were cached
    /// when the sequence was admitted.
    pub num_paid: u32,
    /// The outcome of the request's pin, which is decided once its prompt is computed.
    pub pinned: Option<Pinned>,
    /// Leading positions of the prompt whose next tokens' logprobs were reported.
    pub num_scored: u32,
    /// How often the drafts of the shard's draft model were right.
    pub own_acceptance: OwnAcceptance,
    /// The state of the sequence's grammar, if it has one.
    pub constraint: Option<Constraint>,
    pub submitted_at: Millis,
    /// When it began to wait in its class. While it runs, this is the moment of its last wait.
    pub waiting_since: Millis,
    /// Counts submissions: a lower number is older.
    pub arrival: u64,
    /// Set when the first chunk is planned.
    pub first_start: Option<FirstStart>,
    /// [`ShardLimits::numerics`](crate::event::ShardLimits::numerics) of the shard that it last started on.
    pub numerics: u64,
    /// Set after a shard was lost that computed the sequence: the positions that it must compute before it is no
    /// suspect any more (`loss.rs`). No prefix hit covers them.
    pub suspected: Option<Range<u32>>,
    /// Why it is a suspect, while it is one.
    pub suspicion: Suspicion,
    /// True if a shard was lost that loaded its adapter for it, while it is a suspect.
    pub is_load_suspected: bool,
    /// The last losses at which it was in flight, oldest first; at most [`MAX_LOSSES`].
    pub losses: VecDeque<Loss>,
    pub cell: CellId,
    /// The number of times that the sequence was separated from others of its cell.
    pub num_separations: u8,
    /// True once it ended by itself.
    pub is_answered: bool,
    /// True once a lane has computed its prompt for another one.
    pub was_handed_over: bool,
    /// The lane that takes the sequence over from another one (`balance.rs`), until it runs again.
    pub moves_to: Option<LaneId>,
    pub wait: Wait,
    /// The state of the sequence while it does not wait.
    pub run: Option<Run>,
    /// The run that it escaped from. It holds blocks until its steps in flight are acknowledged.
    pub escaped: Option<Box<Run>>,
}

/// The most losses that a sequence remembers.
pub const MAX_LOSSES: usize = 4;

/// A loss of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub lane: LaneId,
    /// Counts the losses of the lane.
    pub number: u64,
    pub at: Millis,
}

/// Why a sequence is a suspect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspicion {
    /// A shard was lost that computed it. The next loss at which it is alone in flight convicts it.
    #[default]
    Loss,
    /// A step that it escaped from is late. The step's answer clears it, and a loss instead of the answer makes this a
    /// [`Suspicion::Loss`].
    Late,
    /// A shard was lost that computed it alone, while a step that it escaped from is late. It waits for the step: the
    /// answer makes this a [`Suspicion::Loss`], and a loss instead of the answer is the second one and convicts it.
    LateAndLoss,
}

/// Names a cell, whose sequences share no step with those of others (`cells.rs`). Each number is used once; 0 is the
/// cell of all sequences that were not separated.
pub type CellId = u64;

/// The moment a sequence first ran.
#[derive(Clone, Copy, Debug)]
pub struct FirstStart {
    pub at: Millis,
    /// Prompt tokens that a prefix hit spared.
    pub cached_tokens: u32,
}

/// A place among the sequences of one tenant and adapter in one class. The lowest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The time of arrival in milliseconds, later the less of the prompt is cached. The shift is bounded, so age wins
    /// in the end.
    pub effective_ms: u64,
    /// A unique number that makes places distinct.
    pub arrival: u64,
}

/// The position of a waiting sequence in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub priority: Priority,
    pub tenant: TenantKey,
    pub adapter: TenantKey,
    pub place: Place,
    /// When it began to wait in this class.
    pub since: Millis,
}

impl Rank {
    /// The order in which sequences began to wait.
    pub(crate) fn age(&self) -> (Millis, u64) {
        (self.since, self.place.arrival)
    }
}

/// The state of a waiting sequence. It has no meaning while the sequence runs.
#[derive(Debug, Default)]
pub struct Wait {
    /// The place in the queue; none while the sequence is parked.
    pub rank: Option<Rank>,
    /// Tokens that it had to compute when it was last looked up in the KV index.
    pub num_uncached_tokens: u32,
    /// Blocks that must be available on a lane before it is worth another try there, if that is known.
    pub needed_blocks: Option<(LaneId, u32)>,
    /// Leading tokens that a prefix hit spared on each lane when it was last looked up.
    pub cached_tokens: Vec<u32>,
    /// Leading tokens that a lane for decodes has, or can read from a store.
    pub num_readable_tokens: u32,
    /// When a lane with room first left it to another one, since it began to wait.
    pub passed_at: Option<Millis>,
    /// When a lane first passed it over because its adapter had no room.
    pub slot_since: Option<Millis>,
    /// The lane to which another one left it last.
    pub left_to: Option<LaneId>,
    /// The running sequence that computes a prefix which both share. It is set while this one is parked.
    pub parked_on: Option<SequenceKey>,
}

impl Wait {
    /// Blocks that must be available on this lane before it is worth another try there; 0 if that is not known.
    pub fn needed_blocks_on(&self, lane: LaneId) -> u32 {
        self.needed_blocks.map_or(0, |(of, num_blocks)| if of == lane { num_blocks } else { 0 })
    }
}

/// The phase of a sequence that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The sequence gets chunks.
    Running,
    /// The sequence gets no more chunks, and waits again once its steps in flight are acknowledged.
    Preempting,
    /// The sequence goes on with another run. The blocks are given up once the steps in flight are acknowledged.
    Escaped,
    /// The final update was sent. The sequence is removed once its steps in flight are acknowledged.
    Ending,
}

/// The state of a sequence that does not wait.
#[derive(Debug)]
pub struct Run {
    pub lane: LaneId,
    pub phase: Phase,
    /// The sequence's name on the wire.
    pub wire_id: u64,
    /// True once a plan has told the shard about `wire_id`.
    pub is_on_shard: bool,
    pub table: BlockTable,
    /// Blocks of the table that the shard knows.
    pub num_sent_blocks: usize,
    /// Positions that are computed once all steps in flight are done, a prefix hit included.
    pub planned: u32,
    /// Positions whose steps are acknowledged, the whole blocks of a prefix hit included.
    pub acknowledged: u32,
    /// Tokens that steps in flight will sample. With drafts it may be more.
    pub pending_samples: u32,
    /// The drafts of the step in flight. The next chunk begins behind those that are right, so none is planned before
    /// the result has arrived.
    pub drafts: Vec<u32>,
    /// The drafts that the shard's draft model may add in the step in flight.
    pub num_own_drafts: u32,
    /// The mask of the sample in flight, kept until its token arrives so that a lost step can be planned again.
    pub sent_mask: Option<TokenMask>,
    /// The step in flight whose chunk still awaits a mask.
    pub mask_step_id: Option<u64>,
    /// The last tokens that the shard does not know. They were forced, and go with the next chunk.
    pub num_unsent_tokens: u32,
    pub steps_in_flight: u32,
    /// The last step that has a chunk of this sequence. A step has at most one.
    pub last_step_id: u64,
    /// A copy to be planned with the first chunk.
    pub copy: Option<PartialCopy>,
    /// The number of tokens known at admission. Until they are computed, other sequences may be parked on this one.
    pub prefill_end: u32,
    /// The position at which the sequence goes to another lane (`roles.rs`); none if it stays.
    pub hand_over_at: Option<u32>,
    /// True if it is preempting and another tenant's sequence may take its place at once.
    pub gave_way: bool,
    /// A step failed, so no later position was computed.
    pub has_failed: bool,
    /// The sequences parked on this one.
    pub waiters: Vec<Waiter>,
    /// The restore of the last planned positions. No chunk is planned before it is over.
    pub restore: Option<RunRestore>,
    /// The part of its tokens that was read from the store.
    pub restored: Restored,
    /// The slot of its adapter, which it holds; 0 without an adapter.
    pub adapter_slot: u32,
    /// True until its adapter is loaded. No chunk is planned before that.
    pub awaits_adapter: bool,
}

impl Run {
    /// Returns true if the step in flight has drafts.
    pub fn has_drafts(&self) -> bool {
        !self.drafts.is_empty() || self.num_own_drafts > 0
    }
}

/// A restore in flight.
#[derive(Debug)]
pub struct RunRestore {
    pub restore_id: u64,
    pub blocks: Vec<RestoredBlock>,
    /// The store of another lane that has the blocks; none if it is the own one.
    pub source: Option<StoreSource>,
}

/// A copy of the first tokens of another sequence's block.
#[derive(Clone, Copy, Debug)]
pub struct PartialCopy {
    pub source: BlockId,
    pub num_tokens: u32,
}

/// A sequence parked on another.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    pub key: SequenceKey,
    /// It is woken once the KV index has this many blocks of the shared prefix.
    pub num_blocks: usize,
}

impl Sequence {
    /// Called when a request is submitted and not refused.
    pub fn new(
        mut request: SequenceRequest,
        [tenant, adapter]: [TenantKey; 2],
        submitted_at: Millis,
        arrival: u64,
    ) -> Self {
        let tokens = std::mem::take(&mut request.token_ids);
        Self {
            num_prompt_tokens: tokens.len() as u32,
            highest_token_id: tokens.iter().copied().max().unwrap_or(0),
            tokens,
            tenant,
            adapter,
            num_paid: 0,
            pinned: None,
            num_scored: 0,
            own_acceptance: OwnAcceptance::default(),
            constraint: request.constrained.then(Constraint::default),
            request,
            submitted_at,
            waiting_since: submitted_at,
            arrival,
            first_start: None,
            numerics: 0,
            suspected: None,
            suspicion: Suspicion::default(),
            is_load_suspected: false,
            losses: VecDeque::new(),
            cell: 0,
            num_separations: 0,
            is_answered: false,
            was_handed_over: false,
            moves_to: None,
            wait: Wait::default(),
            run: None,
            escaped: None,
        }
    }

    pub fn num_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Returns true if something that depends on the shard's numerics was reported.
    pub fn has_results(&self) -> bool {
        self.num_output_tokens() > 0 || self.num_scored > 0
    }

    pub fn num_output_tokens(&self) -> u32 {
        self.num_tokens() - self.num_prompt_tokens
    }

    /// Tokens of the prompt that are neither paid for nor planned.
    pub fn num_unpaid(&self) -> u32 {
        let num_planned = self.run.as_ref().map_or(0, |run| run.planned);
        self.num_prompt_tokens.saturating_sub(self.num_paid.max(num_planned))
    }

    /// The number of leading prompt tokens that the request pins, if it pins any.
    pub fn num_pin_tokens(&self) -> u32 {
        self.request.retention.num_tokens.unwrap_or(u32::MAX).min(self.num_prompt_tokens)
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.num_prompt_tokens,
            output_tokens: self.num_output_tokens(),
            cached_tokens: self.first_start.map_or(0, |start| start.cached_tokens),
        }
    }

    /// Returns true if its prompt is computed in one chunk.
    pub fn is_whole(&self) -> bool {
        self.request.pooling.is_some_and(|pooled| pooled.pooling == Pooling::Whole)
    }

    /// Returns true if the sequence may get chunks.
    pub fn is_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Running)
    }

    /// Returns true if the final update was sent.
    pub fn is_ending(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Ending)
    }

    /// Tokens that may still be planned; 0 when the rest is in flight.
    pub fn num_unplanned(&self) -> u32 {
        let Some(run) = self.run.as_ref().filter(|run| run.phase == Phase::Running) else { return 0 };
        if let Some(at) = run.hand_over_at {
            at.saturating_sub(run.planned)
        } else if self.is_finishing(run) || run.has_drafts() {
            0
        } else if self.request.max_new_tokens == 0 {
            self.num_to_score() - run.planned
        } else if let Some(constraint) = &self.constraint {
            // The last known token's chunk samples, so it waits until the mask is known. The chunk after it may begin
            // before its own mask is known.
            let num_ready = if constraint.has_answer() {
                self.num_tokens()
            } else if may_run_ahead(constraint, run) {
                self.num_tokens() + 1
            } else {
                self.num_tokens() - 1
            };
            num_ready.saturating_sub(run.planned)
        } else {
            self.num_tokens() + run.pending_samples - run.planned
        }
    }

    /// Tokens that may be planned in the step that is being made; 0 also for a suspect, when the step has a chunk of
    /// the sequence already, or when a restore or the load of its adapter is in flight.
    pub fn num_wanted(&self, step_id: u64) -> u32 {
        if self.suspected.is_some() { 0 } else { self.num_wanted_alone(step_id) }
    }

    /// Like [`Sequence::num_wanted`], in a step that has no other sequence.
    pub fn num_wanted_alone(&self, step_id: u64) -> u32 {
        let must_wait =
            |run: &Run| run.last_step_id == step_id || run.restore.is_some() || run.awaits_adapter;
        if self.run.as_ref().is_some_and(must_wait) {
            return 0;
        }
        let before_scores = self.run.as_ref().and_then(|run| self.num_before_scores(run.planned));
        self.num_unplanned().min(before_scores.unwrap_or(u32::MAX))
    }

    /// Returns true if the steps in flight sample the last token, or score the last one of a prompt without output.
    pub fn is_finishing(&self, run: &Run) -> bool {
        if self.request.max_new_tokens == 0 {
            return run.planned >= self.num_to_score();
        }
        self.num_output_tokens() + run.pending_samples >= self.request.max_new_tokens
    }

    /// Returns true if the sequence runs and still computes tokens that were known when it was admitted.
    pub fn is_prefilling(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.phase == Phase::Running && run.acknowledged < run.prefill_end)
    }

    /// The order of running sequences. The last one is preempted first.
    pub fn order(&self) -> (Priority, u64) {
        (self.request.priority, self.arrival)
    }

    pub fn is_end_token(&self, token_id: u32) -> bool {
        !self.request.ignore_eos && self.request.sampling.end_token_ids.contains(&token_id)
    }

    /// Returns true if it may not run before the step is answered that it escaped from.
    pub fn awaits_late_step(&self) -> bool {
        self.suspected.is_some() && self.suspicion == Suspicion::LateAndLoss
    }

    /// The run that the sequence escaped from, if it has this name on this lane.
    pub fn escaped_run(&mut self, lane: LaneId, wire_id: u64) -> Option<&mut Run> {
        self.escaped.as_deref_mut().filter(|run| run.lane == lane && run.wire_id == wire_id)
    }

    /// The run of a sequence that is known not to wait.
    pub fn run(&self) -> &Run {
        self.run.as_ref().expect("the sequence does not wait")
    }

    /// The run of a sequence that is known not to wait, mutable.
    pub fn run_mut(&mut self) -> &mut Run {
        self.run.as_mut().expect("the sequence does not wait")
    }
}

/// Returns true if a step in flight samples a token with a known mask, so that the next chunk may begin without its
/// own.
fn may_run_ahead(constraint: &Constraint, run: &Run) -> bool {
    run.pending_samples == 1 && run.mask_step_id.is_none() && !constraint.is_slow()
}
