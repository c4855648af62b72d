//! Converts text to token ids and back.

mod added;
pub(crate) mod bytes;
pub(crate) mod from_gguf;
pub(crate) mod from_json;
mod merges;
mod pre;
pub(crate) mod sentence_piece;
pub(crate) mod tiktoken;
mod vocabulary;

use std::ops::Range;

use tokenizers::{Model, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use crate::error::TextError;
use crate::utf8_stream::Utf8Stream;
use added::{AddedTokens, Matching, TextForm};
use sentence_piece::normalizer::SentencePieceNormalizer;
use vocabulary::Vocabulary;

/// The treatment of text that spells a control token, in encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodeSpecial {
    /// The text becomes the control token.
    Allow,
    /// The text is encoded like any other text.
    Plain,
}

/// The treatment of control tokens, in decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecodeSpecial {
    /// Control tokens have no text.
    Skip,
    /// A control token's name in the vocabulary is its text.
    Keep,
}

/// The context of the first token.
///
/// SentencePiece vocabularies write a text's first word with a space that the text does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStart {
    /// Nothing precedes the token, so the extra space is dropped.
    Beginning,
    /// A prompt precedes the token. A leading space is kept, so that prompt and output concatenate to the whole text.
    Continuation,
}

/// A token and the part of the text that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedToken {
    pub id: u32,
    /// Byte range of the text, at character boundaries. All tokens of one character have the same range.
    pub range: Range<usize>,
}

/// A byte-level or SentencePiece-like tokenizer.
///
/// The `tokenizers` library normalizes, splits and merges, as the model's authors specified. This type finds added
/// tokens and decodes, because it must tell data from control tokens (`Matching`) and decode token by token
/// (`Detokenizer`).
#[derive(Debug)]
pub struct Tokenizer {
    /// The library's normalizer, pre-tokenizer and model.
    pipeline: tokenizers::Tokenizer,
    /// The normalizer of a `tokenizer.model`, which the library has only in part. The pipeline has none then.
    sentence_piece: Option<SentencePieceNormalizer>,
    added: AddedTokens,
    vocabulary: Vocabulary,
    /// Set if the vocabulary writes a text's first word with a space that the text does not have.
    leading_space: bool,
}

impl Tokenizer {
    /// Encodes a text, without BOS.
    ///
    /// The time is O(n log n) in the length of the longest piece, and else linear. A hostile megabyte can take seconds,
    /// so this must not run on an async thread.
    pub fn encode(&self, text: &str, special: EncodeSpecial) -> Result<Vec<u32>, TextError> {
        self.ids(text, special.into())
    }

    /// Encodes a text, without BOS, and recognises control tokens only outside the `data` ranges.
    ///
    /// The ranges are in bytes, ascending and disjoint.
    pub fn encode_with_data(&self, text: &str, data: &[Range<usize>]) -> Result<Vec<u32>, TextError> {
        self.ids(text, Matching::Outside(data))
    }

    /// Encodes a text, without BOS, and returns the range of each token in it.
    pub fn encode_with_ranges(
        &self,
        text: &str,
        special: EncodeSpecial,
    ) -> Result<Vec<EncodedToken>, TextError> {
        let encoding =
            self.tokenize(text, special.into())?.into_encoding(None, 0, OffsetType::Byte).map_err(encode)?;
        let ids = encoding.get_ids().iter();
        Ok(ids
            .zip(encoding.get_offsets())
            .map(|(&id, &(start, end))| EncodedToken { id, range: start..end })
            .collect())
    }

    /// Decodes all ids at once. Invalid UTF-8 is replaced as by `String::from_utf8_lossy`, and ids outside the
    /// vocabulary have no text.
    ///
    /// For invalid UTF-8 the result differs from the library's SentencePiece decoder, which replaces a whole run of
    /// byte tokens if any of them is invalid. No stream can know that in time.
    pub fn decode(&self, token_ids: &[u32], special: DecodeSpecial, start: TextStart) -> String {
        let mut at_start = self.drops_leading_space(start);
        let mut stream = Utf8Stream::default();
        let mut out = String::new();
        for &id in token_ids {
            stream.push(self.shown_bytes(id, special, &mut at_start), &mut out);
        }
        stream.finish(&mut out);
        out
    }

    /// Returns the number of ids. All ids are below it, but a model's output head can have more rows.
    pub fn vocab_size(&self) -> u32 {
        self.vocabulary.num_ids()
    }

    /// Returns the bytes of a token, or a control token's name. Returns `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, token_id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(token_id)
    }

    /// Returns whether decoding with `DecodeSpecial::Skip` skips a token.
    pub fn is_special(&self, token_id: u32) -> bool {
        self.vocabulary.is_special(token_id)
    }

    /// Returns the id of a token by its name in the vocabulary's own spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.added.id(token).or_else(|| self.pipeline.token_to_id(token))
    }

    /// Returns whether decoding must drop a leading space.
    #[doc(hidden)]
    pub fn drops_leading_space(&self, start: TextStart) -> bool {
        self.leading_space && start == TextStart::Beginning
    }

    /// Returns the bytes that a token adds to a text. If `at_start` is set, a leading space is dropped, and the first
    /// token that has text clears it.
    pub(crate) fn shown_bytes(&self, token_id: u32, special: DecodeSpecial, at_start: &mut bool) -> &[u8] {
        if special == DecodeSpecial::Skip && self.is_special(token_id) {
            return &[];
        }
        let bytes = self.token_bytes(token_id).unwrap_or_default();
        if *at_start && !bytes.is_empty() {
            *at_start = false;
            return bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        bytes
    }

    /// Returns the ranges of `text` that spell a control token.
    pub(crate) fn control_spellings(&self, text: &str) -> Vec<Range<usize>> {
        self.added.special_spelled_in(text)
    }

    fn ids(&self, text: &str, matching: Matching<'_>) -> Result<Vec<u32>, TextError> {
        let pieces = self.tokenize(text, matching)?;
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        Ok(splits
            .iter()
            .filter_map(|(_, _, tokens)| tokens.as_ref())
            .flatten()
            .map(|token| token.id)
            .collect())
    }

    fn tokenize(&self, text: &str, matching: Matching<'_>) -> Result<PreTokenizedString, TextError> {
        let mut pieces = PreTokenizedString::from(text);
        pieces.split(|_, part| Ok(self.added.split(part, TextForm::Original, matching))).map_err(encode)?;
        if let Some(normalizer) = &self.sentence_piece {
            pieces
                .normalize(|part| {
                    normalizer.normalize(part);
                    Ok(())
                })
                .map_err(encode)?;
        }
        if let Some(normalizer) = self.pipeline.get_normalizer() {
            pieces.normalize(|part| normalizer.normalize(part)).map_err(encode)?;
        }
        if self.added.has_normalized() {
            pieces
                .split(|_, part| Ok(self.added.split(part, TextForm::Normalized, matching)))
                .map_err(encode)?;
        }
        if let Some(pre_tokenizer) = self.pipeline.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(encode)?;
        }
        pieces.tokenize(|part| self.pipeline.get_model().tokenize(part.get())).map_err(encode)?;
        Ok(pieces)
    }
}

impl From<EncodeSpecial> for Matching<'_> {
    fn from(special: EncodeSpecial) -> Self {
        match special {
            EncodeSpecial::Allow => Self::Outside(&[]),
            EncodeSpecial::Plain => Self::NotSpecial,
        }
    }
}

fn encode(error: tokenizers::Error) -> TextError {
    TextError::Encode { detail: error.to_string() }
}
