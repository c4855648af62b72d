//! Finds where a long text can be cut so that its parts have the same tokens as the whole.
//!
//! The `tokenizers` library keeps every piece of a text with its alignment, which takes up to 200 times the memory of
//! the text. A long text is therefore encoded part by part. A part ends where the library ends a piece although the
//! text goes on, so no token and no merge crosses the cut. What follows has the same pieces as in the whole text,
//! because a pre-tokenizer reads from left to right and looks at nothing before a piece. [`Cuts::of_pipeline`] finds
//! the pre-tokenizers for which that holds; texts of others stay whole.

use serde_json::Value;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString};

use super::added::AddedTokens;

/// The largest part, in bytes.
pub const PART_BYTES: usize = 64 << 10;
/// The text after a part that is split with it, in bytes. The pieces at the end of a part depend on it.
const CONTEXT_BYTES: usize = 1 << 10;
/// Parts of expressions that look behind or are anchors, which make a piece depend on the text before it.
const LEFT_CONTEXT: [&str; 7] = ["(?<", r"\b", r"\B", r"\A", r"\G", r"\K", "(^"];

/// The places where a text may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cuts {
    Never,
    /// Only before a space that follows a word, because the first piece of a text gets a space if it has none, or
    /// because several expressions split a text in turn.
    BeforeSpace,
    /// Before any ASCII character. These never combine with what precedes them.
    BeforeAscii,
}

impl Cuts {
    /// Finds the cuts that a pipeline allows.
    pub fn of_pipeline(pipeline: &tokenizers::Tokenizer, added: &AddedTokens) -> Self {
        let value = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Null);
        let normalizer = pipeline.get_normalizer().map(|normalizer| value(serde_json::to_value(normalizer)));
        let Some(pre_tokenizer) = pipeline.get_pre_tokenizer() else { return Self::Never };
        let pre_tokenizer = value(serde_json::to_value(pre_tokenizer));
        let normalizers = normalizer.iter().flat_map(|value| steps(value, "normalizers"));
        let is_local = |step: Value| ["NFC", "BertNormalizer"].iter().any(|name| step["type"] == *name);
        if !normalizers.into_iter().all(is_local) || added.looks_left() || added.max_bytes() > CONTEXT_BYTES {
            return Self::Never;
        }
        let (mut num_expressions, mut adds_space) = (0, false);
        for step in steps(&pre_tokenizer, "pretokenizers") {
            match step["type"].as_str().unwrap_or_default() {
                "ByteLevel" => {
                    num_expressions += usize::from(step["use_regex"] != false);
                    adds_space |= step["add_prefix_space"] != false;
                }
                "Split" => {
                    let pattern = step["pattern"].to_string();
                    if LEFT_CONTEXT.iter().any(|found| pattern.contains(&found.replace('\\', r"\\"))) {
                        return Self::Never;
                    }
                    num_expressions += 1;
                }
                "Digits" if step["individual_digits"] == true => {}
                "BertPreTokenizer" => num_expressions += 1,
                _ => return Self::Never,
            }
        }
        if num_expressions > 1 || adds_space { Self::BeforeSpace } else { Self::BeforeAscii }
    }

    /// Returns the beginning of `text` that has to be split to find the end of a first part of at most `part_bytes`.
    /// Returns `None` if the text is not longer, or may not be cut.
    pub fn window(self, text: &str, part_bytes: usize) -> Option<&str> {
        if self == Self::Never || text.len() <= part_bytes + CONTEXT_BYTES {
            return None;
        }
        let end = (0..=part_bytes + CONTEXT_BYTES).rev().find(|end| text.is_char_boundary(*end));
        end.map(|end| &text[..end])
    }

    /// Returns the end of the first part of `window`, and the number of pieces in it. Returns `None` if no place to cut
    /// is found.
    pub fn first_part(
        self,
        window: &str,
        part_bytes: usize,
        pieces: &PreTokenizedString,
    ) -> Option<(usize, usize)> {
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let ends = splits.windows(2).enumerate().rev();
        let mut cuts = ends.map(|(idx, pair)| (pair[0].1.1, pair[1].1.0, idx + 1));
        cuts.find(|(end, next, _)| *end <= part_bytes && end <= next && self.allows(window.as_bytes(), *end))
            .map(|(end, _, num_pieces)| (end, num_pieces))
    }

    fn allows(self, text: &[u8], end: usize) -> bool {
        let (Some(before), Some(after)) = (end.checked_sub(1).map(|idx| text[idx]), text.get(end)) else {
            return false;
        };
        match self {
            Self::Never => false,
            Self::BeforeSpace => before.is_ascii_alphanumeric() && *after == b' ',
            Self::BeforeAscii => after.is_ascii(),
        }
    }
}

/// Returns the steps of a sequence, or the only step.
fn steps(value: &Value, field: &str) -> Vec<Value> {
    match value[field].as_array() {
        Some(inner) => inner.iter().flat_map(|step| steps(step, field)).collect(),
        None => vec![value.clone()],
    }
}
