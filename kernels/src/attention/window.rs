//! Sliding windows. With a window of W, the query at position p sees positions p - W + 1 to p.

use super::SEGMENT_SIZE;

/// The number of positions that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(usize);

impl Window {
    pub const NONE: Self = Self(usize::MAX);

    /// A window of the last `num_positions` positions, including the query's own. Returns `None` for 0.
    pub fn new(num_positions: usize) -> Option<Self> {
        (num_positions > 0).then_some(Self(num_positions))
    }

    /// The first position that the query at `position` sees.
    #[inline(always)]
    pub fn first_visible(self, position: usize) -> usize {
        (position + 1).saturating_sub(self.0)
    }

    /// The segment of the first position that the query at `position` sees.
    pub fn first_segment(self, position: usize) -> usize {
        self.first_visible(position) / SEGMENT_SIZE
    }

    /// The number of consecutive queries from `position` on that have the same first segment.
    pub fn rows_together(self, position: usize) -> usize {
        let next = (self.first_segment(position) + 1) * SEGMENT_SIZE;
        self.0.saturating_add(next - 1) - position
    }
}
