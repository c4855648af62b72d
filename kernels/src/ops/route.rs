//! Routing of rows to experts (arXiv:1701.06538, section 2.1).

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

/// The most experts of a layer. Published models have up to 512.
pub const MAX_EXPERTS: usize = 1024;

/// Returns the index of the largest logit that is not used yet. NaN is smaller than any number; ties go to the lower
/// index.
fn best(logits: &[f32], is_used: &[bool]) -> usize {
    let mut best: Option<usize> = None;
    for (expert, logit) in logits.iter().enumerate().filter(|(expert, _)| !is_used[*expert]) {
        let is_better =
            best.is_none_or(|best| *logit > logits[best] || (logits[best].is_nan() && !logit.is_nan()));
        if is_better {
            best = Some(expert);
        }
    }
    best.expect("fewer experts are used than there are")
}

#[inline(always)]
unsafe fn route_generic<L: Lanes>(logits: &[f32], renormalise: bool, out: &mut [f32]) {
    let (num_experts, num_used) = (logits.len(), out.len() / 2);
    assert!((1..=MAX_EXPERTS).contains(&num_experts) && (1..=num_experts).contains(&num_used));
    let (weights, experts) = out.split_at_mut(num_used);
    let mut is_used = [false; MAX_EXPERTS];
    for expert in experts.iter_mut() {
        let best = best(logits, &is_used);
        is_used[best] = true;
        // `best` is below MAX_EXPERTS.
        *expert = f32::from_bits(best as u32);
    }
    let expert = |bits: f32| bits.to_bits() as usize;
    let largest = logits[expert(experts[0])];
    let mut masses = [0.0; MAX_EXPERTS];
    each_vector!(num_experts, |i, lanes| {
        // SAFETY: i + lanes is at most the number of experts, which is at most MAX_EXPERTS.
        unsafe {
            let logit = L::load_first(logits.as_ptr().add(i), lanes);
            exp(logit.sub(L::splat(largest))).store_first(masses.as_mut_ptr().add(i), lanes);
        }
    });
    let sum: f32 = if renormalise {
        experts.iter().map(|bits| masses[expert(*bits)]).sum()
    } else {
        masses[..num_experts].iter().sum()
    };
    for (weight, bits) in weights.iter_mut().zip(experts) {
        *weight = masses[expert(*bits)] / sum;
    }
}

simd_entry! {
    /// Chooses the `out.len() / 2` experts of a row with the largest logits, ties by the lower index. The first half of
    /// `out` receives their weights in that order, the second half the bits of their indices.
    ///
    /// A weight is the softmax over all logits, or over those of the chosen experts with `renormalise`. Sums run in the
    /// order of experts, or of choices. If a logit is NaN or infinite, weights may be NaN, but indices are valid.
    ///
    /// Panics unless there are 1 to [`MAX_EXPERTS`] logits, and at least as many as experts to choose.
    pub fn route = route_generic(logits: &[f32], renormalise: bool, out: &mut [f32]);
}
