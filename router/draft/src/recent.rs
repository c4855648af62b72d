//! Recent outputs, in which sequences find what they repeat of each other.

use crate::text::{Match, Text};

/// The most tokens that are kept. When there are more, the older half is dropped.
pub const MAX_RECENT_TOKENS: usize = 1 << 14;

/// The recent outputs of sequences that may know of each other. A draft that is right makes an answer quicker, which
/// tells that some other output had the same words, so tenants that must not see each other need one each.
#[derive(Clone, Debug, PartialEq)]
pub struct RecentOutputs {
    text: Text,
    /// Grows whenever old tokens are dropped, which moves all places.
    generation: u64,
}

impl Default for RecentOutputs {
    fn default() -> Self {
        Self { text: Text::with_capacity(0), generation: 0 }
    }
}

impl RecentOutputs {
    /// Adds an output. Amortised O(1) a token.
    pub fn push(&mut self, output: &[u32]) {
        let output = &output[output.len().saturating_sub(MAX_RECENT_TOKENS / 2)..];
        if self.text.tokens().len() + output.len() > MAX_RECENT_TOKENS {
            let tokens = self.text.tokens();
            let kept = tokens[tokens.len() - MAX_RECENT_TOKENS / 2..].to_vec();
            self.text = Text::with_capacity(MAX_RECENT_TOKENS);
            kept.into_iter().for_each(|token_id| self.text.push(token_id));
            self.generation += 1;
        }
        output.iter().for_each(|&token_id| self.text.push(token_id));
    }

    /// Returns the bytes of memory that the outputs take.
    pub fn num_bytes(&self) -> usize {
        self.text.num_bytes()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        self.text.tokens()
    }

    pub(crate) fn find_end(&self, end: &[u32]) -> Option<Match> {
        self.text.find_end(end)
    }
}
