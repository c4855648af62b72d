//! The budget of one step, and its division among sequences.

use crate::event::Priority;
use crate::fairness::TenantKey;
use crate::sequence::SequenceKey;

/// The remaining budget of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepBudget {
    pub tokens: u32,
    /// The chunks that it may still have, and the positions whose logits may still be computed.
    pub chunks: u32,
}

impl StepBudget {
    pub fn is_spent(self) -> bool {
        self.tokens == 0 || self.chunks == 0
    }

    /// Spends the budget of one chunk. If it is scored, each of its positions counts as a chunk.
    pub fn spend(&mut self, num_tokens: u32, is_scored: bool) {
        self.tokens -= num_tokens;
        self.chunks -= if is_scored { num_tokens } else { 1 };
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
