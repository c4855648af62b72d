//! How keys are moved and stretched before they are rounded to four bits: per layer and KV head a mean and a factor.
//!
//! Softmax ignores what all scores of a query have in common, so `q . (k - m)` serves as well as `q . k` as long as m
//! is one for all positions; and `q . k` is `(q / d) . (k * d)` element by element. With m the mean of keys (after
//! rope) what is left to round is smaller, and with d = (mean q^2 / mean (k - m)^2)^(1/4) the noise falls where queries
//! are small: d is the least of sum(noise * q^2) for noise that is spread evenly, as the transform spreads it.

use super::KvGeometry;

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
    /// Taken from keys.
    pub mean: &'a [f32],
    /// Multiplies keys then.
    pub factor: &'a [f32],
    /// Multiplies queries.
    pub inverse: &'a [f32],
}

/// Sums over tokens from which a [`KeyScaling`] is made, each `[layer][G][D]`.
#[derive(Clone, Debug)]
pub struct KeySums {
    keys: Vec<f64>,
    key_squares: Vec<f64>,
    query_squares: Vec<f64>,
}

impl KeySums {
    /// Nothing yet.
    pub fn new(g: &KvGeometry) -> Self {
        let zeros = vec![0.0; g.num_layers * g.num_kv_heads * g.head_size];
        Self { keys: zeros.clone(), key_squares: zeros.clone(), query_squares: zeros }
    }

    /// Adds a token's keys `[G * D]` of a layer. Sums depend on the order of calls.
    pub fn add_keys(&mut self, layer: usize, keys: &[f32]) {
        let start = layer * keys.len();
        for (i, key) in keys.iter().enumerate() {
            let key = f64::from(*key);
            self.keys[start + i] += key;
            self.key_squares[start + i] += key * key;
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

    /// What the sums over `num_tokens` tokens of keys say. Plain operations: the same bits everywhere.
    pub fn scaling(&self, g: &KvGeometry, num_tokens: usize) -> KeyScaling {
        let mut scaling = KeyScaling::none(g);
        let tokens = num_tokens as f64;
        let heads = scaling.values.chunks_exact_mut(VECTORS * g.head_size);
        for (head, out) in heads.enumerate() {
            let range = head * g.head_size..(head + 1) * g.head_size;
            let means: Vec<f64> = self.keys[range.clone()].iter().map(|sum| sum / tokens).collect();
            let squares = self.key_squares[range.clone()].iter().zip(&means);
            let variances = floored(squares.map(|(sum, mean)| sum / tokens - mean * mean).collect());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_pool::KvDtype;

    const G: KvGeometry =
        KvGeometry { num_layers: 2, num_kv_heads: 1, head_size: 4, block_size: 16, dtype: KvDtype::Int4 };

    #[test]
    fn factors_are_fourth_roots_of_query_over_key_and_channels_without_either_are_bounded() {
        let mut sums = KeySums::new(&G);
        for sign in [-1.0, 1.0] {
            sums.add_keys(1, &[3.0 + sign, 5.0 + 4.0 * sign, 7.0, sign]);
            sums.add_queries(&G, 1, &[1.0, 4.0, 1.0, 0.0, 1.0, 4.0, 1.0, 0.0]);
        }
        let scaling = sums.scaling(&G, 2);
        let head = scaling.head(1, 0);
        assert_eq!(head.mean, [3.0, 5.0, 7.0, 0.0]);
        // Squares of queries to those of keys: 1 to 1 and 16 to 16.
        assert!((head.factor[0] / head.factor[1] - 1.0).abs() < 1e-6, "{head:?}");
        assert!(head.factor.iter().chain(head.inverse).all(|x| (1e-3..=1e3).contains(x)), "{head:?}");
        for (factor, inverse) in head.factor.iter().zip(head.inverse) {
            assert!((factor * inverse - 1.0).abs() < 1e-6);
        }
        // No token was seen in layer 0.
        assert_eq!(scaling.head(0, 0).factor, [1.0; 4]);
        assert_eq!(scaling.head(0, 0).mean, [0.0; 4]);
    }

    #[test]
    fn values_that_do_not_fit_or_are_not_finite_are_refused() {
        let values = KeyScaling::none(&G).values().to_vec();
        assert_eq!(KeyScaling::from_values(&G, values.clone()), Some(KeyScaling::none(&G)));
        assert_eq!(KeyScaling::from_values(&G, values[1..].to_vec()), None);
        let mut bad = values;
        bad[5] = f32::NAN;
        assert_eq!(KeyScaling::from_values(&G, bad), None);
    }
}
