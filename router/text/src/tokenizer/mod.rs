//! Text to token ids and back.

mod added;
pub(crate) mod bytes;
mod from_gguf;
mod from_json;
mod pre;
mod vocabulary;

use std::ops::Range;

use tokenizers::{Model, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

use crate::detokenize::Utf8Stream;
use crate::{TextError, TextStart};
use added::{AddedTokens, Matching, TextForm};
pub use from_gguf::tokenizer_from_gguf;
pub use from_json::tokenizer_from_json;
use vocabulary::Vocabulary;

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

/// A byte-level or SentencePiece-like tokenizer.
///
/// The library does what the model's authors had it do: normalizing, cutting, merging. Finding added tokens and
/// decoding are here, because they have to tell data from control (`Matching`) and to work token by token
/// (`Detokenizer`).
#[derive(Debug)]
pub struct Tokenizer {
    /// Normalizer, pre-tokenizer and model.
    pipeline: tokenizers::Tokenizer,
    added: AddedTokens,
    vocabulary: Vocabulary,
    /// A text's first word is written with a space that the text does not have.
    leading_space: bool,
}

impl Tokenizer {
    /// Text to ids, without BOS. O(n log n) in the length of the longest piece, linear else; up to
    /// seconds for a hostile megabyte, so not on an async thread.
    pub fn encode(&self, text: &str, special: EncodeSpecial) -> Result<Vec<u32>, TextError> {
        self.ids(text, special.into())
    }

    /// Text to ids, control tokens allowed but in the `data` ranges (bytes of `text`, ascending, disjoint): there they
    /// are text as any other.
    pub fn encode_with_data(&self, text: &str, data: &[Range<usize>]) -> Result<Vec<u32>, TextError> {
        self.ids(text, Matching::Outside(data))
    }

    /// Text to ids with the place of each in the text, without BOS.
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

    /// Ids to text at once; invalid UTF-8 becomes U+FFFD as `String::from_utf8_lossy` does it. Ids outside the
    /// vocabulary have no text.
    ///
    /// The library's own SentencePiece decoder replaces a whole run of byte tokens if any of it is invalid, which no
    /// stream can know in time; on valid UTF-8 both agree.
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

    /// Number of ids: all ids are below it. A model's output head can have more rows.
    pub fn vocab_size(&self) -> u32 {
        self.vocabulary.num_ids()
    }

    /// Bytes of the longest token. A text of more than `n` times as many bytes has more than `n` tokens, which is
    /// told without encoding it. (Normalization can shorten a text that is mostly combining marks; the bound then
    /// refuses what might just have fitted.)
    pub fn max_token_bytes(&self) -> usize {
        self.vocabulary.max_token_bytes()
    }

    /// The bytes that a token stands for (a control token: its name); `None` outside the vocabulary.
    pub fn token_bytes(&self, token_id: u32) -> Option<&[u8]> {
        self.vocabulary.bytes(token_id)
    }

    /// Whether decoding with `DecodeSpecial::Skip` skips it.
    pub fn is_special(&self, token_id: u32) -> bool {
        self.vocabulary.is_special(token_id)
    }

    /// The id of a token by its name in the vocabulary's own spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.pipeline.token_to_id(token)
    }

    /// Whether a text decoded from its start begins with a space too many.
    #[doc(hidden)]
    pub fn drops_leading_space(&self, start: TextStart) -> bool {
        self.leading_space && start == TextStart::Beginning
    }

    /// What a token adds to a text's bytes. `at_start` says that a leading space is to be dropped; it turns false with
    /// the first token that has text.
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

    /// Where `text` spells a control token.
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
