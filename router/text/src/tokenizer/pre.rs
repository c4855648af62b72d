//! Pre-tokenizers of byte-level vocabularies by their GGUF name (`tokenizer.ggml.pre`).
//!
//! A GGUF file only names the way in which text is split before merging. Each expression below comes from the
//! `tokenizer.json` of the model that the name stands for, and llama.cpp's list maps names to models.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use crate::error::TextError;

/// The expression of Llama 3, after GPT-4's cl100k, which keeps up to three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of Qwen 2, 2.5 and 3, which separates digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of Qwen 3.5, which keeps combining marks with their letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of Mistral's Tekken, which splits words where lower case turns to upper case.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The expression of GPT-4o's o200k.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The way in which text is split into pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitRule {
    /// Splits by GPT-2's expression, which is part of `ByteLevel`.
    Gpt2,
    /// Separates digits, then splits by GPT-2's expression.
    DigitsThenGpt2,
    /// Splits by another expression.
    Expression(&'static str),
}

/// A pre-tokenizer and the other properties that its name implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreTokenizer {
    split_rule: SplitRule,
    /// True if a piece that is itself a token is not merged.
    pub ignore_merges: bool,
    /// True if BOS precedes every text unless the file says otherwise.
    pub add_bos: bool,
    /// True if text is first normalized to Unicode's composed form.
    compose: bool,
}

impl PreTokenizer {
    /// Finds a pre-tokenizer by its GGUF name. Old files have no name, which means GPT-2's.
    pub fn by_name(name: Option<&str>) -> Result<Self, TextError> {
        let plain = |split_rule| Self { split_rule, ignore_merges: false, add_bos: false, compose: false };
        Ok(match name.unwrap_or("default") {
            "default" | "gpt-2" | "phi-2" | "mpt" | "olmo" | "trillion" | "exaone4" | "granite-docling" => {
                plain(SplitRule::Gpt2)
            }
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                plain(SplitRule::DigitsThenGpt2)
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "midm-2.0" | "lfm2" => {
                Self { ignore_merges: true, add_bos: true, ..plain(SplitRule::Expression(LLAMA3)) }
            }
            "dbrx" | "smaug-bpe" => plain(SplitRule::Expression(LLAMA3)),
            "qwen2" | "stablelm2" | "megrez" => Self { compose: true, ..plain(SplitRule::Expression(QWEN2)) },
            "deepseek-r1-qwen" => plain(SplitRule::Expression(QWEN2)),
            "qwen35" => Self { compose: true, ..plain(SplitRule::Expression(QWEN35)) },
            "tekken" => Self { ignore_merges: true, add_bos: true, ..plain(SplitRule::Expression(TEKKEN)) },
            "gpt-4o" | "llama4" => plain(SplitRule::Expression(GPT4O)),
            other => {
                return Err(TextError::UnsupportedTokenizer {
                    detail: format!(
                        "pre-tokenizer `{other}` (`tokenizer.ggml.pre`) is unknown; known are gpt-2, smollm, llama-bpe, \
                         qwen2, qwen35, tekken, gpt-4o and their variants; hint: use the model's folder with \
                         `tokenizer.json`"
                    ),
                });
            }
        })
    }

    /// Builds the pre-tokenizer of the library's pipeline.
    pub fn build(self) -> Result<PreTokenizerWrapper, TextError> {
        let byte_level = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, false, use_regex));
        let first: PreTokenizerWrapper = match self.split_rule {
            SplitRule::Gpt2 => return Ok(byte_level(true)),
            SplitRule::DigitsThenGpt2 => Digits::new(true).into(),
            SplitRule::Expression(expression) => {
                let pattern = SplitPattern::Regex(expression.to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|error| TextError::InvalidTokenizer { detail: error.to_string() })?
                    .into()
            }
        };
        Ok(Sequence::new(vec![first, byte_level(self.split_rule == SplitRule::DigitsThenGpt2)]).into())
    }

    pub fn normalizer(self) -> Option<NormalizerWrapper> {
        self.compose.then(|| NFC.into())
    }
}
