//! How often drafts are right, by the length of the match that they come from.

use crate::text::{MAX_MATCH, MIN_MATCH};

/// The least match length of each class.
const CLASSES: [usize; 7] = [MIN_MATCH, 3, 4, 6, 9, 16, MAX_MATCH];
/// The assumed share of right drafts in each class, before any was seen. They are low, because a sequence that repeats
/// itself shows that within a few tokens, and one that does not should lose little.
const ASSUMED: [f32; CLASSES.len()] = [0.15, 0.3, 0.5, 0.65, 0.75, 0.85, 0.92];
/// The number of drafts that the assumption counts for.
const ASSUMED_WEIGHT: f32 = 4.0;
/// The weight of all earlier drafts of a class when one is added: a draft counts for a half after some 20 others.
const MEMORY: f32 = 0.965;

/// The share of right drafts in each class.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acceptance {
    /// Right drafts and all drafts, with fading weights.
    classes: [(f32, f32); CLASSES.len()],
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { classes: ASSUMED.map(|share| (share * ASSUMED_WEIGHT, ASSUMED_WEIGHT)) }
    }
}

impl Acceptance {
    /// Takes the result of a draft from a match of this length.
    pub(crate) fn add(&mut self, len: usize, is_right: bool) {
        let (right, all) = &mut self.classes[class_of(len)];
        *right = *right * MEMORY + if is_right { 1.0 } else { 0.0 };
        *all = *all * MEMORY + 1.0;
    }

    /// Returns the probability that the next draft from a match of this length is right.
    pub(crate) fn probability(&self, len: usize) -> f32 {
        let (right, all) = self.classes[class_of(len)];
        right / all
    }
}

fn class_of(len: usize) -> usize {
    CLASSES.iter().rposition(|&least| len >= least).unwrap_or(0)
}
