//! The time of a step as a function of what it computes, fitted to the measured times.
//!
//! A step takes a fixed time (weights are read, kernels start), a time for each row (a position that it computes),
//! which is another one for the first 16, and a time for each position of context that its rows read:
//!
//! ```text
//! time = base + first · min(rows, 16) + row · max(rows − 16, 0) + context · positions + decode · positions of decodes
//! ```
//!
//! A position that a single row reads costs many times more than one that the rows of a chunk read together, so they
//! have costs of their own. Otherwise the decodes of streams would make the context of prompts look dear, and their
//! rows cheap.
//!
//! The first rows cost less, because the weights are read for all rows at once. Steps that only decode, or compute a
//! prompt of a few tokens, would make every row look cheap if they counted for the cost of a row.
//!
//! The costs minimise the squared relative error of recent steps. They are never negative. Relative, because
//! short steps are to be predicted as well as long ones, and because a step that the machine held up for long then
//! counts little. Costs that recent steps say nothing about stay as they were: each step improves one cost after the
//! other, starting with the last values, rather than solving for all of them.

use crate::plan::StepPlan;

/// The weight of all earlier steps when one is added. A step counts for a half after about 700 others, so that the
/// start of a long prompt, where rows read little context, is remembered at its end, where they read much.
const MEMORY: f64 = 0.999;
/// The costs of a step, one of its first rows, a further row, and a position of context of chunks and of decodes.
const NUM_COSTS: usize = 5;
/// The rows of a step that have a cost of their own.
const FIRST_ROWS: u64 = 16;
/// The rows of a step that is mostly prefill.
const MANY_ROWS: u64 = 256;
/// The rows that take as long as the fixed part of a step, as assumed of the first step, which cannot tell them apart.
const ASSUMED_ROWS_OF_BASE: f64 = 8.0;
/// Sums below this have faded away; smaller numbers lose their precision.
const LEAST_PRODUCT: f64 = 1e-200;
/// The number of times that a new step improves each cost.
const NUM_SWEEPS: usize = 4;
/// The weight of a new error in the mean error.
const ERROR_WEIGHT: f64 = 0.05;

/// The work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Positions that it computes.
    pub rows: u64,
    /// Positions of K and V that the rows of chunks with several rows read, themselves included.
    pub context: u64,
    /// Positions of K and V that single rows read, themselves included.
    pub decode_context: u64,
}

impl StepWork {
    /// Adds a chunk of `num_rows` positions from `first` on.
    pub fn add(&mut self, first: u32, num_rows: u32) {
        let (first, num_rows) = (u64::from(first), u64::from(num_rows));
        self.rows += num_rows;
        let context = if num_rows == 1 { &mut self.decode_context } else { &mut self.context };
        *context += num_rows * first + num_rows * (num_rows + 1) / 2;
    }

    /// Returns the work with `num_drafts` more positions in a chunk that was added with `num_rows` from `first` on.
    pub fn with_drafts(mut self, first: u32, num_rows: u32, num_drafts: u32) -> Self {
        let mut chunk = Self::default();
        chunk.add(first, num_rows);
        self.rows -= chunk.rows;
        self.context -= chunk.context;
        self.decode_context -= chunk.decode_context;
        self.add(first, num_rows + num_drafts);
        self
    }

    /// Returns the work of all chunks of a plan.
    pub fn of_plan(plan: &StepPlan) -> Self {
        let mut work = Self::default();
        plan.chunks.iter().for_each(|chunk| work.add(chunk.first_position, chunk.num_rows()));
        work
    }

    fn terms(self) -> [f64; NUM_COSTS] {
        let first = self.rows.min(FIRST_ROWS);
        let more = self.rows - first;
        [1.0, first as f64, more as f64, self.context as f64, self.decode_context as f64]
    }
}

/// The fitted costs of steps. They are unknown until a step was measured.
#[derive(Clone, Debug, Default)]
pub struct StepCost {
    /// Microseconds of the terms, in the order of [`StepWork::terms`].
    costs: [f64; NUM_COSTS],
    /// Sums over measured steps of the products of two terms, and of one term and the time, each divided by the time
    /// squared.
    products: [[f64; NUM_COSTS]; NUM_COSTS],
    with_time: [f64; NUM_COSTS],
    /// The mean of |predicted − measured| / measured.
    error: f64,
    /// Steps with more than the first rows, which tell the cost of a row.
    num_row_steps: u32,
}

impl StepCost {
    /// Takes the time of a step. A time of 0 was not measured.
    pub fn add(&mut self, work: StepWork, time_us: u64) {
        if time_us == 0 || work.rows == 0 {
            return;
        }
        let time = time_us as f64;
        match self.predict_us(work) {
            Some(predicted) => {
                self.error += ERROR_WEIGHT * ((predicted - time).abs() / time - self.error);
            }
            None => {
                let row = time / (work.rows as f64 + ASSUMED_ROWS_OF_BASE);
                self.costs = [row * ASSUMED_ROWS_OF_BASE, row, row, 0.0, 0.0];
            }
        }
        self.num_row_steps = self.num_row_steps.saturating_add(u32::from(work.rows > FIRST_ROWS));
        let terms = work.terms().map(|term| term / time);
        for (i, term) in terms.into_iter().enumerate() {
            for (sum, other) in self.products[i].iter_mut().zip(terms) {
                *sum = *sum * MEMORY + term * other;
            }
            self.with_time[i] = self.with_time[i] * MEMORY + term;
        }
        for _ in 0..NUM_SWEEPS {
            // A term that no recent step had says nothing about its cost.
            for i in (0..NUM_COSTS).filter(|&i| self.products[i][i] > LEAST_PRODUCT) {
                let others: f64 =
                    (0..NUM_COSTS).filter(|&k| k != i).map(|k| self.products[i][k] * self.costs[k]).sum();
                self.costs[i] = ((self.with_time[i] - others) / self.products[i][i]).max(0.0);
            }
        }
    }

    /// The predicted microseconds of a step; none before a step was measured.
    pub fn predict_us(&self, work: StepWork) -> Option<f64> {
        let is_known = self.products[0][0] > 0.0;
        is_known.then(|| work.terms().iter().zip(self.costs).map(|(term, cost)| term * cost).sum())
    }

    /// The predicted microseconds of a row in a step of many rows; none before a step was measured. Steps that had only
    /// a few rows of a prompt do not make it larger.
    pub fn row_us(&self) -> Option<f64> {
        let many = StepWork { rows: MANY_ROWS, ..StepWork::default() };
        self.predict_us(many).map(|us| us / MANY_ROWS as f64)
    }

    /// The number of steps from which [`Self::row_us`] was learned.
    pub fn num_row_steps(&self) -> u32 {
        self.num_row_steps
    }

    /// The mean relative error of the predictions.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// The most rows from position `first` on with which a step that also computes `beside` is predicted to take at
    /// most `time_us`; none before a step was measured.
    pub fn rows_within(&self, time_us: f64, beside: StepWork, first: u32) -> Option<u32> {
        let spare = time_us - self.predict_us(beside)?;
        if spare <= 0.0 {
            return Some(0);
        }
        // A further n rows take `square · n² + linear · n + first · n`, and beyond the first ones `row` instead of
        // `first`.
        let [_, first_row, row, context, _] = self.costs;
        let square = context / 2.0;
        let linear = context * (f64::from(first) + 0.5);
        let num_first = FIRST_ROWS.saturating_sub(beside.rows) as f64;
        // This form of the solution holds for a `square` of 0, too. Without any cost it is infinite and saturates.
        let solve = |linear: f64, spare: f64| {
            2.0 * spare / (linear + (linear * linear + 4.0 * square * spare).sqrt())
        };
        let within_first = solve(linear + first_row, spare);
        let with_more = || solve(linear + row, spare + (row - first_row) * num_first);
        Some(if within_first <= num_first { within_first } else { with_more() } as u32)
    }

    /// The number of rows at which the rows of a step take as long as its fixed part. Smaller steps spend most of their
    /// time on the latter. None before a step was measured.
    pub fn efficient_rows(&self) -> Option<u32> {
        let [base, _, row, ..] = self.costs;
        self.predict_us(StepWork::default()).map(|_| (base / row) as u32)
    }
}
