//! SentencePiece's normalization, rule by rule as in its `normalizer.cc`.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};
use tokenizers::NormalizedString;

use super::invalid;
use crate::error::TextError;

/// The character that stands for a space in pieces.
pub const SPACE: char = '▁';

/// The stretches of text between added tokens that begin with a space the text does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DummyPrefix {
    Never,
    /// Only the stretch that begins the text.
    First,
    Always,
}

#[derive(Debug)]
pub struct SentencePieceNormalizer {
    dummy_prefix: DummyPrefix,
    /// True if spaces at both ends are removed, and runs of spaces inside become one.
    remove_extra_spaces: bool,
    charsmap: Option<Charsmap>,
    /// Finds the pieces that the charsmap must not change. `None` if there are none, or no charsmap.
    kept: Option<AhoCorasick>,
}

/// The replacements of a charsmap: a trie from byte strings to positions in `texts`.
#[derive(Debug)]
struct Charsmap {
    /// The units of a double array in the layout of Darts-clone.
    units: Vec<u32>,
    /// The replacements, each of which ends with NUL.
    texts: String,
}

impl SentencePieceNormalizer {
    /// `charsmap` is `precompiled_charsmap` of the file, and `kept` are its user-defined pieces.
    pub fn new(
        charsmap: &[u8],
        kept: &[&str],
        dummy_prefix: DummyPrefix,
        remove_extra_spaces: bool,
    ) -> Result<Self, TextError> {
        let charsmap = if charsmap.is_empty() { None } else { Some(Charsmap::parse(charsmap)?) };
        let kept = if charsmap.is_none() || kept.is_empty() {
            None
        } else {
            let mut builder = AhoCorasick::builder();
            builder.match_kind(MatchKind::LeftmostLongest).start_kind(StartKind::Anchored);
            Some(builder.build(kept).map_err(|error| invalid(format!("user-defined pieces: {error}")))?)
        };
        Ok(Self { dummy_prefix, remove_extra_spaces, charsmap, kept })
    }

    /// Normalizes a stretch of text in place.
    pub fn normalize(&self, part: &mut NormalizedString) {
        let is_first = part.offsets_original().0 == 0;
        let add_prefix = match self.dummy_prefix {
            DummyPrefix::Never => false,
            DummyPrefix::First => is_first,
            DummyPrefix::Always => true,
        };
        let mut out = Changes::default();
        let mut rest = part.get();
        while self.remove_extra_spaces && !rest.is_empty() {
            let (length, " ") = self.next(rest) else { break };
            out.replace(&rest[..length], "");
            rest = &rest[length..];
        }
        if add_prefix && !rest.is_empty() {
            out.chars.push((SPACE, 1));
        }
        let mut after_space = self.remove_extra_spaces;
        while !rest.is_empty() {
            let (length, mut text) = self.next(rest);
            if after_space {
                text = text.trim_start_matches(' ');
            }
            out.replace(&rest[..length], text);
            if self.remove_extra_spaces && !text.is_empty() {
                after_space = text.ends_with(' ');
            }
            rest = &rest[length..];
        }
        if self.remove_extra_spaces {
            out.remove_trailing_spaces();
        }
        part.transform(out.chars, out.removed_first);
    }

    /// Returns the length of the first unit of a text that is not empty, and its replacement.
    fn next<'a>(&'a self, text: &'a str) -> (usize, &'a str) {
        let first = text.chars().next().map_or(0, char::len_utf8);
        let Some(charsmap) = &self.charsmap else { return (first, &text[..first]) };
        if let Some(found) =
            self.kept.as_ref().and_then(|kept| kept.find(Input::new(text).anchored(Anchored::Yes)))
        {
            return (found.end(), &text[..found.end()]);
        }
        charsmap.longest(text).unwrap_or((first, &text[..first]))
    }
}

impl Charsmap {
    fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        let problem = |problem: &str| invalid(format!("`precompiled_charsmap` {problem}"));
        let (size, rest) = bytes.split_first_chunk().ok_or_else(|| problem("has no size"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let (units, texts) =
            rest.split_at_checked(size).ok_or_else(|| problem("is shorter than its size"))?;
        if size == 0 || !size.is_multiple_of(4) {
            return Err(problem("has a trie of an impossible size"));
        }
        let units =
            units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        let texts = String::from_utf8(texts.to_vec()).map_err(|_| problem("has texts that are not UTF-8"))?;
        if !texts.ends_with('\0') {
            return Err(problem("has a text without an end"));
        }
        Ok(Self { units: units.collect(), texts })
    }

    /// Returns the length of the longest beginning of `text` that is in the trie, and its replacement.
    ///
    /// A unit or a text outside the tables ends the search, as the end of the trie does.
    fn longest<'a>(&'a self, text: &str) -> Option<(usize, &'a str)> {
        let unit = |at: usize| self.units.get(at).copied();
        let child_base = |at: usize, unit: u32| at ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = child_base(0, unit(0)?);
        let mut found = None;
        for (length, &byte) in (1..).zip(text.as_bytes()) {
            at ^= usize::from(byte);
            let Some(node) = unit(at) else { break };
            if node & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at = child_base(at, node);
            if node >> 8 & 1 == 1 {
                let value = unit(at)? & !(1 << 31);
                let replacement = self.texts.get(value as usize..)?.split('\0').next()?;
                if text.is_char_boundary(length) {
                    found = Some((length, replacement));
                }
            }
        }
        found
    }
}

/// The new characters, and how many old ones each replaces.
#[derive(Default)]
struct Changes {
    /// Each character replaces one old character less its number, as in `NormalizedString::transform`.
    chars: Vec<(char, isize)>,
    /// Number of old characters that are removed before the first new one.
    removed_first: usize,
}

impl Changes {
    /// Replaces the next old characters. A space becomes `SPACE`.
    fn replace(&mut self, old: &str, new: &str) {
        let mut num_old = old.chars().count();
        for char in new.chars() {
            self.chars.push((if char == ' ' { SPACE } else { char }, if num_old == 0 { 1 } else { 0 }));
            num_old = num_old.saturating_sub(1);
        }
        self.remove(num_old);
    }

    fn remove(&mut self, num_old: usize) {
        match self.chars.last_mut() {
            None => self.removed_first += num_old,
            Some((_, change)) => *change -= num_old as isize,
        }
    }

    fn remove_trailing_spaces(&mut self) {
        while let Some((_, change)) = self.chars.pop_if(|(char, _)| *char == SPACE) {
            self.remove((1 - change).unsigned_abs());
        }
    }
}
