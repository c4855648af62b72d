//! Draws from many candidates without sorting all of them.
//!
//! Tokens are divided into buckets of similar logits. Only the bucket in which top_p ends and the bucket that contains
//! the draw are sorted. Sums of weights are exact ([`super::scan::mass`]), so the result is the same as with sorting.

use trunkline_contract::SamplingParams;

use super::scan::{key_token, sort_key};
use super::xtc::Draw;

const NUM_BUCKETS: usize = 2048;
/// Scaled distances from the largest logit beyond which all tokens share a bucket. Their weight is 0 or nearly 0.
const MAX_DISTANCE: f32 = 24.0;

/// A row of logits with its weights before any filter.
#[derive(Debug)]
pub struct Row<'a> {
    pub logits: &'a [f32],
    /// The weights in the same order. They are overwritten.
    pub weights: &'a mut [f32],
    pub top: f32,
    /// One over the temperature; not 0.
    pub inverse_temperature: f32,
}

#[derive(Debug)]
pub struct Buckets {
    masses: Box<[f64; NUM_BUCKETS]>,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { masses: Box::new([0.0; NUM_BUCKETS]) }
    }
}

/// The monotone mapping of logits to buckets. Larger logits never have a larger bucket index.
#[derive(Clone, Copy)]
struct Scale {
    top: f32,
    buckets_per_logit: f32,
}

impl Scale {
    fn new(row: &Row<'_>) -> Self {
        let finite =
            |lowest: f32, logit: &f32| if *logit > f32::NEG_INFINITY { lowest.min(*logit) } else { lowest };
        let lowest = row.logits.iter().fold(row.top, finite);
        // The last bucket holds the lowest logit and all that are beyond the distance.
        let distance = (row.top - lowest).min(MAX_DISTANCE / row.inverse_temperature).max(f32::MIN_POSITIVE);
        Self { top: row.top, buckets_per_logit: ((NUM_BUCKETS - 1) as f32 / distance).min(f32::MAX) }
    }

    fn bucket(self, logit: f32) -> usize {
        // The conversion to usize saturates.
        (((self.top - logit) * self.buckets_per_logit) as usize).min(NUM_BUCKETS - 1)
    }
}

impl Buckets {
    /// Applies min_p, top_p and XTC, then draws the first token, in descending order of weight, at which the cumulative
    /// weight exceeds the target of `draw`. `total` is the mass of the row, and `keys` is working memory. Costs O(V)
    /// and two small sorts.
    pub fn draw(
        &mut self,
        row: Row<'_>,
        keys: &mut Vec<u64>,
        params: &SamplingParams,
        draw: Draw,
        total: f64,
    ) -> u32 {
        let scale = Scale::new(&row);
        let Row { logits, weights, .. } = row;
        if params.min_p > 0.0 {
            drop_below(logits, weights, params.min_p);
        }
        self.masses.fill(0.0);
        for (logit, weight) in logits.iter().zip(&*weights) {
            self.masses[scale.bucket(*logit)] += f64::from(*weight);
        }
        let weights = &*weights;
        let weight = |key: &u64| f64::from(weights[key_token(*key) as usize]);
        let (mut kept, mut last) = (self.masses.iter().sum(), f64::INFINITY);
        let reach = f64::from(params.top_p) * total;
        if params.top_p < 1.0
            && let Some((bucket, mut cumulative)) = self.first(|cumulative| cumulative >= reach)
        {
            sort_bucket(bucket, scale, logits, weights, keys);
            for key in &*keys {
                if cumulative >= reach {
                    break;
                }
                last = weight(key);
                cumulative += last;
            }
            kept = cumulative;
        }
        let target = draw.target(kept, excluded(weights, draw, (kept, last)));
        let (bucket, mut cumulative) =
            self.first(|cumulative| cumulative > target).unwrap_or((NUM_BUCKETS - 1, 0.0));
        sort_bucket(bucket, scale, logits, weights, keys);
        let drawn = keys.iter().find(|key| {
            cumulative += weight(key);
            cumulative > target
        });
        // There is always one, because the mass of a bucket is the sum of its tokens' weights.
        drawn.or(keys.last()).map_or(0, |key| key_token(*key))
    }

    /// Returns the first bucket for which `is_enough` accepts the cumulative mass, and the mass before it.
    fn first(&self, is_enough: impl Fn(f64) -> bool) -> Option<(usize, f64)> {
        let mut cumulative = 0.0;
        for (bucket, mass) in self.masses.iter().enumerate() {
            if is_enough(cumulative + mass) {
                return Some((bucket, cumulative));
            }
            cumulative += mass;
        }
        None
    }
}

/// Returns the mass that XTC excludes. The last argument holds the mass of the tokens that the filters keep, and the
/// weight of the last of them if top_p cut the others.
fn excluded(weights: &[f32], draw: Draw, (kept, last_kept): (f64, f64)) -> f64 {
    let Some(least) = draw.least_excluded(kept) else { return 0.0 };
    let (mut mass, mut last) = (0.0, f64::INFINITY);
    for weight in weights.iter().map(|weight| f64::from(*weight)) {
        if weight >= least && weight > 0.0 {
            mass += weight;
            last = last.min(weight);
        }
    }
    match (mass > kept, last.is_finite()) {
        // The cut is among the tokens with such a weight.
        (true, _) => kept - last_kept,
        (false, true) => mass - last,
        (false, false) => 0.0,
    }
}

/// Fills `keys` with the sorted keys of a bucket's tokens with a positive weight.
fn sort_bucket(bucket: usize, scale: Scale, logits: &[f32], weights: &[f32], keys: &mut Vec<u64>) {
    keys.clear();
    for (token_id, (logit, weight)) in logits.iter().zip(weights).enumerate() {
        if scale.bucket(*logit) == bucket && *weight > 0.0 {
            keys.push(sort_key(*logit, token_id as u32));
        }
    }
    keys.sort_unstable();
}

/// Clears the weight of the first token, in descending order of weight, that is below `min_p`, and of all after it.
fn drop_below(logits: &[f32], weights: &mut [f32], min_p: f32) {
    let below = logits.iter().zip(&*weights).enumerate().filter(|(_, (_, weight))| **weight < min_p);
    let first = below.map(|(token_id, (logit, _))| sort_key(*logit, token_id as u32)).min();
    let Some(first) = first else { return };
    for (token_id, (logit, weight)) in logits.iter().zip(weights).enumerate() {
        if sort_key(*logit, token_id as u32) >= first {
            *weight = 0.0;
        }
    }
}
