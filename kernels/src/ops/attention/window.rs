//! Sliding windows: a query at position p sees p - W + 1 to p.

use super::SEGMENT_SIZE;

/// How far back queries see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window(usize);

impl Window {
    /// To the beginning.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_together_are_all_with_the_same_first_segment() {
        for size in [1, 2, 511, 512, 513, 1024, 5000] {
            let window = Window::new(size).unwrap();
            for position in 0..3000 {
                let same =
                    (position..).take_while(|p| window.first_segment(*p) == window.first_segment(position));
                assert_eq!(
                    window.rows_together(position),
                    same.count(),
                    "window {size}, position {position}"
                );
            }
        }
        assert_eq!(Window::NONE.first_visible(1 << 40), 0);
        assert!(Window::NONE.rows_together(1 << 40) > 1 << 60);
        assert_eq!(Window::new(0), None);
    }
}
