//! Converts text to token ids and back.

mod added;
pub(crate) mod bytes;
pub(crate) mod from_gguf;
pub(crate) mod from_json;
mod merges;
mod parts;
mod pre;
pub(crate) mod sentence_piece;
mod steps;
pub(crate) mod tiktoken;
mod vocabulary;

use std::ops::Range;

use tokenizers::{AddedToken, Model, OffsetReferential, OffsetType, PreTokenizedString};

use crate::error::TextError;
use crate::utf8_stream::Utf8Stream;
use added::{AddedTokens, Matching, TextForm};
use parts::{Cuts, PART_BYTES};
use sentence_piece::normalizer::SentencePieceNormalizer;
use steps::{Budget, Steps};
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

/// A character that vocabularies do not join with others. The authors of CodeLlama use the same one.
const APART: &str = "☺";

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
    /// The library's tokenizer, of which the model is used.
    pipeline: tokenizers::Tokenizer,
    /// The normalizers and pre-tokenizers, which are applied before the model.
    steps: Steps,
    /// The normalizer of a `tokenizer.model`, which the library has only in part. The pipeline has none then.
    sentence_piece: Option<SentencePieceNormalizer>,
    added: AddedTokens,
    vocabulary: Vocabulary,
    /// True if the vocabulary writes a text's first word with a space that the text does not have.
    leading_space: bool,
    /// Where long texts are cut.
    cuts: Cuts,
    /// The largest part of a text that is cut.
    part_bytes: usize,
}

impl Tokenizer {
    /// Makes a tokenizer whose normalizers and pre-tokenizers are the pipeline's.
    fn of_pipeline(
        pipeline: tokenizers::Tokenizer,
        added: impl Iterator<Item = (AddedToken, u32)>,
        vocabulary: Vocabulary,
        leading_space: bool,
    ) -> Result<Self, TextError> {
        let steps = Steps::of(&pipeline)?;
        let added = AddedTokens::new(added, |text| steps.normalized(text))?;
        let (cuts, part_bytes) = (Cuts::of_pipeline(&pipeline, &added), PART_BYTES);
        let sentence_piece = None;
        Ok(Self { pipeline, steps, sentence_piece, added, vocabulary, leading_space, cuts, part_bytes })
    }

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
        self.ids(text, Matching::Outside { data, begin: 0 })
    }

    /// Encodes a text, without BOS, and returns the range of each token in it.
    pub fn encode_with_ranges(
        &self,
        text: &str,
        special: EncodeSpecial,
    ) -> Result<Vec<EncodedToken>, TextError> {
        let mut tokens = Vec::new();
        let mut begin = 0;
        while begin < text.len() {
            let (part, mut pieces) = self.first_part(&text[begin..], special.into())?;
            pieces.tokenize(|piece| self.pipeline.get_model().tokenize(piece.get())).map_err(encode)?;
            let encoding = pieces.into_encoding(None, 0, OffsetType::Byte).map_err(encode)?;
            let ids = encoding.get_ids().iter().zip(encoding.get_offsets());
            let of_part = ids.filter(|(_, (_, end))| part.cut.is_none_or(|cut| *end <= cut));
            tokens.extend(
                of_part.map(|(&id, &(start, end))| EncodedToken { id, range: begin + start..begin + end }),
            );
            begin = part.cut.map_or(text.len(), |end| begin + end);
        }
        Ok(tokens)
    }

    /// Encodes a text, without BOS, such that it has neither control tokens nor tokens among `others`. The text follows
    /// a control token, so unless it is a beginning, it has no extra space.
    pub(crate) fn encode_apart(
        &self,
        text: &str,
        others: &[u32],
        start: TextStart,
    ) -> Result<Vec<u32>, TextError> {
        let matching = Matching::NotSpecial { others };
        let without_space = if self.leading_space && start == TextStart::Continuation {
            // The extra space precedes this character, whose tokens are then removed.
            let (before, whole) =
                (self.ids(APART, matching)?, self.ids(&format!("{APART}{text}"), matching)?);
            whole.strip_prefix(&before[..]).map(<[u32]>::to_vec)
        } else {
            None
        };
        let ids = without_space.map_or_else(|| self.ids(text, matching), Ok)?;
        match ids.iter().find(|id| others.contains(id)) {
            None => Ok(ids),
            Some(id) => Err(TextError::Encode { detail: format!("it contains the control token {id}") }),
        }
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

    /// Sets the least length of the parts into which longer texts are cut. The ids do not depend on it.
    pub fn with_part_bytes(self, part_bytes: usize) -> Self {
        Self { part_bytes, ..self }
    }

    /// Returns the number of parts into which a text is cut.
    pub fn num_parts(&self, text: &str) -> Result<usize, TextError> {
        let (mut num_parts, mut begin) = (0, 0);
        while begin < text.len() {
            let (part, _) = self.first_part(&text[begin..], EncodeSpecial::Allow.into())?;
            begin = part.cut.map_or(text.len(), |end| begin + end);
            num_parts += 1;
        }
        Ok(num_parts)
    }

    /// Returns the number of ids. All ids are below it, but a model's output head can have more rows.
    pub fn vocab_size(&self) -> u32 {
        self.vocabulary.num_ids()
    }

    /// Returns the bytes of a token, or a control token's name. Returns `None` for an id outside the vocabulary.
    pub fn token_bytes(&self, token_id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(token_id)
    }

    /// Returns true if decoding with `DecodeSpecial::Skip` skips a token.
    pub fn is_special(&self, token_id: u32) -> bool {
        self.vocabulary.is_special(token_id)
    }

    /// Returns the id of a token by its name in the vocabulary's own spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.added.id(token).or_else(|| self.pipeline.token_to_id(token))
    }

    /// Returns true if decoding must drop a leading space.
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
        let mut ids = Vec::new();
        let mut begin = 0;
        while begin < text.len() {
            let (part, pieces) = self.first_part(&text[begin..], matching.after(begin))?;
            let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
            // The library would keep each token with its text.
            for (piece, _, added) in splits.into_iter().take(part.num_pieces) {
                match added {
                    Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                    None => {
                        let tokens = self.pipeline.get_model().tokenize(piece).map_err(encode)?;
                        ids.extend(tokens.into_iter().map(|token| token.id));
                    }
                }
            }
            begin = part.cut.map_or(text.len(), |end| begin + end);
        }
        Ok(ids)
    }

    /// Splits the first part of a text. The pieces can include some that belong to the next part.
    fn first_part(
        &self,
        text: &str,
        matching: Matching<'_>,
    ) -> Result<(Part, PreTokenizedString), TextError> {
        if let Some(window) = self.cuts.window(text, self.part_bytes) {
            let pieces = self.split(window, matching)?;
            if let Some((end, num_pieces)) = self.cuts.first_part(window, self.part_bytes, &pieces) {
                return Ok((Part { cut: Some(end), num_pieces }, pieces));
            }
        }
        Ok((Part { cut: None, num_pieces: usize::MAX }, self.split(text, matching)?))
    }

    /// Splits a text into added tokens and pieces for the model.
    fn split(&self, text: &str, matching: Matching<'_>) -> Result<PreTokenizedString, TextError> {
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
        let budget = Budget::of(text);
        pieces.normalize(|part| self.steps.normalize(part, &budget)).map_err(encode)?;
        if self.added.has_normalized() {
            pieces
                .split(|_, part| Ok(self.added.split(part, TextForm::Normalized, matching)))
                .map_err(encode)?;
        }
        self.steps.pre_tokenize(&mut pieces, &budget).map_err(encode)?;
        Ok(pieces)
    }
}

/// The first part of a text that is encoded in parts.
struct Part {
    /// Its end in bytes; `None` if it is the whole text.
    cut: Option<usize>,
    /// The number of pieces in it; all pieces if there are fewer.
    num_pieces: usize,
}

impl From<EncodeSpecial> for Matching<'_> {
    fn from(special: EncodeSpecial) -> Self {
        match special {
            EncodeSpecial::Allow => Self::Outside { data: &[], begin: 0 },
            EncodeSpecial::Plain => Self::NotSpecial { others: &[] },
        }
    }
}

fn encode(error: tokenizers::Error) -> TextError {
    TextError::Encode { detail: error.to_string() }
}
