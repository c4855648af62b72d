//! Builds a tokenizer from SentencePiece's `tokenizer.model`, with a unigram or a BPE vocabulary.

pub mod normalizer;
pub(super) mod proto;

use std::collections::{BTreeMap, HashSet};

use tokenizers::AddedToken;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;

use self::normalizer::{DummyPrefix, SentencePieceNormalizer};
use self::proto::{ModelProto, NormalizerSpec, Piece, TrainerSpec};
use super::Tokenizer;
use super::added::AddedTokens;
use super::bytes::byte_token;
use super::merges::merges_by_score;
use super::parts::{Cuts, PART_BYTES};
use super::steps::Steps;
use super::vocabulary::{Vocabulary, check_size};
use crate::error::TextError;

/// The way in which transformers' classes put a space before text.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpaceRules {
    /// `add_prefix_space` of `tokenizer_config.json`. `false` overrides the model.
    pub add_prefix_space: Option<bool>,
    /// `legacy` of `tokenizer_config.json`. Unless it is `false`, text after an added token begins with a space too.
    pub legacy: Option<bool>,
}

/// A tokenizer, and the names of the tokens that the model gives a role.
#[derive(Debug)]
pub struct SentencePieceTokenizer {
    pub tokenizer: Tokenizer,
    /// Names by their key in `tokenizer_config.json`.
    pub special_texts: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Byte,
}

/// The pieces with their kinds, in the order of their ids.
struct Pieces<'a>(Vec<(Piece<'a>, Kind)>);

/// Builds the tokenizer that a `tokenizer.model` describes. `added` are the tokens that other files define or rename.
pub fn tokenizer_from_sentence_piece(
    bytes: &[u8],
    added: BTreeMap<u32, AddedToken>,
    rules: SpaceRules,
) -> Result<SentencePieceTokenizer, TextError> {
    tokenizer_from_proto(ModelProto::parse(bytes).map_err(invalid)?, added, rules)
}

/// Builds the tokenizer that the contents of a `tokenizer.model` describe.
pub(super) fn tokenizer_from_proto(
    proto: ModelProto<'_>,
    added: BTreeMap<u32, AddedToken>,
    rules: SpaceRules,
) -> Result<SentencePieceTokenizer, TextError> {
    let (trainer, spec) = (proto.trainer, proto.normalizer);
    refuse_unsupported(&trainer, &spec, &proto.denormalizer)?;
    let pieces = Pieces::check(proto.pieces, trainer.byte_fallback)?;

    let (model, matched): (ModelWrapper, _) = match trainer.model_type {
        1 => (pieces.unigram(trainer.byte_fallback)?.into(), None),
        2 => (pieces.bpe(trainer.byte_fallback)?.into(), Some(Kind::UserDefined)),
        other => {
            return Err(TextError::UnsupportedTokenizer {
                detail: format!(
                    "`model_type` of `tokenizer.model` is {other}, but only 1 (unigram) and 2 (BPE) are supported"
                ),
            });
        }
    };
    let dummy_prefix = match (spec.add_dummy_prefix, rules.add_prefix_space, rules.legacy) {
        (false, ..) | (_, Some(false), _) => DummyPrefix::Never,
        (.., Some(false)) => DummyPrefix::First,
        _ => DummyPrefix::Always,
    };
    let remove_extra_spaces = spec.remove_extra_whitespaces;
    let kept: Vec<&str> = pieces.of(Kind::UserDefined).map(|(_, text)| text).collect();
    let normalizer =
        SentencePieceNormalizer::new(spec.precompiled_charsmap, &kept, dummy_prefix, remove_extra_spaces)?;

    let mut all_added = BTreeMap::new();
    for kind in [Kind::Unknown, Kind::Control] {
        all_added.extend(
            pieces.of(kind).map(|(id, text)| (id, AddedToken::from(text.to_owned(), true).normalized(false))),
        );
    }
    if let Some(kind) = matched {
        // These are found after normalization, because they may spell spaces and do not begin a new stretch of text.
        all_added.extend(
            pieces.of(kind).map(|(id, text)| (id, AddedToken::from(text.to_owned(), false).normalized(true))),
        );
    }
    all_added.extend(added);
    let special_texts = pieces.special_texts(&trainer);
    let vocabulary =
        Vocabulary::new(pieces.0.iter().map(|(piece, kind)| Some(shown(piece, *kind))), &all_added)?;
    let added = all_added.into_iter().map(|(id, token)| (token, id));
    let tokenizer = Tokenizer {
        cuts: Cuts::Never,
        part_bytes: PART_BYTES,
        pipeline: tokenizers::Tokenizer::new(model),
        steps: Steps::default(),
        sentence_piece: Some(normalizer),
        added: AddedTokens::new(added, |text| Ok(text.replace(' ', "▁")))?,
        vocabulary,
        leading_space: dummy_prefix != DummyPrefix::Never || remove_extra_spaces,
    };
    Ok(SentencePieceTokenizer { tokenizer, special_texts })
}

fn invalid(detail: impl Into<String>) -> TextError {
    TextError::InvalidTokenizer { detail: format!("`tokenizer.model`: {}", detail.into()) }
}

fn refuse_unsupported(
    trainer: &TrainerSpec,
    spec: &NormalizerSpec<'_>,
    denormalizer: &NormalizerSpec<'_>,
) -> Result<(), TextError> {
    for (is_set, name) in [
        (trainer.treat_whitespace_as_suffix, "treat_whitespace_as_suffix"),
        (!spec.escape_whitespaces, "escape_whitespaces = false"),
        (!denormalizer.precompiled_charsmap.is_empty(), "denormalizer_spec"),
    ] {
        if is_set {
            return Err(TextError::UnsupportedTokenizer {
                detail: format!("`tokenizer.model` sets `{name}`, which is not supported"),
            });
        }
    }
    Ok(())
}

/// Returns the bytes that a piece adds to a text, or the name of a control token.
fn shown(piece: &Piece<'_>, kind: Kind) -> Vec<u8> {
    match (kind, byte_token(piece.text)) {
        (Kind::Byte, Some(byte)) => vec![byte],
        (Kind::Normal | Kind::UserDefined, _) => piece.text.replace('▁', " ").into_bytes(),
        _ => piece.text.as_bytes().to_vec(),
    }
}

impl<'a> Pieces<'a> {
    fn check(pieces: Vec<Piece<'a>>, byte_fallback: bool) -> Result<Self, TextError> {
        check_size(pieces.len() as u64)?;
        let mut texts = HashSet::new();
        let mut out = Vec::with_capacity(pieces.len());
        for (id, piece) in pieces.iter().enumerate() {
            let kind = match piece.kind {
                1 => Kind::Normal,
                2 => Kind::Unknown,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                6 if byte_token(piece.text).is_some() => Kind::Byte,
                6 => {
                    return Err(invalid(format!(
                        "byte piece {id} is `{}`, not `<0x00>` to `<0xFF>`",
                        piece.text
                    )));
                }
                other => return Err(invalid(format!("piece {id} has type {other}, which is not supported"))),
            };
            if piece.text.is_empty() || !piece.score.is_finite() {
                return Err(invalid(format!("piece {id} is empty or has no finite score")));
            }
            if !texts.insert(piece.text) {
                return Err(invalid(format!("piece `{}` occurs twice", piece.text)));
            }
            out.push(kind);
        }
        let count = |wanted| out.iter().filter(|kind| **kind == wanted).count();
        if count(Kind::Unknown) != 1 {
            return Err(invalid(format!("it has {} unknown pieces, not 1", count(Kind::Unknown))));
        }
        if count(Kind::Normal) == 0 {
            return Err(invalid("it has no normal piece"));
        }
        if byte_fallback && count(Kind::Byte) != 256 {
            return Err(invalid(format!(
                "`byte_fallback` is set, but it has {} byte pieces, not 256",
                count(Kind::Byte)
            )));
        }
        Ok(Self(pieces.into_iter().zip(out).collect()))
    }

    fn of(&self, wanted: Kind) -> impl Iterator<Item = (u32, &'a str)> {
        (0..)
            .zip(&self.0)
            .filter(move |(_, (_, kind))| *kind == wanted)
            .map(|(id, (piece, _))| (id, piece.text))
    }

    fn special_texts(&self, trainer: &TrainerSpec) -> Vec<(&'static str, String)> {
        let named =
            [("bos_token", trainer.bos_id), ("eos_token", trainer.eos_id), ("pad_token", trainer.pad_id)];
        let named = named.into_iter().filter_map(|(name, id)| {
            let (piece, _) = self.0.get(usize::try_from(id).ok()?)?;
            Some((name, piece.text.to_owned()))
        });
        named.chain(self.of(Kind::Unknown).map(|(_, text)| ("unk_token", text.to_owned()))).collect()
    }

    /// Builds a BPE model. Text never becomes a control or user-defined piece by merging.
    fn bpe(&self, byte_fallback: bool) -> Result<BPE, TextError> {
        let in_model = |kind: Kind| !matches!(kind, Kind::Control | Kind::UserDefined);
        let vocab: Vocab = (0..)
            .zip(&self.0)
            .filter(|(_, (_, kind))| in_model(*kind))
            .map(|(id, (piece, _))| (piece.text.to_owned(), id))
            .collect();
        let mergeable: Vec<(&str, f64)> = self
            .0
            .iter()
            .filter(|(_, kind)| *kind == Kind::Normal)
            .map(|(piece, _)| (piece.text, f64::from(piece.score)))
            .collect();
        let merges = merges_by_score(&mergeable, &vocab);
        let mut builder =
            BPE::builder().vocab_and_merges(vocab, merges).fuse_unk(true).byte_fallback(byte_fallback);
        if let Some((_, unknown)) = self.of(Kind::Unknown).next() {
            builder = builder.unk_token(unknown.to_owned());
        }
        builder.build().map_err(|error| invalid(error.to_string()))
    }

    /// Builds a unigram model, which looks for all entries of its vocabulary in the text.
    fn unigram(&self, byte_fallback: bool) -> Result<Unigram, TextError> {
        let scores = || {
            self.0.iter().filter(|(_, kind)| *kind == Kind::Normal).map(|(piece, _)| f64::from(piece.score))
        };
        let min = scores().fold(f64::INFINITY, f64::min);
        // SentencePiece begins with `FLT_MIN`, so the bonus below is never negative for several bytes.
        let max = scores().fold(f64::from(f32::MIN_POSITIVE), f64::max);
        let mut vocab = Vec::with_capacity(self.0.len());
        for (piece, kind) in &self.0 {
            let score = match kind {
                Kind::Normal => f64::from(piece.score),
                // So few other pieces are as good that this one is chosen in its place.
                Kind::UserDefined => piece.text.len() as f64 * max - 0.1,
                // Text must not become one of these. It never does, because every character has another way.
                Kind::Control | Kind::Unknown | Kind::Byte => {
                    if piece.text.chars().count() == 1 {
                        return Err(invalid(format!("control piece `{}` is a single character", piece.text)));
                    }
                    f64::NEG_INFINITY
                }
            };
            vocab.push((piece.text.to_owned(), score));
        }
        let unknown = self.of(Kind::Unknown).next().and_then(|(id, _)| usize::try_from(id).ok());
        let mut model =
            Unigram::from(vocab, unknown, byte_fallback).map_err(|error| invalid(error.to_string()))?;
        model.min_score = min;
        Ok(model)
    }
}
