//! Builds a tokenizer from a `tokenizer.json`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{AddedToken, NormalizedString, Normalizer};

use super::Tokenizer;
use super::added::AddedTokens;
use super::bytes::{byte_level_bytes, sentence_piece_bytes};
use super::vocabulary::{Vocabulary, check_size};
use crate::error::TextError;

/// A tokenizer, and the prefix that its post-processor adds.
#[derive(Debug)]
pub struct JsonTokenizer {
    pub tokenizer: Tokenizer,
    /// Ids that the post-processor puts before every text.
    pub prefix_ids: Vec<u32>,
}

/// The spelling of bytes in tokens, which the file's decoder shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    SentencePiece { leading_space: bool },
}

/// Builds the tokenizer that a `tokenizer.json` describes.
pub fn tokenizer_from_json(json: &[u8]) -> Result<JsonTokenizer, TextError> {
    let invalid =
        |detail: String| TextError::InvalidTokenizer { detail: format!("`tokenizer.json`: {detail}") };
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| invalid(error.to_string()))?;
    // The library panics on some invalid files, for example if the decoder is not an object.
    std::panic::catch_unwind(|| build(json))
        .unwrap_or_else(|_| Err(invalid("the tokenizers library cannot read it".into())))
}

fn build(json: &[u8]) -> Result<JsonTokenizer, TextError> {
    let mut pipeline = tokenizers::Tokenizer::from_bytes(json)
        .map_err(|error| TextError::InvalidTokenizer { detail: format!("`tokenizer.json`: {error}") })?;
    // The router enforces limits, and a prompt is never padded.
    pipeline
        .with_truncation(None)
        .map_err(|error| TextError::InvalidTokenizer { detail: error.to_string() })?
        .with_padding(None);
    let spelling = spelling(&pipeline)?;
    let prefix_ids = prefix_ids(&pipeline)?;

    let added: BTreeMap<u32, AddedToken> = pipeline.get_added_tokens_decoder().into_iter().collect();
    let vocab = pipeline.get_vocab(true);
    let num_ids = vocab.values().copied().max().map_or(0, |max| u64::from(max) + 1);
    let mut names: Vec<Option<&str>> = vec![None; check_size(num_ids)? as usize];
    for (name, &id) in &vocab {
        names[id as usize] = Some(name);
    }
    let bytes = |name: &str| match spelling {
        Spelling::ByteLevel => byte_level_bytes(name),
        Spelling::SentencePiece { .. } => sentence_piece_bytes(name),
    };
    let vocabulary = Vocabulary::new(names.into_iter().map(|name| name.map(bytes)), &added)?;
    let added = AddedTokens::new(added.into_iter().map(|(id, token)| (token, id)), |text| {
        normalize_with(&pipeline, text)
    })?;
    let leading_space = spelling == Spelling::SentencePiece { leading_space: true };
    Ok(JsonTokenizer {
        tokenizer: Tokenizer { pipeline, sentence_piece: None, added, vocabulary, leading_space },
        prefix_ids,
    })
}

/// Normalizes a text with the pipeline's normalizer.
pub fn normalize_with(pipeline: &tokenizers::Tokenizer, text: &str) -> Result<String, TextError> {
    let mut normalized = NormalizedString::from(text);
    if let Some(normalizer) = pipeline.get_normalizer() {
        normalizer
            .normalize(&mut normalized)
            .map_err(|error| TextError::InvalidTokenizer { detail: error.to_string() })?;
    }
    Ok(normalized.get().to_owned())
}

/// Returns the ids that the post-processor puts before a text.
fn prefix_ids(pipeline: &tokenizers::Tokenizer) -> Result<Vec<u32>, TextError> {
    let failed = |error: tokenizers::Error| TextError::InvalidTokenizer { detail: error.to_string() };
    let ids = |with_special| Ok(pipeline.encode_fast("a", with_special).map_err(failed)?.get_ids().to_vec());
    let (plain, whole): (Vec<u32>, Vec<u32>) = (ids(false)?, ids(true)?);
    let start = whole.windows(plain.len().max(1)).position(|window| window == plain);
    Ok(whole[..start.unwrap_or(0)].to_vec())
}

/// Reads the spelling from the decoder's JSON form, which is stable, unlike the library's types.
fn spelling(pipeline: &tokenizers::Tokenizer) -> Result<Spelling, TextError> {
    let unsupported = |detail: String| TextError::UnsupportedTokenizer { detail };
    let Some(decoder) = pipeline.get_decoder() else {
        return Err(unsupported("`tokenizer.json` has no decoder".into()));
    };
    let decoder = serde_json::to_value(decoder).map_err(|error| unsupported(error.to_string()))?;
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.clone(),
        None => vec![decoder],
    };
    let kind = |step: &Value| step.get("type").and_then(Value::as_str).unwrap_or("unnamed").to_owned();
    let kinds: Vec<String> = steps.iter().map(kind).collect();
    let has = |name: &str| kinds.iter().any(|kind| kind == name);
    if let Some(other) = kinds.iter().find(|kind| {
        !["ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"].contains(&kind.as_str())
    }) {
        return Err(unsupported(format!(
            "decoder `{other}` of `tokenizer.json` is not supported; supported are ByteLevel and those of SentencePiece"
        )));
    }
    if has("ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    let metaspace = steps.iter().find(|step| kind(step) == "Metaspace");
    let prepends =
        metaspace.is_some_and(|step| step.get("prepend_scheme").and_then(Value::as_str) != Some("never"));
    let strips =
        steps.iter().any(|step| kind(step) == "Strip" && step.get("start").and_then(Value::as_u64) > Some(0));
    Ok(Spelling::SentencePiece { leading_space: prepends || strips })
}
