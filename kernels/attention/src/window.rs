//! The positions that a query sees: those before it, or also those behind it, all or within a window.

use super::SEGMENT_SIZE;

/// The positions that a query sees, relative to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    /// The number of positions up to its own.
    until: usize,
    /// The number of positions behind its own.
    behind: usize,
}

impl Window {
    /// All positions up to the query's own.
    pub const NONE: Self = Self { until: usize::MAX, behind: 0 };
    /// All positions of the sequence.
    pub const ALL: Self = Self { until: usize::MAX, behind: usize::MAX };

    /// A window of the last `num_positions` positions, including the query's own. Returns `None` for 0.
    pub fn new(num_positions: usize) -> Option<Self> {
        (num_positions > 0).then_some(Self { until: num_positions, behind: 0 })
    }

    /// The same window for encoders, which also see behind the query: as many positions as before it, or all.
    pub fn symmetric(self) -> Self {
        Self { behind: if self.is_bounded() { self.until - 1 } else { usize::MAX }, ..self }
    }

    /// Returns true if the query does not see all positions before its own.
    #[inline(always)]
    pub fn is_bounded(self) -> bool {
        self.until != usize::MAX
    }

    /// The first position that the query at `position` sees.
    #[inline(always)]
    pub fn first_visible(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.until)
    }

    /// The last position that the query at `position` sees in a sequence that ends at `last_position`.
    #[inline(always)]
    pub fn last_visible(self, position: usize, last_position: usize) -> usize {
        position.saturating_add(self.behind).min(last_position)
    }

    /// The segment of the first position that the query at `position` sees.
    pub fn first_segment(self, position: usize) -> usize {
        self.first_visible(position) / SEGMENT_SIZE
    }

    /// The number of consecutive queries from `position` on that can be computed together: they have the same first
    /// segment, and their last positions, were the sequence longer, lie in one block.
    pub fn rows_together(self, position: usize, block_size: usize) -> usize {
        let next = (self.first_segment(position) + 1) * SEGMENT_SIZE;
        let begin_together = self.until.saturating_add(next - 1) - position;
        if self.behind == usize::MAX {
            return begin_together;
        }
        begin_together.min(block_size - (position + self.behind) % block_size)
    }
}
