//! Scaling of keys before they are rounded to four bits: a mean and a factor per layer and KV head.
//!
//! Instead of a key k, the pool stores `(k - m) * d` element by element.
//!
//! - Subtracting m, the mean of the keys, leaves smaller numbers to round. `q . k` is `q . (k - m)` plus `q . m`, which
//!   is one number per block ([`KeyTurns`]). If m is the same at all positions, `q . m` can be left out, because
//!   softmax ignores a constant that is added to all scores of a query.
//! - Because `q . k = (q / d) . (k * d)`, queries are divided by d. The factor `d = (mean q^2 / mean (k - m)^2)^(1/4)`
//!   puts the rounding noise where queries are small. It minimises `sum(noise * q^2)` for noise that is spread evenly
//!   over the elements, as the transform spreads it.

use super::{KeyMean, KeyTurns, KvGeometry};
use crate::ops::rope::turn;

/// Mean squares are raised to at least this fraction of their mean over the head, so that unused channels get a finite
/// factor.
const FLOOR: f64 = 1e-4;
/// Number of vectors per layer and KV head: m, d and 1 / d.
const VECTORS: usize = 3;

/// m, d and 1 / d of all layers and KV heads: f32 of shape `[layer][G][3][D]`.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyScaling {
    num_kv_heads: usize,
    head_size: usize,
    values: Vec<f32>,
}

/// m, d and 1 / d of one layer and KV head, `[D]` each.
#[derive(Clone, Copy, Debug)]
pub struct HeadScaling<'a> {
    /// The mean m, subtracted from keys after it is rotated to their block.
    pub mean: &'a [f32],
    pub factor: &'a [f32],
    pub inverse: &'a [f32],
}

/// Sums over tokens from which a [`KeyScaling`] is computed, each `[layer][G][D]`.
#[derive(Clone, Debug)]
pub struct KeySums {
    /// Sums of keys, for each block.
    keys: Vec<Vec<f64>>,
    key_squares: Vec<f64>,
    query_squares: Vec<f64>,
}

impl KeySums {
    pub fn new(g: &KvGeometry, num_blocks: usize) -> Self {
        let zeros = vec![0.0; g.num_layers * g.num_kv_heads * g.head_size];
        Self { keys: vec![zeros.clone(); num_blocks], key_squares: zeros.clone(), query_squares: zeros }
    }

    /// Adds the keys `[G * D]` of one layer of a token in block `block`. The sums are rounded, so they depend on the
    /// order of calls.
    pub fn add_keys(&mut self, layer: usize, block: usize, keys: &[f32]) {
        let start = layer * keys.len();
        let (sums, squares) = (&mut self.keys[block][start..], &mut self.key_squares[start..]);
        for ((key, sum), square) in keys.iter().zip(sums).zip(squares) {
            let key = f64::from(*key);
            *sum += key;
            *square += key * key;
        }
    }

    /// Adds the queries `[H * D]` of one layer of a token. The query heads of a KV head are adjacent.
    pub fn add_queries(&mut self, g: &KvGeometry, layer: usize, queries: &[f32]) {
        let start = layer * g.num_kv_heads * g.head_size;
        let heads_per_kv_head = queries.len() / (g.num_kv_heads * g.head_size);
        for (head, query) in queries.chunks_exact(g.head_size).enumerate() {
            let first = start + head / heads_per_kv_head * g.head_size;
            for (sum, query) in self.query_squares[first..].iter_mut().zip(query) {
                *sum += f64::from(*query) * f64::from(*query);
            }
        }
    }

    /// Computes the scaling from the sums. `turns` has a row for each block. The bits are the same on every CPU.
    pub fn scaling(&self, g: &KvGeometry, turns: &KeyTurns) -> KeyScaling {
        let mut scaling = KeyScaling::none(g);
        let heads = scaling.values.chunks_exact_mut(VECTORS * g.head_size);
        for (head, out) in heads.enumerate() {
            let range = head * g.head_size..(head + 1) * g.head_size;
            let (means, variances) = self.moments(g, turns, head);
            let variances = floored(variances);
            let queries = floored(self.query_squares[range].to_vec());
            let (Some(variances), Some(queries)) = (variances, queries) else { continue };
            for d in 0..g.head_size {
                // Square roots are rounded the same everywhere, powers are not.
                let factor = (queries[d] / variances[d]).sqrt().sqrt();
                out[d] = means[d] as f32;
                out[g.head_size + d] = factor as f32;
                out[2 * g.head_size + d] = (1.0 / factor) as f32;
            }
        }
        scaling
    }

    /// Returns the mean of a head's keys in the first block, and the variance of the keys around that mean rotated to
    /// their block. `head` counts the KV heads of all layers.
    ///
    /// The mean is the average of all keys rotated back to the first block. It minimises the variance, because
    /// rotations preserve distances.
    fn moments(&self, g: &KvGeometry, turns: &KeyTurns, head: usize) -> (Vec<f64>, Vec<f64>) {
        let (layer, range) = (head / g.num_kv_heads, head * g.head_size..(head + 1) * g.head_size);
        let num_blocks = self.keys.len() as f64;
        let block_size = g.block_size as f64;
        let mut mean = vec![0.0; g.head_size];
        if turns.layer(layer) != KeyMean::Zero {
            for (block, sums) in self.keys.iter().enumerate() {
                let mut turned: Vec<f64> = sums[range.clone()].to_vec();
                turn(&mut turned, turns.row(layer, block), -1.0);
                mean.iter_mut().zip(turned).for_each(|(mean, sum)| *mean += sum);
            }
            mean.iter_mut().for_each(|mean| *mean /= num_blocks * block_size);
        }
        let mut left = self.key_squares[range.clone()].to_vec();
        for (block, sums) in self.keys.iter().enumerate() {
            let mut turned = mean.clone();
            turn(&mut turned, turns.row(layer, block), 1.0);
            for ((left, sum), mean) in left.iter_mut().zip(&sums[range.clone()]).zip(turned) {
                *left -= (2.0 * sum - block_size * mean) * mean;
            }
        }
        left.iter_mut().for_each(|left| *left /= num_blocks * block_size);
        (mean, left)
    }
}

/// Divides the values by their mean and raises them to at least [`FLOOR`]. Returns `None` unless the mean is a positive
/// normal number.
fn floored(values: Vec<f64>) -> Option<Vec<f64>> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean.is_normal() && mean > 0.0).then(|| values.into_iter().map(|x| (x / mean).max(FLOOR)).collect())
}

impl KeyScaling {
    /// The scaling that changes nothing.
    pub fn none(g: &KvGeometry) -> Self {
        let mut values = vec![1.0; g.num_layers * g.num_kv_heads * VECTORS * g.head_size];
        values.chunks_exact_mut(VECTORS * g.head_size).for_each(|head| head[..g.head_size].fill(0.0));
        Self { num_kv_heads: g.num_kv_heads, head_size: g.head_size, values }
    }

    /// Creates a scaling from the result of [`KeyScaling::values`]. Returns `None` if the number of values does not
    /// match the geometry or a value is not finite.
    pub fn from_values(g: &KvGeometry, values: Vec<f32>) -> Option<Self> {
        let fits = values.len() == g.num_layers * g.num_kv_heads * VECTORS * g.head_size;
        let scaling = Self { num_kv_heads: g.num_kv_heads, head_size: g.head_size, values };
        (fits && scaling.values.iter().all(|x| x.is_finite())).then_some(scaling)
    }

    /// All values, in the order `[layer][G][3][D]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The scaling of one layer and KV head. Panics if there is no such head.
    #[inline]
    pub fn head(&self, layer: usize, kv_head: usize) -> HeadScaling<'_> {
        let size = VECTORS * self.head_size;
        let values = &self.values[(layer * self.num_kv_heads + kv_head) * size..][..size];
        let (mean, factors) = values.split_at(self.head_size);
        let (factor, inverse) = factors.split_at(self.head_size);
        HeadScaling { mean, factor, inverse }
    }
}
