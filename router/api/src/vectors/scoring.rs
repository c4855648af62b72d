//! The arithmetic on vectors, in f64 and in one order, so that equal vectors give equal answers.

/// Scales a vector to length 1. A vector of zeros stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let norm = dot(vector, vector).sqrt();
    if norm > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    }
}

/// Returns the cosine of the angle between two vectors; 0 if one is all zeros.
pub fn cosine(x: &[f32], y: &[f32]) -> f64 {
    let norms = (dot(x, x) * dot(y, y)).sqrt();
    if norms > 0.0 { dot(x, y) / norms } else { 0.0 }
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Returns the probability of each class: the sigmoid of a single logit, the softmax of several.
pub fn probabilities(logits: &[f32]) -> Vec<f64> {
    if let [logit] = logits {
        return vec![1.0 / (1.0 + (-f64::from(*logit)).exp())];
    }
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}
