//! The drafter of one sequence.

use crate::acceptance::Acceptance;
use crate::text::{MAX_MATCH, Match, Text};

/// A draft that is less likely than this together with all before it is not proposed.
const LEAST_PROBABILITY: f32 = 0.02;

/// A token that may follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draft {
    pub token_id: u32,
    /// The estimated probability that this draft and all before it are right.
    pub probability: f32,
}

/// Drafts the next tokens of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafter {
    /// The prompt, the prediction and the output.
    text: Text,
    /// The place whose tokens are expected next. It follows the output for as long as it is right.
    expected: Option<Match>,
    acceptance: Acceptance,
}

impl Drafter {
    /// Creates the drafter of a sequence with this prompt. `prediction` is what the client expects as the output
    /// (OpenAI's `prediction`); it may be empty. Costs about 60 ns a token.
    pub fn new(prompt: &[u32], prediction: &[u32]) -> Self {
        let mut text = Text::with_capacity(prompt.len() + prediction.len());
        prompt.iter().chain(prediction).for_each(|&token_id| text.push(token_id));
        // The end of a prompt often looks like that of an earlier turn, whose answer was another one.
        let expected = (!prediction.is_empty()).then_some(Match { next: prompt.len(), len: MAX_MATCH });
        Self { text, expected, acceptance: Acceptance::default() }
    }

    /// Appends tokens of the output. Each of them also tells how good drafts would have been. Amortised O(1) a token.
    pub fn extend(&mut self, token_ids: &[u32]) {
        for &token_id in token_ids {
            let expected = self.expected.take().and_then(|Match { next, len }| {
                let is_right = self.text.tokens().get(next) == Some(&token_id);
                self.acceptance.add(len, is_right);
                is_right.then(|| Match { next: next + 1, len: (len + 1).min(MAX_MATCH) })
            });
            self.text.push(token_id);
            // A match that goes on is no shorter than any other that a new search would find.
            self.expected = expected.or_else(|| self.text.find());
        }
    }

    /// Replaces the contents of `out` by at most `max` drafts of the next tokens. Their probabilities fall.
    pub fn propose(&self, max: usize, out: &mut Vec<Draft>) {
        out.clear();
        let Some(Match { next, len }) = self.expected else { return };
        let tokens = self.text.tokens();
        let mut probability = 1.0;
        for index in 0..max {
            probability *= self.acceptance.probability(len + index);
            if probability < LEAST_PROBABILITY {
                return;
            }
            let place = next + index;
            // A loop repeats what it has just drafted.
            let token_id = tokens.get(place).copied().unwrap_or_else(|| out[place - tokens.len()].token_id);
            out.push(Draft { token_id, probability });
        }
    }

    /// Returns the bytes of memory that the drafter holds.
    pub fn num_bytes(&self) -> usize {
        self.text.num_bytes()
    }
}
