//! The budget of one step, and its division among sequences.

use crate::event::{Priority, ShardLimits};
use crate::fairness::TenantKey;
use crate::plan::LogitsRows;
use crate::sequence::SequenceKey;

/// The remaining budget of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepBudget {
    /// Positions that the step may still compute.
    pub tokens: u32,
    /// Sequences that may still get a chunk.
    pub chunks: u32,
    /// Positions whose logits the step may still compute.
    pub rows: u32,
}

impl StepBudget {
    /// The budget of a step that computes at most `max_tokens` positions.
    pub fn new(max_tokens: u32, limits: &ShardLimits) -> Self {
        let most = limits.max_step_sequences;
        Self { tokens: max_tokens, chunks: most, rows: most }
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
    pub num_tokens: u32,
}

/// Divides `budget` tokens among `needs`, which are in running order (class, then age).
///
/// Higher classes are served first, and in a class the tenants that were served less. The tokens of a tenant in a class
/// are divided in two halves. One half goes to its oldest sequence, so that this one always makes progress. The other
/// half goes to the sequences that need least, so that a short prompt does not wait behind a long one. The oldest
/// sequence gets the rest. Returns one number for each need; their sum is the lesser of `budget` and the total need.
pub fn divide_prefill(mut budget: u32, needs: &[PrefillNeed]) -> Vec<u32> {
    let mut shares = vec![0; needs.len()];
    // The sort is stable, so each tenant's sequences stay in running order.
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&index| (needs[index].priority, needs[index].served, needs[index].tenant));
    for group in
        order.chunk_by(|&a, &b| (needs[a].priority, needs[a].tenant) == (needs[b].priority, needs[b].tenant))
    {
        let mut give = |index: usize, at_most: u32, budget: &mut u32| {
            let share = at_most.min(*budget).min(needs[index].num_tokens - shares[index]);
            shares[index] += share;
            *budget -= share;
        };
        let (oldest, others) = (group[0], &group[1..]);
        give(oldest, budget.div_ceil(2), &mut budget);
        let mut others = others.to_vec();
        others.sort_by_key(|&index| (needs[index].num_tokens, index));
        for index in others {
            give(index, u32::MAX, &mut budget);
        }
        give(oldest, u32::MAX, &mut budget);
    }
    shares
}
