//! Sliding windows: a query at position p sees p - W + 1 to p.

use super::SEGMENT_SIZE;

/// How far back queries see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(usize);

impl Window {
    pub const NONE: Self = Self(usize::MAX);

    /// The last `num_positions`, the query's own among them. None for 0.
    pub fn new(num_positions: usize) -> Option<Self> {
        (num_positions > 0).then_some(Self(num_positions))
    }

    /// The first position that the query at `position` sees.
    #[inline(always)]
    pub fn first_visible(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.0)
    }

    /// The segment of that position.
    pub fn first_segment(self, position: usize) -> usize {
        self.first_visible(position) / SEGMENT_SIZE
    }

    /// Queries from `position` on that have the same first segment, itself among them.
    pub fn rows_together(self, position: usize) -> usize {
        let next = (self.first_segment(position) + 1) * SEGMENT_SIZE;
        self.0.saturating_add(next - 1) - position
    }
}
