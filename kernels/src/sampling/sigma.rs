//! Top-nσ sampling (Tang et al., "Top-nσ", arXiv:2411.07641).

use trunkline_kernels_core::vector::LANES;

/// Replaces logits that are more than `width` standard deviations below the largest, `top`, by negative infinity.
///
/// The standard deviation is that of the finite logits. Sums have a fixed order, so the result is the same on every
/// instruction set.
pub fn keep_within_sigmas(logits: &mut [f32], top: f32, width: f32) {
    let is_finite = |logit: f32| logit > f32::NEG_INFINITY;
    let num_finite = logits.iter().filter(|logit| is_finite(**logit)).count() as f64;
    let mean = sum(logits, |logit| if is_finite(logit) { f64::from(logit) } else { 0.0 }) / num_finite;
    let square = |logit: f32| {
        let difference = if is_finite(logit) { f64::from(logit) - mean } else { 0.0 };
        difference * difference
    };
    let sigma = (sum(logits, square) / num_finite).sqrt();
    let lowest = f64::from(top) - f64::from(width) * sigma;
    for logit in logits {
        if f64::from(*logit) < lowest {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Sums with one accumulator for each lane.
fn sum(logits: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut sums = [0.0; LANES];
    for chunk in logits.chunks(LANES) {
        for (sum, logit) in sums.iter_mut().zip(chunk) {
            *sum += term(*logit);
        }
    }
    sums.iter().sum()
}
