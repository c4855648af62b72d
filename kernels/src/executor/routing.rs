//! The order in which a step's rows are sorted by the experts that they use.

use std::ops::Range;

/// The rows of a layer with experts, sorted by expert. A row that uses k experts has k routes, in the order of its
/// choices; sorted rows have one place for each route.
///
/// Each thread sorts for itself, which is cheaper than a barrier behind one thread that sorts for all. The memory is
/// reused from layer to layer.
#[derive(Debug, Default)]
pub struct Routing {
    /// The row of each place.
    rows: Vec<u32>,
    /// The place of each route, row by row.
    places: Vec<u32>,
    /// The experts that are used, ascending, with the end of their places.
    used: Vec<(u32, u32)>,
    /// Memory for sorting: the next place of each expert.
    next: Vec<u32>,
}

impl Routing {
    /// Creates memory for up to `max_routes` routes to `max_experts` experts.
    pub fn for_steps(max_routes: usize, max_experts: usize) -> Self {
        Self {
            rows: Vec::with_capacity(max_routes),
            places: Vec::with_capacity(max_routes),
            used: Vec::with_capacity(max_experts.min(max_routes)),
            next: Vec::with_capacity(max_experts),
        }
    }

    /// Sorts the routes of `num_rows` rows. `experts_of` returns the experts that a row uses, each below
    /// `num_experts`. Rows of one expert keep their order.
    pub fn sort<I: Iterator<Item = usize>>(
        &mut self,
        num_rows: usize,
        num_experts: usize,
        experts_of: impl Fn(usize) -> I,
    ) {
        self.next.clear();
        self.next.resize(num_experts, 0);
        let mut num_routes = 0;
        for row in 0..num_rows {
            for expert in experts_of(row) {
                self.next[expert] += 1;
                num_routes += 1;
            }
        }
        self.used.clear();
        let mut end = 0;
        for (expert, next) in self.next.iter_mut().enumerate() {
            let count = std::mem::replace(next, end);
            if count > 0 {
                end += count;
                self.used.push((expert as u32, end));
            }
        }
        self.rows.clear();
        self.rows.resize(num_routes, 0);
        self.places.clear();
        for row in 0..num_rows {
            for expert in experts_of(row) {
                let place = self.next[expert];
                self.next[expert] += 1;
                self.rows[place as usize] = row as u32;
                self.places.push(place);
            }
        }
    }

    /// The row of a place.
    pub fn row(&self, place: usize) -> usize {
        self.rows[place] as usize
    }

    /// The place of a row's n-th route, if each row has `num_used`.
    pub fn place(&self, row: usize, num_used: usize, n: usize) -> usize {
        self.places[row * num_used + n] as usize
    }

    pub fn num_used(&self) -> usize {
        self.used.len()
    }

    /// The n-th used expert and the places of its rows.
    pub fn used(&self, n: usize) -> (usize, Range<usize>) {
        let start = n.checked_sub(1).map_or(0, |before| self.used[before].1 as usize);
        (self.used[n].0 as usize, start..self.used[n].1 as usize)
    }
}
