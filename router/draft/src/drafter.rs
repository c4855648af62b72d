//! The drafter of one sequence.

use crate::acceptance::Acceptance;
use crate::recent::RecentOutputs;
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

/// The text in which a place was found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Own,
    /// The recent outputs of this generation.
    Recent(u64),
}

/// Drafts the next tokens of one sequence. Every call that takes recent outputs expects the same ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Drafter {
    /// The prompt, the prediction and the output.
    text: Text,
    /// The place whose tokens are expected next. It follows the output for as long as it is right.
    expected: Option<(Source, Match)>,
    /// The acceptance of drafts from the sequence's own text, and of those from recent outputs.
    acceptance: [Acceptance; 2],
}

impl Drafter {
    /// The memory of a token of the prompt, at most: the token, and for each index a link and up to two heads.
    pub const TOKEN_BYTES: usize = 28;

    /// Creates the drafter of a sequence with this prompt. `prediction` is what the client expects as the output
    /// (OpenAI's `prediction`); it may be empty. Costs about 30 ns a token.
    pub fn new(prompt: &[u32], prediction: &[u32]) -> Self {
        let mut text = Text::with_capacity(prompt.len() + prediction.len());
        prompt.iter().chain(prediction).for_each(|&token_id| text.push(token_id));
        // The end of a prompt often looks like that of an earlier turn, whose answer was another one.
        let predicted = (Source::Own, Match { next: prompt.len(), len: MAX_MATCH });
        let expected = (!prediction.is_empty()).then_some(predicted);
        Self { text, expected, acceptance: Default::default() }
    }

    /// Appends tokens of the output. Each of them also tells how good drafts would have been. Amortised O(1) a token.
    pub fn extend(&mut self, token_ids: &[u32], recent: Option<&RecentOutputs>) {
        for &token_id in token_ids {
            let expected = self.expected.take().and_then(|(source, Match { next, len })| {
                let is_right = *self.tokens_of(source, recent)?.get(next)? == token_id;
                self.acceptance[class_of(source)].add(len, is_right);
                is_right.then(|| (source, Match { next: next + 1, len: (len + 1).min(MAX_MATCH) }))
            });
            self.text.push(token_id);
            // A match that goes on is no shorter than any other that a new search would find.
            self.expected = expected.or_else(|| self.find(recent));
        }
    }

    /// Returns the longest match, in the sequence's own text rather than in others.
    fn find(&self, recent: Option<&RecentOutputs>) -> Option<(Source, Match)> {
        let own = self.text.find();
        let recent = recent.and_then(|recent| {
            let found = recent.find_end(self.text.tokens())?;
            own.is_none_or(|own| found.len > own.len).then(|| (Source::Recent(recent.generation()), found))
        });
        recent.or_else(|| own.map(|own| (Source::Own, own)))
    }

    /// Returns the text in which a place was found; none if its tokens were dropped.
    fn tokens_of<'a>(&'a self, source: Source, recent: Option<&'a RecentOutputs>) -> Option<&'a [u32]> {
        match source {
            Source::Own => Some(self.text.tokens()),
            Source::Recent(generation) => {
                recent.filter(|recent| recent.generation() == generation).map(RecentOutputs::tokens)
            }
        }
    }

    /// Replaces the contents of `out` by at most `max` drafts of the next tokens. Their probabilities fall.
    pub fn propose(&self, max: usize, recent: Option<&RecentOutputs>, out: &mut Vec<Draft>) {
        out.clear();
        let Some((source, Match { next, len })) = self.expected else { return };
        let Some(tokens) = self.tokens_of(source, recent) else { return };
        let mut probability = 1.0;
        for index in 0..max {
            probability *= self.acceptance[class_of(source)].probability(len + index);
            let place = next + index;
            // A loop repeats what it has just drafted.
            let in_loop = || place.checked_sub(tokens.len()).filter(|_| source == Source::Own);
            let token_id = tokens.get(place).copied().or_else(|| Some(out.get(in_loop()?)?.token_id));
            let Some(token_id) = token_id.filter(|_| probability >= LEAST_PROBABILITY) else { return };
            out.push(Draft { token_id, probability });
        }
    }

    /// Returns the bytes of memory that the drafter holds.
    pub fn num_bytes(&self) -> usize {
        self.text.num_bytes()
    }
}

fn class_of(source: Source) -> usize {
    usize::from(source != Source::Own)
}
