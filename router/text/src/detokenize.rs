//! Token ids to text, one at a time.

use std::sync::Arc;

use crate::{DecodeSpecial, Tokenizer};

/// What stands before the first token, which matters to SentencePiece vocabularies: they write a text's first word with
/// a space that the text does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStart {
    /// Nothing: the first token's extra space is dropped.
    Beginning,
    /// A prompt: prompt and output joined give the whole text, so a leading space is kept.
    Continuation,
}

/// Turns a growing list of token ids into text that can be shown at once: never half a character, never something
/// that a later token changes. All texts joined equal `Tokenizer::decode` of all ids. O(length of the token) each.
#[derive(Debug)]
pub struct Detokenizer {
    _tokenizer: Arc<Tokenizer>,
}

impl Detokenizer {
    /// For one sequence.
    pub fn new(tokenizer: Arc<Tokenizer>, _special: DecodeSpecial, _start: TextStart) -> Self {
        Self { _tokenizer: tokenizer }
    }

    /// The text that is certain now; often the token's own, empty while a character is incomplete. An id outside the
    /// vocabulary has no text.
    pub fn push(&mut self, _token_id: u32) -> String {
        unimplemented!()
    }

    /// The rest: U+FFFD if bytes of an incomplete character were held back, else nothing.
    pub fn finish(&mut self) -> String {
        unimplemented!()
    }
}
