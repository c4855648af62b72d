//! How one step's tokens are divided.

use crate::event::Priority;
use crate::fairness::TenantKey;
use crate::sequence::SequenceKey;

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub struct StepBudget {
    pub tokens: u32,
    /// Chunks, and positions whose logits are computed.
    pub chunks: u32,
}

impl StepBudget {
    pub fn is_spent(self) -> bool {
        self.tokens == 0 || self.chunks == 0
    }

    /// A chunk, of which each position counts as one if it is scored.
    pub fn spend(&mut self, num_tokens: u32, is_scored: bool) {
        self.tokens -= num_tokens;
        self.chunks -= if is_scored { num_tokens } else { 1 };
    }
}

/// One sequence that has known tokens to compute.
#[derive(Clone, Copy, Debug)]
pub struct PrefillNeed {
    pub key: SequenceKey,
    pub priority: Priority,
    pub tenant: TenantKey,
    /// What the tenant got so far.
    pub served: u64,
    pub num_tokens: u32,
}

/// Divides `budget` tokens over `needs`, which come in running order (class, then age).
///
/// A class gets what the classes before it leave, and in it a tenant what those leave that got less than it so far. Of
/// what a tenant gets in a class half of the tokens are the oldest's, so that it always gets on; the other half goes to
/// whoever needs least, so that a short prompt does not wait behind a long one; what these leave is the oldest's again.
/// Returns one number per need; all of them sum up to `min(budget, needed)`.
pub fn divide_prefill(mut budget: u32, needs: &[PrefillNeed]) -> Vec<u32> {
    let mut shares = vec![0; needs.len()];
    // Stable: those of one tenant stay in running order.
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
