//! Text to token ids and back.

use std::ops::Range;

use crate::{TextError, TextStart};

/// What `encode` does with text that spells a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeSpecial {
    /// It becomes the control token.
    Allow,
    /// It is text as any other.
    Plain,
}

/// What decoding does with control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeSpecial {
    /// They have no text.
    Skip,
    /// Their name in the vocabulary is their text.
    Keep,
}

/// A token and the part of the text that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedToken {
    /// Its id.
    pub id: u32,
    /// Bytes of the text, at character boundaries (the tokens of one character have the same range).
    pub range: Range<usize>,
}

/// A byte-level or SentencePiece-like BPE tokenizer.
#[derive(Debug)]
pub struct Tokenizer {}

impl Tokenizer {
    /// Text to ids, without BOS.
    pub fn encode(&self, _text: &str, _special: EncodeSpecial) -> Result<Vec<u32>, TextError> {
        unimplemented!()
    }

    /// Text to ids with the place of each in the text, without BOS.
    pub fn encode_with_ranges(
        &self,
        _text: &str,
        _special: EncodeSpecial,
    ) -> Result<Vec<EncodedToken>, TextError> {
        unimplemented!()
    }

    /// Ids to text at once; invalid UTF-8 becomes U+FFFD as `String::from_utf8_lossy` does it.
    pub fn decode(&self, _token_ids: &[u32], _special: DecodeSpecial, _start: TextStart) -> String {
        unimplemented!()
    }

    /// Number of ids: all ids are below it.
    pub fn vocab_size(&self) -> u32 {
        unimplemented!()
    }

    /// The bytes that a token stands for (a control token: its name); `None` outside the vocabulary.
    pub fn token_bytes(&self, _token_id: u32) -> Option<&[u8]> {
        unimplemented!()
    }

    /// Whether decoding with `DecodeSpecial::Skip` skips it.
    pub fn is_special(&self, _token_id: u32) -> bool {
        unimplemented!()
    }

    /// The id of a token by its name in the vocabulary.
    pub fn token_id(&self, _token: &str) -> Option<u32> {
        unimplemented!()
    }
}
