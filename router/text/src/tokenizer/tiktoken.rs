//! Builds a tokenizer from a file in tiktoken's text form: a token in base64 and its rank on each line.

use std::collections::{BTreeMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};

use super::Tokenizer;
use super::bytes::char_of_byte;
use super::merges::merges_by_score;
use super::pre::PreTokenizer;
use super::vocabulary::{MAX_VOCAB_SIZE, Vocabulary};
use crate::error::TextError;

/// A family of models whose files lack the expression that cuts text, because it is in the code of their tokenizer.
struct Family {
    /// Values of `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// The pre-tokenizer by its GGUF name.
    pre: &'static str,
    /// Tokens that begin every prompt.
    prefix: &'static [&'static str],
}

const FAMILIES: [Family; 3] = [
    Family { model_types: &["llama"], pre: "llama-bpe", prefix: &["<|begin_of_text|>"] },
    Family { model_types: &["qwen2", "qwen2_moe", "qwen3", "qwen3_moe"], pre: "qwen2", prefix: &[] },
    Family { model_types: &["glm", "glm4"], pre: "llama-bpe", prefix: &["[gMASK]", "<sop>"] },
];

#[derive(Debug)]
pub struct TiktokenTokenizer {
    pub tokenizer: Tokenizer,
    /// Ids that begin every prompt.
    pub prefix_ids: Vec<u32>,
}

/// Returns true if a file is in tiktoken's text form, which SentencePiece's binary form never is.
pub fn is_tiktoken(bytes: &[u8]) -> bool {
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line(first).is_some()
}

/// Builds the tokenizer of a model. `added` are its control tokens, which other files define.
pub fn tokenizer_from_tiktoken(
    bytes: &[u8],
    added: BTreeMap<u32, AddedToken>,
    model_type: &str,
) -> Result<TiktokenTokenizer, TextError> {
    let Some(family) = FAMILIES.iter().find(|family| family.model_types.contains(&model_type)) else {
        let known: Vec<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        return Err(TextError::UnsupportedTokenizer {
            detail: format!(
                "a tiktoken file does not say how text is cut, which is known only for `model_type` {}, not for \
                 `{model_type}`; hint: use the model's `tokenizer.json`",
                known.join(", ")
            ),
        });
    };
    let ranks = ranks(bytes)?;
    if added.is_empty() {
        return Err(invalid("the control tokens are missing; hint: `tokenizer_config.json` lists them"));
    }
    let vocab: Vocab = ranks.iter().map(|(rank, token)| (spelled(token), *rank)).collect();
    let spellings: Vec<(String, f64)> =
        ranks.iter().map(|(rank, token)| (spelled(token), -f64::from(*rank))).collect();
    let mergeable: Vec<(&str, f64)> = spellings.iter().map(|(text, score)| (text.as_str(), *score)).collect();
    let merges = merges_by_score(&mergeable, &vocab);
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(true)
        .build()
        .map_err(|error| invalid(error.to_string()))?;
    let pre = PreTokenizer::by_name(Some(family.pre))?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline.with_normalizer(pre.normalizer());
    pipeline.with_pre_tokenizer(Some(pre.build()?));

    let num_ids = ranks.last_key_value().map_or(0, |(rank, _)| rank + 1);
    let vocabulary = Vocabulary::new((0..num_ids).map(|id| ranks.get(&id).cloned()), &added)?;
    let added = added.into_iter().map(|(id, token)| (token, id));
    let tokenizer = Tokenizer::of_pipeline(pipeline, added, vocabulary, false)?;
    let prefix_ids = family.prefix.iter().map(|text| tokenizer.token_id(text)).collect::<Option<Vec<_>>>();
    Ok(TiktokenTokenizer { prefix_ids: prefix_ids.unwrap_or_default(), tokenizer })
}

fn invalid(detail: impl Into<String>) -> TextError {
    TextError::InvalidTokenizer { detail: format!("tiktoken file: {}", detail.into()) }
}

fn line(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let line = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
    let (token, rank) = line.split_once(' ')?;
    Some((STANDARD.decode(token).ok()?, rank.parse().ok()?))
}

/// Spells a token in the alphabet of byte-level vocabularies.
fn spelled(token: &[u8]) -> String {
    token.iter().copied().map(char_of_byte).collect()
}

/// Returns the tokens by their ranks, which are their ids.
fn ranks(bytes: &[u8]) -> Result<BTreeMap<u32, Vec<u8>>, TextError> {
    let mut ranks = BTreeMap::new();
    let mut tokens = HashSet::new();
    for (number, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if text.is_empty() {
            continue;
        }
        let problem = |problem: &str| invalid(format!("line {number} {problem}"));
        let (token, rank) =
            line(text).ok_or_else(|| problem("is not a token in base64, a space and a rank"))?;
        if token.is_empty() || rank >= MAX_VOCAB_SIZE {
            return Err(problem(&format!(
                "has an empty token, or a rank that is not below {MAX_VOCAB_SIZE}"
            )));
        }
        if !tokens.insert(token.clone()) || ranks.insert(rank, token).is_some() {
            return Err(problem("repeats a token or a rank"));
        }
    }
    if let Some(missing) = (0..=u8::MAX).find(|byte| !tokens.contains(&[*byte][..])) {
        return Err(invalid(format!("byte {missing} has no token")));
    }
    // Ids without a token take memory, too.
    match ranks.last_key_value() {
        Some((last, _)) if *last as usize >= 2 * ranks.len() => {
            Err(invalid(format!("the largest rank is {last}, but there are only {} tokens", ranks.len())))
        }
        _ => Ok(ranks),
    }
}
