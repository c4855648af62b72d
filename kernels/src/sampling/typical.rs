//! Locally typical sampling: draws among the tokens whose information is nearest to the mean information (the entropy).
//!
//! Meister et al., "Locally Typical Sampling", TACL 2023, doi:10.1162/tacl_a_00536.

use trunkline_contract::SamplingParams;

use super::sampler::Sampler;
use super::scan::{gather, key_token};
use super::xtc::{Draw, excluded_mass};
use crate::isa::Isa;

/// The scaled distance from the largest logit beyond which weights are 0, because weights below 2^-34 are rounded to 0.
const MAX_DISTANCE: f32 = 24.0;

impl Sampler {
    /// Like `Sampler::draw`, but after top_k, top_p and min_p it keeps only the tokens nearest to the mean information,
    /// up to `typical_p` of their mass, including all that are as near as the last one. `top` is the largest logit and
    /// `inverse` one over the temperature.
    ///
    /// The mean information is `ln(mass) - sum(w x) / sum(w)` over scaled logits x with weights w, and the information
    /// of a token is `ln(mass) - x`; `ln(mass)` cancels in the difference. Sums are in the order of the candidates, so
    /// the result is the same on every instruction set.
    pub(super) fn draw_typical(
        &mut self,
        isa: Isa,
        logits: &[f32],
        (top, inverse): (f32, f32),
        params: &SamplingParams,
        draw: Draw,
    ) -> u32 {
        let top_k = params.top_k as usize;
        if top_k > 0 {
            self.gather_at_least(isa, logits, top, params.temperature, top_k);
            self.keep_first(top_k);
        } else {
            self.keys.clear();
            gather(isa, logits, top - MAX_DISTANCE / inverse, &mut self.keys);
            self.keys.sort_unstable();
        }
        self.weigh(isa, logits, top, inverse);
        let num_weighty = self.weights.iter().take_while(|weight| **weight > 0.0).count();
        self.keys.truncate(num_weighty);
        self.weights.truncate(num_weighty);
        let total = self.weights.iter().map(|weight| f64::from(*weight)).sum();
        let (num_kept, kept) = self.keep(params, total, true).unwrap_or((num_weighty, total));
        let scaled = |key: u64| f64::from((logits[key_token(key) as usize] - top) * inverse);
        let candidates = || self.keys[..num_kept].iter().zip(&self.weights[..num_kept]);
        let mean = candidates().map(|(key, weight)| f64::from(*weight) * scaled(*key)).sum::<f64>() / kept;
        self.distances.clear();
        // The bits of non-negative numbers compare like the numbers.
        let distance = |key: u64| (scaled(key) - mean).abs().to_bits();
        self.distances.extend((0..).zip(&self.keys[..num_kept]).map(|(index, key)| (distance(*key), index)));
        self.distances.sort_unstable();
        let reach = f64::from(params.typical_p) * kept;
        let mut cumulative = 0.0;
        let last = self.distances.iter().find(|(_, index)| {
            cumulative += f64::from(self.weights[*index as usize]);
            cumulative >= reach
        });
        let farthest = last.or(self.distances.last()).map_or(0, |(distance, _)| *distance);
        let typical = || candidates().filter(|(key, _)| distance(**key) <= farthest);
        let kept = typical().map(|(_, weight)| f64::from(*weight)).sum();
        let excluded =
            draw.least_excluded(kept).map(|least| excluded_mass(typical().map(|(_, weight)| *weight), least));
        let target = draw.target(kept, excluded.unwrap_or(0.0));
        let mut cumulative = 0.0;
        let drawn = typical().find(|(_, weight)| {
            cumulative += f64::from(**weight);
            cumulative > target
        });
        drawn.or(typical().next_back()).map_or(0, |(key, _)| key_token(*key))
    }
}
