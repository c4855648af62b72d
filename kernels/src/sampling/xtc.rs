//! XTC, "exclude top choices": at some positions the likeliest tokens give way if there are other good ones.
//!
//! All tokens whose probability reaches a threshold are excluded except the least likely of them, as in llama.cpp. They
//! are the first ones in order of probability, so the draw only begins behind their mass.

use trunkline_contract::SamplingParams;

use super::philox::uniforms;

/// The random choices for one token.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// A number in [0, 1) that decides the token.
    pub u: f64,
    /// The share of the kept mass from which XTC excludes tokens, if it applies to this token.
    pub threshold: Option<f32>,
}

impl Draw {
    pub fn new(params: &SamplingParams, position: u32) -> Self {
        let [u, xtc] = uniforms(params.seed, params.choice, position);
        Self { u, threshold: (xtc < f64::from(params.xtc_probability)).then_some(params.xtc_threshold) }
    }

    /// Returns the least weight that XTC may exclude, if it applies. `kept` is the mass of all candidates.
    pub(super) fn least_excluded(self, kept: f64) -> Option<f64> {
        self.threshold.map(|threshold| f64::from(threshold) * kept)
    }

    /// Returns the cumulative weight that the drawn token is the first to exceed. It is less than `kept`.
    pub(super) fn target(self, kept: f64, excluded: f64) -> f64 {
        (excluded + self.u * (kept - excluded)).min(kept.next_down())
    }
}

/// Returns the mass of the weights that are positive and at least `least`, except the last of them. The weights must
/// descend.
pub(super) fn excluded_mass(weights: impl Iterator<Item = f32>, least: f64) -> f64 {
    let (mut mass, mut last) = (0.0, 0.0);
    for weight in weights.map(f64::from).take_while(|weight| *weight >= least && *weight > 0.0) {
        mass += weight;
        last = weight;
    }
    mass - last
}
