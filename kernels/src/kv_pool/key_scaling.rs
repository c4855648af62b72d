//! How keys are moved and stretched before they are rounded to four bits: per layer and KV head a mean and a factor.
//!
//! `q . (k - m)` serves as well as `q . k` as long as `q . m` is added to it: one number a block ([`KeyTurns`]), or
//! none if m is one for all positions: softmax ignores what all scores of a query have in common. And `q . k` is
//! `(q / d) . (k * d)` element by element. With m the mean of keys what is left to round is smaller, and with
//! d = (mean q^2 / mean (k - m)^2)^(1/4) the noise falls where queries are small: d is the least of sum(noise * q^2)
//! for noise that is spread evenly, as the transform spreads it.

use super::{KeyMean, KeyTurns, KvGeometry};
use crate::ops::rope::turn;

/// Means or squares below this part of a head's mean count as this: a channel that is never used has no scale.
const FLOOR: f64 = 1e-4;
/// Numbers of one layer and KV head: m, d and 1 / d.
const VECTORS: usize = 3;

/// m, d and 1 / d of all layers and KV heads: `[layer][G][3][D]`, in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyScaling {
    num_kv_heads: usize,
    head_size: usize,
    values: Vec<f32>,
}

/// m, d and 1 / d of one layer and KV head, `[D]` each.
#[derive(Clone, Copy, Debug)]
pub struct HeadScaling<'a> {
    /// Taken from keys, turned to their block.
    pub mean: &'a [f32],
    pub factor: &'a [f32],
    pub inverse: &'a [f32],
}

/// Sums over tokens from which a [`KeyScaling`] is made, each `[layer][G][D]`.
#[derive(Clone, Debug)]
pub struct KeySums {
    /// One for each block.
    keys: Vec<Vec<f64>>,
    key_squares: Vec<f64>,
    query_squares: Vec<f64>,
}

impl KeySums {
    /// Nothing yet, for a sequence of `num_blocks` whole blocks.
    pub fn new(g: &KvGeometry, num_blocks: usize) -> Self {
        let zeros = vec![0.0; g.num_layers * g.num_kv_heads * g.head_size];
        Self { keys: vec![zeros.clone(); num_blocks], key_squares: zeros.clone(), query_squares: zeros }
    }

    /// Adds the keys `[G * D]` of a layer of a token in the `block`-th block. Sums depend on the order of calls.
    pub fn add_keys(&mut self, layer: usize, block: usize, keys: &[f32]) {
        let start = layer * keys.len();
        let (sums, squares) = (&mut self.keys[block][start..], &mut self.key_squares[start..]);
        for ((key, sum), square) in keys.iter().zip(sums).zip(squares) {
            let key = f64::from(*key);
            *sum += key;
            *square += key * key;
        }
    }

    /// Adds a token's queries `[H * D]` of a layer, the heads of a KV head next to each other.
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

    /// What the sums say; `turns` has a row for each block. Plain operations: the same bits everywhere.
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
                // Roots are rounded the same everywhere, powers are not.
                let factor = (queries[d] / variances[d]).sqrt().sqrt();
                out[d] = means[d] as f32;
                out[g.head_size + d] = factor as f32;
                out[2 * g.head_size + d] = (1.0 / factor) as f32;
            }
        }
        scaling
    }

    /// The mean that keys of a head of all layers have in the first block, and what is left of their squares without
    /// the mean of their block. With that mean turned to each block, what is left is least: each turn is a rotation.
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

/// Numbers over their mean, none below [`FLOOR`]; `None` if the mean is no positive number.
fn floored(values: Vec<f64>) -> Option<Vec<f64>> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean.is_normal() && mean > 0.0).then(|| values.into_iter().map(|x| (x / mean).max(FLOOR)).collect())
}

impl KeyScaling {
    /// One that changes nothing.
    pub fn none(g: &KvGeometry) -> Self {
        let mut values = vec![1.0; g.num_layers * g.num_kv_heads * VECTORS * g.head_size];
        values.chunks_exact_mut(VECTORS * g.head_size).for_each(|head| head[..g.head_size].fill(0.0));
        Self { num_kv_heads: g.num_kv_heads, head_size: g.head_size, values }
    }

    /// One of these numbers, as [`KeyScaling::values`] gave them; `None` if they are not as many as the geometry has or
    /// one is not finite.
    pub fn from_values(g: &KvGeometry, values: Vec<f32>) -> Option<Self> {
        let fits = values.len() == g.num_layers * g.num_kv_heads * VECTORS * g.head_size;
        let scaling = Self { num_kv_heads: g.num_kv_heads, head_size: g.head_size, values };
        (fits && scaling.values.iter().all(|x| x.is_finite())).then_some(scaling)
    }

    /// `[layer][G][3][D]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// That of one layer and KV head. Panics if there is none.
    pub fn head(&self, layer: usize, kv_head: usize) -> HeadScaling<'_> {
        let size = VECTORS * self.head_size;
        let values = &self.values[(layer * self.num_kv_heads + kv_head) * size..][..size];
        let (mean, factors) = values.split_at(self.head_size);
        let (factor, inverse) = factors.split_at(self.head_size);
        HeadScaling { mean, factor, inverse }
    }
}
