//! Builds a tokenizer from the metadata of a GGUF file.

use std::collections::BTreeMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{AddedToken, NormalizerWrapper};

use super::Tokenizer;
use super::bytes::{byte_level_bytes, byte_level_spelling, byte_token, sentence_piece_bytes};
use super::merges::merges_by_score;
use super::pre::PreTokenizer;
use super::sentence_piece::proto::{ModelProto, NormalizerSpec, Piece};
use super::sentence_piece::{SpaceRules, tokenizer_from_proto};
use super::vocabulary::{Vocabulary, check_size};
use crate::error::TextError;
use crate::framing::{Framing, PairFraming};
use crate::gguf::{GgufArray, GgufMetadata, GgufValue};

/// A tokenizer, and defaults that depend on the vocabulary's kind.
#[derive(Debug)]
pub struct GgufTokenizer {
    pub tokenizer: Tokenizer,
    /// The text of each id, and whether it is a control token.
    pub tokens: Vec<(String, bool)>,
    /// True if BOS precedes every text unless the file says otherwise.
    pub add_bos_by_default: bool,
    /// Ids of BOS, EOS and the unknown token, used if the file does not name them.
    pub default_special_ids: [Option<u32>; 3],
    /// The ids around texts, if they are not BOS and EOS.
    pub framing: Option<Framing>,
}

/// The values of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

struct GgufToken {
    text: String,
    kind: TokenType,
}

impl GgufToken {
    fn is_special(&self) -> bool {
        matches!(self.kind, TokenType::Control | TokenType::Unknown)
    }

    fn is_added(&self) -> bool {
        self.is_special() || self.kind == TokenType::UserDefined
    }
}

/// Moves the vocabulary out of `metadata` and builds its tokenizer.
pub fn tokenizer_from_gguf(metadata: &mut GgufMetadata) -> Result<GgufTokenizer, TextError> {
    let model = match metadata.remove("tokenizer.ggml.model") {
        Some(GgufValue::String(model)) => model,
        _ => {
            return Err(invalid(
                "`tokenizer.ggml.model` is missing; hint: use a GGUF file that includes its tokenizer",
            ));
        }
    };
    let tokens = tokens(metadata)?;
    match model.as_str() {
        "gpt2" => byte_level(metadata, tokens),
        "llama" => sentence_piece(metadata, tokens),
        "bert" => word_piece(metadata, tokens),
        "t5" => unigram(metadata, tokens),
        other => Err(TextError::UnsupportedTokenizer {
            detail: format!(
                "`tokenizer.ggml.model` is `{other}`, but only `bert`, `gpt2`, `llama` and `t5` are \
                 supported"
            ),
        }),
    }
}

fn invalid(detail: impl Into<String>) -> TextError {
    TextError::InvalidTokenizer { detail: detail.into() }
}

fn tokens(metadata: &mut GgufMetadata) -> Result<Vec<GgufToken>, TextError> {
    let Some(texts) = strings(metadata, "tokenizer.ggml.tokens")? else {
        return Err(invalid("`tokenizer.ggml.tokens` is missing"));
    };
    check_size(texts.len() as u64)?;
    let types = match metadata.remove("tokenizer.ggml.token_type") {
        None => vec![1; texts.len()],
        Some(GgufValue::Array(GgufArray::Integers(types))) => types,
        Some(other) => return Err(invalid(format!("`tokenizer.ggml.token_type` is {}", other.kind()))),
    };
    if types.len() != texts.len() {
        return Err(invalid(format!(
            "`tokenizer.ggml.token_type` has {} entries for {} tokens",
            types.len(),
            texts.len()
        )));
    }
    let kinds = types.into_iter().map(|kind| match kind {
        2 => TokenType::Unknown,
        3 => TokenType::Control,
        4 => TokenType::UserDefined,
        5 => TokenType::Unused,
        6 => TokenType::Byte,
        _ => TokenType::Normal,
    });
    Ok(texts.into_iter().zip(kinds).map(|(text, kind)| GgufToken { text, kind }).collect())
}

fn strings(metadata: &mut GgufMetadata, key: &str) -> Result<Option<Vec<String>>, TextError> {
    match metadata.remove(key) {
        None => Ok(None),
        Some(GgufValue::Array(GgufArray::Strings(strings))) => Ok(Some(strings)),
        Some(other) => Err(invalid(format!("`{key}` is {}, not an array of strings", other.kind()))),
    }
}

fn merges(metadata: &mut GgufMetadata) -> Result<Option<Vec<(String, String)>>, TextError> {
    let Some(merges) = strings(metadata, "tokenizer.ggml.merges")? else { return Ok(None) };
    let split = |(idx, merge): (usize, String)| {
        // The first token is not empty, so a leading space belongs to it.
        let first_chars = merge.chars().next().map_or(0, char::len_utf8);
        match merge[first_chars..].split_once(' ') {
            Some((_, right)) => {
                let left = &merge[..merge.len() - right.len() - 1];
                Ok((left.to_owned(), right.to_owned()))
            }
            None => Err(invalid(format!("merge {idx} of `tokenizer.ggml.merges` has no space"))),
        }
    };
    merges.into_iter().enumerate().map(split).collect::<Result<_, _>>().map(Some)
}

/// Builds a byte-level BPE tokenizer, as GPT-2 and its descendants have.
fn byte_level(metadata: &mut GgufMetadata, tokens: Vec<GgufToken>) -> Result<GgufTokenizer, TextError> {
    let pre_name = match metadata.get("tokenizer.ggml.pre") {
        Some(GgufValue::String(name)) => Some(name.clone()),
        _ => None,
    };
    let pre = PreTokenizer::by_name(pre_name.as_deref())?;
    let merges = merges(metadata)?.ok_or_else(|| invalid("`tokenizer.ggml.merges` is missing"))?;
    // Added tokens come last, because they must not replace a token with the same spelling in the alphabet.
    let mut vocab = Vocab::with_capacity(tokens.len());
    for added in [false, true] {
        for (id, token) in (0..).zip(&tokens).filter(|(_, token)| token.is_added() == added) {
            vocab.entry(byte_level_spelling(&token.text)).or_insert(id);
        }
    }
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| invalid(error.to_string()))?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline.with_normalizer(pre.normalizer());
    pipeline.with_pre_tokenizer(Some(pre.build()?));
    let bytes = |token: &GgufToken| {
        if token.is_added() { token.text.as_bytes().to_vec() } else { byte_level_bytes(&token.text) }
    };
    Ok(GgufTokenizer {
        tokenizer: assemble(pipeline, &tokens, bytes, false)?,
        tokens: tokens.into_iter().map(|token| (token.text, token.kind == TokenType::Control)).collect(),
        add_bos_by_default: pre.add_bos,
        default_special_ids: [None; 3],
        framing: None,
    })
}

/// Builds a SentencePiece BPE tokenizer, as Llama 2 and Mistral 0.1 have.
///
/// Merges are ordered by the score of their result, and unknown characters become bytes. Every stretch of text between
/// control tokens begins with a space that the text does not have, as in llama.cpp and in the `tokenizer.json` of those
/// models.
fn sentence_piece(metadata: &mut GgufMetadata, tokens: Vec<GgufToken>) -> Result<GgufTokenizer, TextError> {
    let vocab: Vocab = tokens.iter().map(|token| token.text.clone()).zip(0..).collect();
    let merges = match merges(metadata)? {
        Some(merges) => merges,
        None => derived_merges(metadata, &tokens, &vocab)?,
    };
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .fuse_unk(true)
        .byte_fallback(tokens.iter().any(|token| byte_token(&token.text).is_some()));
    if let Some(unknown) = tokens.iter().find(|token| token.kind == TokenType::Unknown) {
        builder = builder.unk_token(unknown.text.clone());
    }
    let model = builder.build().map_err(|error| invalid(error.to_string()))?;

    let add_space = !matches!(metadata.get("tokenizer.ggml.add_space_prefix"), Some(GgufValue::Bool(false)));
    let spaces = Replace::new(" ", "▁").map_err(|error| invalid(error.to_string()))?;
    let mut normalizers: Vec<NormalizerWrapper> = vec![spaces.into()];
    if add_space {
        normalizers.insert(0, Prepend::new("▁".into()).into());
    }
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline.with_normalizer(Some(Sequence::new(normalizers)));
    let bytes = |token: &GgufToken| match token.kind {
        TokenType::Control | TokenType::Unknown | TokenType::UserDefined => token.text.as_bytes().to_vec(),
        _ => sentence_piece_bytes(&token.text),
    };
    Ok(GgufTokenizer {
        tokenizer: assemble(pipeline, &tokens, bytes, add_space)?,
        tokens: tokens.into_iter().map(|token| (token.text, token.kind == TokenType::Control)).collect(),
        add_bos_by_default: true,
        default_special_ids: [Some(1), Some(2), Some(0)],
        framing: None,
    })
}

/// Builds BERT's WordPiece tokenizer. Files mark tokens that begin a word, by `▁`, where BERT marks all others.
///
/// Texts become lower case without accents, unless the vocabulary has tokens in upper case.
fn word_piece(metadata: &mut GgufMetadata, mut tokens: Vec<GgufToken>) -> Result<GgufTokenizer, TextError> {
    for token in tokens.iter_mut().filter(|token| !token.is_special()) {
        let is_named = token.text.starts_with('[') && token.text.ends_with(']');
        token.text = match token.text.strip_prefix('▁') {
            Some(word) => word.to_owned(),
            None if is_named => continue,
            None => format!("##{}", token.text),
        };
    }
    let unknown = named_token(metadata, &["tokenizer.ggml.unknown_token_id"], "[UNK]", &tokens)?;
    let begin = ["tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"];
    let begin = named_token(metadata, &begin, "[CLS]", &tokens)?;
    // The first key is spelled like this in all files.
    let end = ["tokenizer.ggml.seperator_token_id", "tokenizer.ggml.eos_token_id"];
    let end = named_token(metadata, &end, "[SEP]", &tokens)?;
    let is_cased =
        tokens.iter().any(|token| !token.is_special() && token.text.chars().any(char::is_uppercase));
    let vocab: Vocab = tokens.iter().map(|token| token.text.clone()).zip(0..).collect();
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(tokens[unknown as usize].text.clone())
        .build()
        .map_err(|error| invalid(error.to_string()))?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline.with_normalizer(Some(BertNormalizer::new(true, true, None, !is_cased)));
    pipeline.with_pre_tokenizer(Some(BertPreTokenizer));
    let bytes = |token: &GgufToken| token.text.strip_prefix("##").unwrap_or(&token.text).as_bytes().to_vec();
    let pair =
        PairFraming { before: vec![begin], between: vec![end], num_of_first: Some(1), after: vec![end] };
    Ok(GgufTokenizer {
        tokenizer: assemble(pipeline, &tokens, bytes, false)?,
        tokens: tokens.into_iter().map(|token| (token.text, token.kind == TokenType::Control)).collect(),
        add_bos_by_default: false,
        default_special_ids: [Some(begin), Some(end), Some(unknown)],
        framing: Some(Framing { before: vec![begin], after: vec![end], pair }),
    })
}

/// Builds SentencePiece's unigram tokenizer, as XLM-RoBERTa has.
fn unigram(metadata: &mut GgufMetadata, tokens: Vec<GgufToken>) -> Result<GgufTokenizer, TextError> {
    let scores = scores(metadata, tokens.len())?;
    let charsmap = match metadata.remove("tokenizer.ggml.precompiled_charsmap") {
        None => Vec::new(),
        Some(GgufValue::Array(GgufArray::Integers(bytes))) => bytes
            .into_iter()
            .map(|byte| u8::try_from(byte).map_err(|_| invalid("`precompiled_charsmap` has no bytes")))
            .collect::<Result<_, _>>()?,
        Some(other) => {
            return Err(invalid(format!("`tokenizer.ggml.precompiled_charsmap` is {}", other.kind())));
        }
    };
    let is_set = |key: &str| !matches!(metadata.get(key), Some(GgufValue::Bool(false)));
    let pieces = tokens.iter().zip(scores).map(|(token, score)| Piece {
        text: &token.text,
        score: score as f32,
        kind: match token.kind {
            TokenType::Normal => 1,
            TokenType::Unknown => 2,
            TokenType::UserDefined => 4,
            TokenType::Byte => 6,
            TokenType::Control | TokenType::Unused => 3,
        },
    });
    let proto = ModelProto {
        pieces: pieces.collect(),
        normalizer: NormalizerSpec {
            precompiled_charsmap: &charsmap,
            add_dummy_prefix: is_set("tokenizer.ggml.add_space_prefix"),
            remove_extra_whitespaces: is_set("tokenizer.ggml.remove_extra_whitespaces"),
            ..NormalizerSpec::default()
        },
        ..ModelProto::default()
    };
    let renamed = |error| match error {
        TextError::InvalidTokenizer { detail } => {
            invalid(detail.replace("`tokenizer.model`", "`tokenizer.ggml.tokens`"))
        }
        other => other,
    };
    let built = tokenizer_from_proto(proto, BTreeMap::new(), SpaceRules::default()).map_err(renamed)?;
    let begin = named_token(metadata, &["tokenizer.ggml.bos_token_id"], "<s>", &tokens)?;
    let end = named_token(metadata, &["tokenizer.ggml.eos_token_id"], "</s>", &tokens)?;
    let pair =
        PairFraming { before: vec![begin], between: vec![end, end], num_of_first: None, after: vec![end] };
    let unknown = tokens.iter().position(|token| token.kind == TokenType::Unknown).map(|id| id as u32);
    Ok(GgufTokenizer {
        tokenizer: built.tokenizer,
        tokens: tokens.into_iter().map(|token| (token.text, token.kind == TokenType::Control)).collect(),
        add_bos_by_default: true,
        default_special_ids: [Some(begin), Some(end), unknown],
        framing: Some(Framing { before: vec![begin], after: vec![end], pair }),
    })
}

/// Returns the id that the first of several keys has, or that of a token by its name.
fn named_token(
    metadata: &GgufMetadata,
    keys: &[&str],
    name: &str,
    tokens: &[GgufToken],
) -> Result<u32, TextError> {
    let stated = keys.iter().find_map(|key| match metadata.get(key)? {
        GgufValue::Unsigned(id) => Some(*id),
        _ => None,
    });
    let named = || tokens.iter().position(|token| token.text == name).map(|id| id as u64);
    match stated.or_else(named) {
        Some(id) if id < tokens.len() as u64 => Ok(id as u32),
        Some(id) => Err(invalid(format!("`{name}` is token {id}, but there are {} tokens", tokens.len()))),
        None => Err(invalid(format!("there is neither `{}` nor a token `{name}`", keys[0]))),
    }
}

/// Derives the merges of a vocabulary that scores its tokens.
fn derived_merges(
    metadata: &mut GgufMetadata,
    tokens: &[GgufToken],
    vocab: &Vocab,
) -> Result<Vec<(String, String)>, TextError> {
    let scores = scores(metadata, tokens.len())?;
    // Text must not merge into a control token, so control tokens are neither parts nor results.
    let mergeable: Vec<(&str, f64)> = tokens
        .iter()
        .zip(scores)
        .filter(|(token, _)| {
            matches!(token.kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused)
        })
        .map(|(token, score)| (token.text.as_str(), score))
        .collect();
    Ok(merges_by_score(&mergeable, vocab))
}

fn scores(metadata: &mut GgufMetadata, num_tokens: usize) -> Result<Vec<f64>, TextError> {
    match metadata.remove("tokenizer.ggml.scores") {
        Some(GgufValue::Array(GgufArray::Floats(scores))) if scores.len() == num_tokens => Ok(scores),
        _ => Err(invalid(format!(
            "`tokenizer.ggml.scores` is missing or does not have one score for each of {num_tokens} tokens"
        ))),
    }
}

fn assemble(
    pipeline: tokenizers::Tokenizer,
    tokens: &[GgufToken],
    bytes: impl Fn(&GgufToken) -> Vec<u8>,
    leading_space: bool,
) -> Result<Tokenizer, TextError> {
    let mut vocabulary = Vocabulary::default();
    for token in tokens {
        vocabulary.push(&bytes(token), token.is_special());
    }
    let added = (0..)
        .zip(tokens)
        .filter(|(_, token)| token.is_added())
        .map(|(id, token)| (AddedToken::from(token.text.clone(), token.is_special()).normalized(false), id));
    Tokenizer::of_pipeline(pipeline, added, vocabulary, leading_space)
}
