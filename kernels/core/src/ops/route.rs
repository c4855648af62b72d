//! Routing of rows to experts (arXiv:1701.06538, section 2.1).

use super::exp::exp;
use crate::vector::{Lanes, each_vector, simd_entry};

/// The most experts of a layer. Published models have up to 512.
pub const MAX_EXPERTS: usize = 1024;

/// Decides which experts a row uses, and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The weights of the used experts add up to 1. Otherwise they are as the scores are.
    pub renormalise: bool,
    /// Scores are sigmoids of logits, which are also weights. Otherwise they are logits, and weights their softmax.
    pub is_sigmoid: bool,
    /// Experts are groups of neighbours. Only those of the best groups are used: the groups with the best expert, or
    /// with sigmoids those with the largest sum of their two best.
    pub num_groups: usize,
    pub num_used_groups: usize,
}

impl Rule {
    /// Scores are logits, and all experts are one group.
    pub const fn softmax(renormalise: bool) -> Self {
        Self { renormalise, is_sigmoid: false, num_groups: 1, num_used_groups: 1 }
    }
}

/// Added to the sum of sigmoids that divides them, as DeepSeek-V3 does.
const SUM_FLOOR: f32 = 1e-20;

/// Returns the index of the largest score that is not used yet. NaN is smaller than any number; ties go to the lower
/// index.
fn best(scores: &[f32], is_used: &[bool]) -> usize {
    let mut best: Option<usize> = None;
    for (index, score) in scores.iter().enumerate().filter(|(index, _)| !is_used[*index]) {
        let is_better =
            best.is_none_or(|best| *score > scores[best] || (scores[best].is_nan() && !score.is_nan()));
        if is_better {
            best = Some(index);
        }
    }
    best.expect("fewer are used than there are")
}

/// Marks the experts of groups that are not used.
fn leave_out_groups(scores: &[f32], rule: Rule, is_used: &mut [bool; MAX_EXPERTS]) {
    let size = scores.len() / rule.num_groups;
    let mut sums = [0.0; MAX_EXPERTS];
    for (sum, group) in sums.iter_mut().zip(scores.chunks_exact(size)) {
        let mut taken = [false; MAX_EXPERTS];
        for n in 0..if rule.is_sigmoid { 2 } else { 1 } {
            let best = best(group, &taken);
            taken[best] = true;
            *sum = if n == 0 { group[best] } else { *sum + group[best] };
        }
    }
    let mut is_chosen = [false; MAX_EXPERTS];
    for _ in 0..rule.num_used_groups {
        is_chosen[best(&sums[..rule.num_groups], &is_chosen)] = true;
    }
    for (group, is_used) in is_used[..scores.len()].chunks_exact_mut(size).enumerate() {
        is_used.fill(!is_chosen[group]);
    }
}

#[inline(always)]
unsafe fn route_generic<L: Lanes>(logits: &[f32], rule: Rule, bias: Option<&[f32]>, out: &mut [f32]) {
    let (num_experts, num_used) = (logits.len(), out.len() / 2);
    assert!((1..=MAX_EXPERTS).contains(&num_experts) && (1..=num_experts).contains(&num_used));
    let (weights, experts) = out.split_at_mut(num_used);
    let (mut masses, mut scores) = ([0.0; MAX_EXPERTS], [0.0; MAX_EXPERTS]);
    let (masses, scores) = (&mut masses[..num_experts], &mut scores[..num_experts]);
    scores.copy_from_slice(logits);
    if rule.is_sigmoid {
        each_vector!(num_experts, |i, lanes| {
            // SAFETY: i + lanes is at most the number of experts.
            unsafe {
                let one = L::splat(1.0);
                let logit = L::splat(0.0).sub(L::load_first(logits.as_ptr().add(i), lanes));
                one.div(exp(logit).add(one)).store_first(masses.as_mut_ptr().add(i), lanes);
            }
        });
        scores.copy_from_slice(masses);
    }
    if let Some(bias) = bias {
        assert_eq!(bias.len(), num_experts);
        scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
    let mut is_used = [false; MAX_EXPERTS];
    if rule.num_used_groups < rule.num_groups {
        leave_out_groups(scores, rule, &mut is_used);
    }
    for expert in experts.iter_mut() {
        let best = best(scores, &is_used);
        is_used[best] = true;
        // `best` is below MAX_EXPERTS.
        *expert = f32::from_bits(best as u32);
    }
    let expert = |bits: f32| bits.to_bits() as usize;
    if !rule.is_sigmoid {
        let largest = logits[expert(experts[0])];
        each_vector!(num_experts, |i, lanes| {
            // SAFETY: i + lanes is at most the number of experts.
            unsafe {
                let logit = L::load_first(logits.as_ptr().add(i), lanes);
                exp(logit.sub(L::splat(largest))).store_first(masses.as_mut_ptr().add(i), lanes);
            }
        });
    }
    let sum: f32 = match (rule.renormalise, rule.is_sigmoid) {
        (true, _) => experts.iter().map(|bits| masses[expert(*bits)]).sum(),
        (false, true) => 1.0,
        (false, false) => masses.iter().sum(),
    };
    let sum = if rule.is_sigmoid { sum + SUM_FLOOR } else { sum };
    for (weight, bits) in weights.iter_mut().zip(experts) {
        *weight = masses[expert(*bits)] / sum;
    }
}

simd_entry! {
    /// Chooses the `out.len() / 2` experts of a row with the largest scores by `rule`, ties by the lower index. `bias`
    /// is added to scores for the choice alone. The first half of `out` receives their weights in that order, the
    /// second half the bits of their indices.
    ///
    /// A softmax is over all logits, or over those of the chosen experts if weights are renormalised. Sums run in the
    /// order of experts, or of choices. If a logit is NaN or infinite, weights may be NaN, but indices are valid.
    ///
    /// Panics unless there are 1 to [`MAX_EXPERTS`] logits, which are whole groups, and the used groups have at least
    /// as many experts as are chosen.
    pub fn route = route_generic(logits: &[f32], rule: Rule, bias: Option<&[f32]>, out: &mut [f32]);
}
