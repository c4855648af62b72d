//! Pre-tokenizers of byte-level vocabularies by their GGUF name (`tokenizer.ggml.pre`).
//!
//! A GGUF names the way in which text is cut before merging, and does not spell it out. Each expression below is the
//! one in the `tokenizer.json` of the model that the name stands for; which name stands for which model is
//! llama.cpp's list.

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use crate::TextError;

/// Llama 3 (after GPT-4's cl100k): up to three digits together.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2, 2.5, 3: one digit.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5: combining marks stay with their letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's Tekken: words are cut where lower case turns to upper.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's o200k.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// GPT-2's expression, which `ByteLevel` brings.
    Gpt2,
    /// Each digit alone, then GPT-2's.
    DigitsThenGpt2,
    /// By an expression.
    Expression(&'static str),
}

/// A pre-tokenizer and what else its name implies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreTokenizer {
    cut: Cut,
    /// A piece that is a token as it stands is not merged up.
    pub ignore_merges: bool,
    /// BOS is put first unless the file says otherwise.
    pub add_bos: bool,
    /// Text is brought into Unicode's composed form first.
    compose: bool,
}

impl PreTokenizer {
    /// By the GGUF's name for it; `None` (an old file) is `default`, GPT-2's.
    pub fn by_name(name: Option<&str>) -> Result<Self, TextError> {
        let plain = |cut| Self { cut, ignore_merges: false, add_bos: false, compose: false };
        Ok(match name.unwrap_or("default") {
            "default" | "gpt-2" | "phi-2" | "mpt" | "olmo" | "trillion" | "exaone4" | "granite-docling" => {
                plain(Cut::Gpt2)
            }
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                plain(Cut::DigitsThenGpt2)
            }
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" | "midm-2.0" | "lfm2" => {
                Self { ignore_merges: true, add_bos: true, ..plain(Cut::Expression(LLAMA3)) }
            }
            "dbrx" | "smaug-bpe" => plain(Cut::Expression(LLAMA3)),
            "qwen2" | "stablelm2" | "megrez" => Self { compose: true, ..plain(Cut::Expression(QWEN2)) },
            "deepseek-r1-qwen" => plain(Cut::Expression(QWEN2)),
            "qwen35" => Self { compose: true, ..plain(Cut::Expression(QWEN35)) },
            "tekken" => Self { ignore_merges: true, add_bos: true, ..plain(Cut::Expression(TEKKEN)) },
            "gpt-4o" | "llama4" => plain(Cut::Expression(GPT4O)),
            other => {
                return Err(TextError::UnsupportedTokenizer {
                    detail: format!(
                        "pre-tokenizer `{other}` (`tokenizer.ggml.pre`) is unknown, known are gpt-2, smollm, llama-bpe, \
                         qwen2, qwen35, tekken, gpt-4o and their kin; hint: use the model's folder with `tokenizer.json`"
                    ),
                });
            }
        })
    }

    /// For the library's pipeline.
    pub fn build(self) -> Result<PreTokenizerWrapper, TextError> {
        let byte_level = |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, false, use_regex));
        let first: PreTokenizerWrapper = match self.cut {
            Cut::Gpt2 => return Ok(byte_level(true)),
            Cut::DigitsThenGpt2 => Digits::new(true).into(),
            Cut::Expression(expression) => {
                let pattern = SplitPattern::Regex(expression.to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|error| TextError::InvalidTokenizer { detail: error.to_string() })?
                    .into()
            }
        };
        Ok(Sequence::new(vec![first, byte_level(self.cut == Cut::DigitsThenGpt2)]).into())
    }

    /// What is done to the text before.
    pub fn normalizer(self) -> Option<NormalizerWrapper> {
        self.compose.then(|| NFC.into())
    }
}
