//! The runs of a chunk's positions between the states that blocks keep (docs/decisions/0038).

use std::ops::Range;

/// Consecutive positions of a chunk, whose last state block number `block` of the sequence keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateRun {
    pub(super) positions: Range<usize>,
    pub(super) block: usize,
}

/// Divides the positions of a chunk. The last two blocks that it writes keep states, and so does a first one that was
/// partly filled, because it has one already. At most three runs; none without positions.
pub(super) fn state_runs(positions: Range<usize>, block_size: usize) -> impl Iterator<Item = StateRun> {
    let Range { start, end } = positions;
    let (first, last) = (start / block_size, end.div_ceil(block_size).saturating_sub(1));
    let was_begun = !start.is_multiple_of(block_size);
    let keeps = move |block: usize| block + 1 >= last || (was_begun && block == first);
    let mut next = start;
    (first..=last).filter(move |block| keeps(*block) && start < end).map(move |block| {
        let run = StateRun { positions: next..end.min((block + 1) * block_size), block };
        next = run.positions.end;
        run
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(positions: Range<usize>) -> Vec<(Range<usize>, usize)> {
        state_runs(positions, 4).map(|run| (run.positions, run.block)).collect()
    }

    #[test]
    fn states_are_kept_by_the_last_two_blocks_and_by_a_first_one_that_has_one() {
        assert_eq!(runs(0..3), [(0..3, 0)]);
        assert_eq!(runs(0..8), [(0..4, 0), (4..8, 1)]);
        assert_eq!(runs(0..17), [(0..16, 3), (16..17, 4)]);
        assert_eq!(runs(5..30), [(5..8, 1), (8..28, 6), (28..30, 7)]);
        assert_eq!(runs(5..10), [(5..8, 1), (8..10, 2)]);
        assert_eq!(runs(7..8), [(7..8, 1)]);
        assert_eq!(runs(8..8), []);
    }
}
