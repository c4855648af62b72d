//! Builds a tokenizer from a `tokenizer.json`.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{AddedToken, EncodeInput};

use super::Tokenizer;
use super::bytes::{byte_level_bytes, sentence_piece_bytes};
use super::vocabulary::{Vocabulary, check_size};
use crate::error::TextError;
use crate::framing::Framing;

/// A tokenizer, and what its post-processor adds.
#[derive(Debug)]
pub struct JsonTokenizer {
    pub tokenizer: Tokenizer,
    pub framing: Framing,
}

/// The spelling of bytes in tokens, which the file's decoder shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    SentencePiece {
        leading_space: bool,
    },
    /// BERT's. Tokens inside of words begin with `##`. Encoders generate no text, so this is only for display.
    WordPiece,
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
    let framing = framing(&pipeline)?;

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
        Spelling::WordPiece => name.strip_prefix("##").unwrap_or(name).as_bytes().to_vec(),
    };
    let vocabulary = Vocabulary::new(names.into_iter().map(|name| name.map(bytes)), &added)?;
    let added = added.into_iter().map(|(id, token)| (token, id));
    let leading_space = spelling == Spelling::SentencePiece { leading_space: true };
    Ok(JsonTokenizer {
        tokenizer: Tokenizer::of_pipeline(pipeline, added, vocabulary, leading_space)?,
        framing,
    })
}

/// Returns the ids that the post-processor puts around texts.
fn framing(pipeline: &tokenizers::Tokenizer) -> Result<Framing, TextError> {
    let failed = |error: tokenizers::Error| TextError::InvalidTokenizer { detail: error.to_string() };
    let encode =
        |text: EncodeInput<'_>, with_special| pipeline.encode_fast(text, with_special).map_err(failed);
    let (plain, whole, pair) =
        (encode("a".into(), false)?, encode("a".into(), true)?, encode(("a", "a").into(), true)?);
    Ok(Framing::of_samples(plain.get_ids(), whole.get_ids(), pair.get_ids(), pair.get_type_ids()))
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
        !["ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "WordPiece"]
            .contains(&kind.as_str())
    }) {
        return Err(unsupported(format!(
            "decoder `{other}` of `tokenizer.json` is not supported; supported are ByteLevel, WordPiece and those of SentencePiece"
        )));
    }
    if has("ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    if has("WordPiece") {
        return Ok(Spelling::WordPiece);
    }
    let metaspace = steps.iter().find(|step| kind(step) == "Metaspace");
    let prepends =
        metaspace.is_some_and(|step| step.get("prepend_scheme").and_then(Value::as_str) != Some("never"));
    let strips =
        steps.iter().any(|step| kind(step) == "Strip" && step.get("start").and_then(Value::as_u64) > Some(0));
    Ok(Spelling::SentencePiece { leading_space: prepends || strips })
}
