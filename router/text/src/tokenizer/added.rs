//! Finds added tokens, which are matched literally before the text is split into pieces.
//!
//! The rules are those of the `tokenizers` library: the leftmost match wins, then the longest, and tokens may have
//! `lstrip`, `rstrip`, `single_word` and `normalized`. In addition, parts of a text can be marked as data, where no
//! control token is recognised.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::tokenizer::normalizer::Range as TextRange;
use tokenizers::{AddedToken, NormalizedString, Token};

use crate::TextError;

/// The added tokens to find.
#[derive(Debug, Clone, Copy)]
pub enum Matching<'a> {
    /// All tokens that touch none of the `data` ranges, which are ascending and disjoint. They are in bytes of the
    /// original text, of which the text to split begins at `begin`.
    Outside { data: &'a [Range<usize>], begin: usize },
    /// Only tokens that are neither special nor among `others`.
    NotSpecial { others: &'a [u32] },
}

impl Matching<'_> {
    /// Returns the same rule for the text after `num_bytes`.
    pub fn after(self, num_bytes: usize) -> Self {
        match self {
            Self::Outside { data, begin } => Self::Outside { data, begin: begin + num_bytes },
            Self::NotSpecial { .. } => self,
        }
    }
}

/// The form of the text in which tokens are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// The text before normalization.
    Original,
    /// The text after normalization.
    Normalized,
}

#[derive(Debug)]
pub struct AddedTokens {
    original: Finder,
    normalized: Finder,
}

#[derive(Debug)]
struct Finder {
    /// The matcher of all tokens, if there are any.
    automaton: Option<AhoCorasick>,
    tokens: Vec<(AddedToken, u32)>,
}

impl AddedTokens {
    /// Builds the matchers. `normalize` is applied to the tokens that are found in normalized text. Empty tokens are
    /// ignored.
    pub fn new(
        tokens: impl IntoIterator<Item = (AddedToken, u32)>,
        normalize: impl Fn(&str) -> Result<String, TextError>,
    ) -> Result<Self, TextError> {
        let (normalized, original): (Vec<_>, Vec<_>) = tokens
            .into_iter()
            .filter(|(token, _)| !token.content.is_empty())
            .partition(|(token, _)| token.normalized);
        let originals: Vec<String> = original.iter().map(|(token, _)| token.content.clone()).collect();
        let normals =
            normalized.iter().map(|(token, _)| normalize(&token.content)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            original: Finder::new(original, &originals)?,
            normalized: Finder::new(normalized, &normals)?,
        })
    }

    /// Returns the id of an added token.
    pub fn id(&self, text: &str) -> Option<u32> {
        let mut tokens = self.original.tokens.iter().chain(&self.normalized.tokens);
        tokens.find(|(token, _)| token.content == text).map(|(_, id)| *id)
    }

    /// Returns true if finding a token can depend on the text before it.
    pub fn looks_left(&self) -> bool {
        let mut tokens = self.original.tokens.iter().chain(&self.normalized.tokens);
        tokens.any(|(token, _)| token.single_word || token.content.starts_with(char::is_whitespace))
    }

    /// Returns the length of the longest token, in bytes.
    pub fn max_bytes(&self) -> usize {
        let tokens = self.original.tokens.iter().chain(&self.normalized.tokens);
        tokens.map(|(token, _)| token.content.len()).max().unwrap_or(0)
    }

    /// Returns true if `split` can find tokens in normalized text.
    pub fn has_normalized(&self) -> bool {
        self.normalized.automaton.is_some()
    }

    /// Returns the byte ranges of `text` that spell a special token. They are disjoint, and the leftmost and then the
    /// longest match wins.
    pub fn special_spelled_in(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = self.original.find_special(text);
        found.extend(self.normalized.find_special(text));
        found.sort_by_key(|range| (range.start, std::cmp::Reverse(range.end)));
        let mut end = 0;
        found.retain(|range| {
            let disjoint = range.start >= end;
            if disjoint {
                end = range.end;
            }
            disjoint
        });
        found
    }

    /// Splits a part of a text at its added tokens.
    pub fn split(
        &self,
        part: NormalizedString,
        form: TextForm,
        matching: Matching<'_>,
    ) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let finder = if form == TextForm::Original { &self.original } else { &self.normalized };
        let found = finder.find(&part, matching);
        if found.is_empty() {
            return vec![(part, None)];
        }
        let mut out = Vec::with_capacity(2 * found.len() + 1);
        let mut start = 0;
        let mut push = |range: Range<usize>, id: Option<u32>| {
            if range.is_empty() {
                return;
            }
            // Matches begin and end at character boundaries, so the slice exists.
            if let Some(slice) = part.slice(TextRange::Normalized(range)) {
                let tokens = id.map(|id| {
                    let value = slice.get().to_owned();
                    let end = value.len();
                    vec![Token::new(id, value, (0, end))]
                });
                out.push((slice, tokens));
            }
        };
        for (range, id) in found {
            push(start..range.start, None);
            start = range.end;
            push(range, Some(id));
        }
        push(start..part.get().len(), None);
        out
    }
}

impl Finder {
    fn new(tokens: Vec<(AddedToken, u32)>, patterns: &[String]) -> Result<Self, TextError> {
        let automaton =
            if tokens.is_empty() {
                None
            } else {
                let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns);
                Some(built.map_err(|error| TextError::InvalidTokenizer {
                    detail: format!("added tokens: {error}"),
                })?)
            };
        Ok(Self { automaton, tokens })
    }

    fn find_special(&self, text: &str) -> Vec<Range<usize>> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        automaton
            .find_iter(text)
            .filter(|found| {
                self.tokens.get(found.pattern().as_usize()).is_some_and(|(token, _)| token.special)
            })
            .map(|found| found.range())
            .collect()
    }

    /// Returns the matches in the part's current form, with the spaces that `lstrip` and `rstrip` include.
    fn find(&self, part: &NormalizedString, matching: Matching<'_>) -> Vec<(Range<usize>, u32)> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        let text = part.get();
        let mut found = Vec::new();
        let mut taken = 0;
        let mut from = 0;
        while let Some(hit) = automaton.find(aho_corasick::Input::new(text).range(from..)) {
            let Some((token, id)) = self.tokens.get(hit.pattern().as_usize()) else { break };
            let mut range = hit.range();
            let is_data = match matching {
                Matching::Outside { data, begin } => touches(part, &range, data, begin),
                Matching::NotSpecial { .. } => false,
            };
            if is_data {
                // A token that begins inside this match may still belong to the template.
                from = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            from = range.end;
            let is_skipped = match matching {
                Matching::NotSpecial { others } => token.special || others.contains(id),
                Matching::Outside { .. } => false,
            };
            if is_skipped || (token.single_word && !is_single_word(text, &range)) {
                continue;
            }
            if token.lstrip {
                range.start = text[..range.start].trim_end().len().max(taken);
            }
            if token.rstrip {
                range.end = text.len() - text[range.end..].trim_start().len();
                from = range.end;
            }
            taken = range.end;
            found.push((range, *id));
        }
        found
    }
}

/// Returns true if a match overlaps any of the `data` ranges of the original text.
fn touches(part: &NormalizedString, range: &Range<usize>, data: &[Range<usize>], begin: usize) -> bool {
    if data.is_empty() {
        return false;
    }
    let shift = begin + part.offsets_original().0;
    let Some(original) = part.convert_offsets(TextRange::Normalized(range.clone())) else { return true };
    let (start, end) = (original.start + shift, original.end + shift);
    let first_after = data.partition_point(|data| data.end <= start);
    data.get(first_after).is_some_and(|data| data.start < end)
}

fn is_single_word(text: &str, range: &Range<usize>) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..range.start].chars().next_back().is_some_and(is_word)
        && !text[range.end..].chars().next().is_some_and(is_word)
}
