//! Added tokens: those that are found in the text as they are spelled, before the model cuts it into pieces.
//!
//! Follows the `tokenizers` library's rules (leftmost, then longest; `lstrip`, `rstrip`, `single_word`,
//! `normalized`), and knows one thing more: which parts of a text are data, so that no control token is read from
//! them.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::tokenizer::normalizer::Range as TextRange;
use tokenizers::{AddedToken, NormalizedString, Token};

use crate::TextError;

/// Which added tokens are looked for.
#[derive(Debug, Clone, Copy)]
pub enum Matching<'a> {
    /// All, but none that touches one of these byte ranges of the original text; ascending, disjoint.
    Outside(&'a [Range<usize>]),
    /// Only those that are not special.
    NotSpecial,
}

/// In which form of the text a token is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// As it was given.
    Original,
    /// After normalization.
    Normalized,
}

/// All added tokens of a vocabulary.
#[derive(Debug)]
pub struct AddedTokens {
    original: Finder,
    normalized: Finder,
}

#[derive(Debug)]
struct Finder {
    /// `None` without tokens.
    automaton: Option<AhoCorasick>,
    tokens: Vec<(AddedToken, u32)>,
}

impl AddedTokens {
    /// `normalize` is applied to the tokens that are looked for in normalized text. Empty tokens are ignored.
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

    /// Whether `split` on normalized text can find anything.
    pub fn has_normalized(&self) -> bool {
        self.normalized.automaton.is_some()
    }

    /// Byte ranges of `text` that spell a special token; leftmost, then longest, disjoint.
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

    /// Cuts a part of a text at its added tokens.
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
            // All borders come from matches of whole characters, so the slice is there.
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

    /// Matches in the part's current form, with the spaces that `lstrip` and `rstrip` take along.
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
                Matching::Outside(data) => touches(part, &range, data),
                Matching::NotSpecial => false,
            };
            if is_data {
                // A token that begins within this one may still be the template's.
                from = range.start + text[range.start..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            from = range.end;
            let is_skipped = matches!(matching, Matching::NotSpecial) && token.special;
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

/// Whether a match in the part's current form lies, in the original text, on any of the `data` ranges.
fn touches(part: &NormalizedString, range: &Range<usize>, data: &[Range<usize>]) -> bool {
    if data.is_empty() {
        return false;
    }
    let shift = part.offsets_original().0;
    let Some(original) = part.convert_offsets(TextRange::Normalized(range.clone())) else { return true };
    let (start, end) = (original.start + shift, original.end + shift);
    let first_behind = data.partition_point(|data| data.end <= start);
    data.get(first_behind).is_some_and(|data| data.start < end)
}

fn is_single_word(text: &str, range: &Range<usize>) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    !text[..range.start].chars().next_back().is_some_and(is_word)
        && !text[range.end..].chars().next().is_some_and(is_word)
}
