//! The mean of a sequence's rows, for encoders, whose chunks are whole prompts.

use super::run::Step;
use crate::program::View;

/// Elements that are added up at the same time.
const COLUMNS: usize = 64;

impl Step<'_> {
    /// Writes the mean of `x` over the chunk of sampled row `sample` to that row of `out`. Sums are in f64 and in the
    /// order of positions, like those of [`super::pool`].
    pub(super) fn mean(&self, x: View, sample: usize, out: View) {
        let chunk = &self.rows.chunks[self.rows.sample_chunks[sample]];
        let row = self.rows.samples[sample];
        let first_row = row - (self.rows.positions[row] as usize - chunk.first_position);
        for (part, means) in self.row_mut(out, sample).chunks_mut(COLUMNS).enumerate() {
            let mut sums = [0.0f64; COLUMNS];
            for row in first_row..first_row + chunk.num_tokens {
                let values = &self.row(x, row)[part * COLUMNS..];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            for (mean, sum) in means.iter_mut().zip(sums) {
                *mean = (sum / chunk.num_tokens as f64) as f32;
            }
        }
    }
}
