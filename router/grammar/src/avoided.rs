//! An output may have to avoid words and repeated texts, besides what its grammar forbids.

use std::sync::Arc;

use crate::dry::{DryParams, Repeats};
use crate::mask::TokenMask;
use crate::reasoning::ReasoningTokens;

/// The words and repetitions that all outputs of a request avoid.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Avoided {
    /// Sequences of tokens that the output does not contain. None is empty.
    pub words: Vec<Vec<u32>>,
    /// The penalty for repeated texts.
    pub dry: Option<DryParams>,
}

/// One output that avoids words and repetitions, after its tokens so far.
#[derive(Clone)]
pub(crate) struct Avoiding {
    avoided: Arc<Avoided>,
    /// The last tokens of the output, as many as the longest word has, less one.
    last: Vec<u32>,
    repeats: Option<Repeats>,
    /// Tokens that `repeats` does not have yet. A long prompt is read when the first mask is computed, which happens on
    /// a thread of its own.
    unread: Vec<u32>,
}

impl Avoiding {
    pub(crate) fn new(avoided: Arc<Avoided>, prompt: &[u32]) -> Self {
        let repeats = avoided.dry.clone().map(Repeats::new);
        let unread = if repeats.is_some() { prompt.to_vec() } else { Vec::new() };
        Self { avoided, last: Vec::new(), repeats, unread }
    }

    pub(crate) fn accept(&mut self, id: u32) {
        self.last.push(id);
        let longest = self.avoided.words.iter().map(Vec::len).max().unwrap_or(0);
        self.last.drain(..(self.last.len() + 1).saturating_sub(longest.max(1)));
        if self.repeats.is_some() {
            self.unread.push(id);
        }
    }

    /// Returns true if logits change in a way that depends on the tokens before.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repeats.is_some()
    }

    /// Removes the tokens that would complete a word.
    pub(crate) fn remove_from(&self, mask: TokenMask) -> TokenMask {
        let completed = |word: &Vec<u32>| {
            let (end, begin) = word.split_last()?;
            (self.last.ends_with(begin) && mask.contains(*end)).then_some(*end)
        };
        let ends: Vec<u32> = self.avoided.words.iter().filter_map(completed).collect();
        if ends.is_empty() { mask } else { mask.without(ends) }
    }

    /// Returns what to add to the logits of tokens, in ascending order of ids.
    pub(crate) fn penalties(&mut self, tokens: &ReasoningTokens) -> Vec<(u32, f32)> {
        let Some(repeats) = &mut self.repeats else { return Vec::new() };
        self.unread.drain(..).for_each(|id| repeats.push(id, tokens.bytes(id)));
        repeats.penalties(|id| tokens.bytes(id))
    }
}
