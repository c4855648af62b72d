//! Turns token ids into text, one id at a time.

use std::sync::Arc;

use crate::tokenizer::{DecodeSpecial, TextStart, Tokenizer};
use crate::utf8_stream::Utf8Stream;

/// Turns a growing sequence of token ids into text that can be shown at once.
///
/// The text never ends inside a character, and no later token changes it. The concatenated texts equal
/// `Tokenizer::decode` of all ids. Each token takes time proportional to its length.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    special: DecodeSpecial,
    /// True while a leading space must be dropped.
    at_start: bool,
    stream: Utf8Stream,
}

impl Detokenizer {
    pub fn new(tokenizer: Arc<Tokenizer>, special: DecodeSpecial, start: TextStart) -> Self {
        let at_start = tokenizer.drops_leading_space(start);
        Self { tokenizer, special, at_start, stream: Utf8Stream::default() }
    }

    /// Returns the text that a token completes. It is empty while a character is incomplete, and for an id outside the
    /// vocabulary.
    pub fn push(&mut self, token_id: u32) -> String {
        let mut out = String::new();
        let bytes = self.tokenizer.shown_bytes(token_id, self.special, &mut self.at_start);
        self.stream.push(bytes, &mut out);
        out
    }

    /// Ends the sequence, and returns U+FFFD if a character is incomplete, or else an empty string.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.stream.finish(&mut out);
        out
    }
}
