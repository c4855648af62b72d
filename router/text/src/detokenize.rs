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
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    special: DecodeSpecial,
    /// A leading space is still to be dropped.
    at_start: bool,
    stream: Utf8Stream,
}

impl Detokenizer {
    /// For one sequence.
    pub fn new(tokenizer: Arc<Tokenizer>, special: DecodeSpecial, start: TextStart) -> Self {
        let at_start = tokenizer.drops_leading_space(start);
        Self { tokenizer, special, at_start, stream: Utf8Stream::default() }
    }

    /// The text that is certain now; often the token's own, empty while a character is incomplete. An id outside the
    /// vocabulary has no text.
    pub fn push(&mut self, token_id: u32) -> String {
        let mut out = String::new();
        let bytes = self.tokenizer.shown_bytes(token_id, self.special, &mut self.at_start);
        self.stream.push(bytes, &mut out);
        out
    }

    /// The rest: U+FFFD if bytes of an incomplete character were held back, else nothing.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.stream.finish(&mut out);
        out
    }
}

/// Most bytes of a character that is not complete.
pub const MAX_INCOMPLETE_BYTES: usize = 3;

/// Bytes to text as they come. What it gives, joined, is `String::from_utf8_lossy` of all bytes: each maximal prefix
/// of a character that cannot be completed becomes one U+FFFD (Unicode 16, section 3.9).
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character that later bytes may complete; at most `MAX_INCOMPLETE_BYTES`.
    pub incomplete: Vec<u8>,
}

impl Utf8Stream {
    /// Appends the text that is certain now.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.incomplete.is_empty() {
            self.decode(bytes, out);
        } else {
            let mut joined = std::mem::take(&mut self.incomplete);
            joined.extend_from_slice(bytes);
            self.decode(&joined, out);
        }
    }

    /// Appends a replacement character for a character that was never completed.
    pub fn finish(&mut self, out: &mut String) {
        if !self.incomplete.is_empty() {
            self.incomplete.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, mut bytes: &[u8], out: &mut String) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => error,
            };
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            // already found valid: borrowed as it is
            out.push_str(&String::from_utf8_lossy(valid));
            match error.error_len() {
                Some(num_invalid) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[num_invalid..];
                }
                None => {
                    debug_assert!(rest.len() <= MAX_INCOMPLETE_BYTES);
                    self.incomplete.extend_from_slice(rest);
                    return;
                }
            }
        }
    }
}
