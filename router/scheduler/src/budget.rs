//! The budget of one step, and its division among sequences.

use crate::event::{Priority, ShardLimits};
use crate::fairness::TenantKey;
use crate::message_size::{MAX_STARTS_BYTES, max_vectors};
use crate::plan::LogitsRows;
use crate::sequence::SequenceKey;
use crate::step_cost::{StepCost, StepWork};

/// The oldest sequence of a tenant gets one part in this many, whatever the others need.
const OLDEST_DIVISOR: u32 = 4;

/// The most that a step may take for prompts that are about to miss their goal, as a multiple of its target.
const MAX_GOAL_FACTOR: f64 = 4.0;

/// A prompt that should have its first token in time.
#[derive(Clone, Copy, Debug)]
pub struct PrefillGoal {
    /// The time that its remaining prefill takes in steps that would run anyway, in microseconds.
    pub work_us: f64,
    /// The time until its first token is due, in microseconds.
    pub left_us: f64,
}

/// Returns the time that a step should take, in microseconds: its target, or as much more as prompts need to meet their
/// goals, up to four times the target.
///
/// Of a step of S microseconds, S − `decode_us` go to prompts, so prompts with work W are through in time L if
/// S · (1 − W / L) ≥ `decode_us`. The shortest prompts are computed first. A prompt that no step within four times the
/// target would finish in time changes nothing: streams would slow down for a goal that is missed anyway.
pub fn step_time_for(goals: &mut [PrefillGoal], decode_us: f64, target_us: f64) -> f64 {
    goals.sort_by(|a, b| a.work_us.total_cmp(&b.work_us));
    let mut work_us = 0.0;
    let mut step_us = target_us;
    for goal in goals {
        let with_goal = work_us + goal.work_us;
        let needed_us = decode_us / (1.0 - with_goal / goal.left_us);
        if with_goal < goal.left_us && needed_us <= target_us * MAX_GOAL_FACTOR {
            work_us = with_goal;
            step_us = step_us.max(needed_us);
        }
    }
    step_us
}

/// The remaining budget of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepBudget {
    /// Positions that the step may still compute.
    pub tokens: u32,
    /// Sequences that may still get a chunk.
    pub chunks: u32,
    /// Positions whose logits the step may still compute.
    pub rows: u32,
    /// Vectors that the step may still report.
    pub vectors: u32,
    /// Bytes that sequences which start may still take in the plan.
    pub starts_bytes: u64,
}

impl StepBudget {
    /// The budget of a step that computes at most `max_tokens` positions.
    pub fn new(max_tokens: u32, limits: &ShardLimits) -> Self {
        let most = limits.max_step_sequences;
        Self {
            tokens: max_tokens,
            chunks: most,
            rows: most,
            vectors: max_vectors(limits),
            starts_bytes: MAX_STARTS_BYTES,
        }
    }

    /// Returns true if the step has no room for a chunk that samples or scores.
    pub fn is_spent(self) -> bool {
        self.tokens == 0 || self.chunks == 0 || self.rows == 0
    }

    /// Spends the budget of one chunk.
    pub fn spend(&mut self, num_tokens: u32, rows: LogitsRows) {
        self.tokens -= num_tokens;
        self.chunks -= 1;
        self.rows -= rows.count();
    }
}

/// A sequence that has known tokens to compute.
#[derive(Clone, Copy, Debug)]
pub struct PrefillNeed {
    pub key: SequenceKey,
    pub priority: Priority,
    pub tenant: TenantKey,
    /// The tenant's counter, see [`crate::fairness::Fairness::served`].
    pub served: u64,
    /// The position from which on it computes.
    pub first: u32,
    pub num_tokens: u32,
}

/// The room of a step for prefill: a number of tokens and, beside decodes, a time.
#[derive(Clone, Debug)]
pub struct PrefillRoom<'a> {
    pub tokens: u32,
    pub time: Option<TimeRoom<'a>>,
}

/// The time of a step that is sized by time.
#[derive(Clone, Debug)]
pub struct TimeRoom<'a> {
    pub cost: &'a StepCost,
    pub target_us: f64,
    /// The work that is planned so far.
    pub work: StepWork,
    /// The tokens that the step has room for, however long they take.
    pub least: u32,
}

impl PrefillRoom<'_> {
    /// The number of tokens from position `first` on that there is room for. Rows that read less context take less
    /// time, so there is room for more of them.
    fn fitting(&self, first: u32) -> u32 {
        let within = self.time.as_ref().map(|time| {
            let within = time.cost.rows_within(time.target_us, time.work, first);
            within.unwrap_or(0).max(time.least)
        });
        within.map_or(self.tokens, |within| self.tokens.min(within))
    }

    fn spend(&mut self, first: u32, num_tokens: u32) {
        self.tokens -= num_tokens;
        if let Some(time) = &mut self.time {
            time.work.add(first, num_tokens);
            time.least = time.least.saturating_sub(num_tokens);
        }
    }
}

/// Divides the room of a step among `needs`, which are in running order (class, then age).
///
/// Higher classes are served first, and in a class the tenants that were served less. Of what a tenant gets in a class,
/// a quarter is for its oldest sequence, so that this one always makes progress. The rest goes to the others by age,
/// but to much shorter ones first. Returns the tokens of each need.
pub fn divide_prefill(mut room: PrefillRoom<'_>, needs: &[PrefillNeed]) -> Vec<u32> {
    let mut shares = vec![0; needs.len()];
    // The sort is stable, so each tenant's sequences stay in running order.
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&index| (needs[index].priority, needs[index].served, needs[index].tenant));
    for group in
        order.chunk_by(|&a, &b| (needs[a].priority, needs[a].tenant) == (needs[b].priority, needs[b].tenant))
    {
        let mut give = |index: usize, divisor: u32| {
            let (need, given) = (&needs[index], shares[index]);
            let first = need.first + given;
            let share = room.fitting(first).div_ceil(divisor).min(need.num_tokens - given);
            shares[index] += share;
            room.spend(first, share);
            room.tokens > 0
        };
        let mut has_room = give(group[0], OLDEST_DIVISOR);
        let mut rest = group.to_vec();
        while has_room && !rest.is_empty() {
            let next = next_of(&rest, needs);
            has_room = give(rest.remove(next), 1);
        }
    }
    shares
}

/// Returns the place in `rest` of the need that is served next: the oldest, unless a newer one needs less than half of
/// it, and so on among the still newer ones.
///
/// Serving the least need first would let each new prompt pass an older one of about its own size. That hardly shortens
/// the usual wait for a first token and makes the longest ones longer.
fn next_of(rest: &[usize], needs: &[PrefillNeed]) -> usize {
    let num_tokens = |place: usize| needs[rest[place]].num_tokens;
    (1..rest.len()).fold(0, |next, place| if num_tokens(place) < num_tokens(next) / 2 { place } else { next })
}
