//! How one step's tokens are divided.

use crate::event::Priority;
use crate::sequence::SequenceKey;

/// What is left of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    pub(crate) tokens: u32,
    /// Chunks, and positions whose logits are computed.
    pub(crate) chunks: u32,
}

impl StepBudget {
    pub(crate) fn is_spent(self) -> bool {
        self.tokens == 0 || self.chunks == 0
    }

    /// A chunk, of which each position counts as one if it is scored.
    pub(crate) fn spend(&mut self, num_tokens: u32, is_scored: bool) {
        self.tokens -= num_tokens;
        self.chunks -= if is_scored { num_tokens } else { 1 };
    }
}

/// One sequence that has known tokens to compute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillNeed {
    pub(crate) key: SequenceKey,
    pub(crate) priority: Priority,
    pub(crate) num_tokens: u32,
}

/// Divides `budget` tokens over `needs`, which come in running order (class, then age).
///
/// A class gets what the classes before it leave. In it half of the tokens are the oldest's, so that it always gets on;
/// the other half goes to whoever needs least, so that a short prompt does not wait behind a long one; what these leave
/// is the oldest's again. Returns one number per need; all of them sum up to `min(budget, needed)`.
pub(crate) fn divide_prefill(mut budget: u32, needs: &[PrefillNeed]) -> Vec<u32> {
    let mut shares = vec![0; needs.len()];
    let mut begin = 0;
    for class in needs.chunk_by(|a, b| a.priority == b.priority) {
        let mut give = |index: usize, at_most: u32, budget: &mut u32| {
            let share = at_most.min(*budget).min(needs[index].num_tokens - shares[index]);
            shares[index] += share;
            *budget -= share;
        };
        give(begin, budget.div_ceil(2), &mut budget);
        let mut others: Vec<usize> = (begin + 1..begin + class.len()).collect();
        others.sort_by_key(|&index| (needs[index].num_tokens, index));
        for index in others {
            give(index, u32::MAX, &mut budget);
        }
        give(begin, u32::MAX, &mut budget);
        begin += class.len();
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Priority::{High, Low, Normal};

    fn divide(budget: u32, needs: &[(Priority, u32)]) -> Vec<u32> {
        let key = crate::sequence::tests::key();
        let needs: Vec<_> =
            needs.iter().map(|&(priority, num_tokens)| PrefillNeed { key, priority, num_tokens }).collect();
        divide_prefill(budget, &needs)
    }

    #[test]
    fn one_prompt_gets_everything() {
        assert_eq!(divide(512, &[(Normal, 10_000)]), [512]);
        assert_eq!(divide(512, &[(Normal, 10)]), [10]);
        assert_eq!(divide(0, &[(Normal, 10)]), [0]);
        assert_eq!(divide(7, &[]), [0; 0]);
    }

    #[test]
    fn a_short_prompt_does_not_wait_behind_long_ones() {
        assert_eq!(divide(512, &[(Normal, 10_000), (Normal, 20)]), [492, 20]);
        assert_eq!(divide(512, &[(Normal, 10_000), (Normal, 9_000), (Normal, 20)]), [256, 236, 20]);
    }

    #[test]
    fn the_oldest_always_gets_on() {
        assert_eq!(divide(1, &[(Normal, 10_000), (Normal, 1)]), [1, 0]);
        assert_eq!(divide(100, &[(Normal, 900), (Normal, 100), (Normal, 100)]), [50, 50, 0]);
    }

    #[test]
    fn a_class_gets_what_the_higher_ones_leave() {
        assert_eq!(divide(100, &[(High, 90), (Normal, 50), (Normal, 5), (Low, 50)]), [90, 5, 5, 0]);
        assert_eq!(divide(100, &[(High, 200), (Low, 5)]), [100, 0]);
        assert_eq!(divide(100, &[(High, 10), (Low, 500)]), [10, 90]);
    }
}
