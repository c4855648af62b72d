//! The library's normalizers and pre-tokenizers, with a bound on what expressions cost.
//!
//! A `tokenizer.json` may state expressions. The library executes them with Oniguruma, which tries one way to match
//! after the other: a stranger's expression can take exponential time, and the library panics at Oniguruma's own limit.
//! So expressions are executed here, and each text has a budget of retries in proportion to its length.

use std::cell::Cell;

use onig::{MatchParam, Regex, Region, SearchOptions};
use serde_json::Value;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, Offsets, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, SplitDelimiterBehavior,
};

use crate::error::TextError;

/// The retries for each byte of a text. Expressions of known models need about one.
const RETRIES_OF_BYTE: u64 = 16;
/// The retries that a short text has.
const MIN_RETRIES: u64 = 1 << 16;
/// The retries of a search that are not charged, because nearly all searches need fewer.
const FREE_RETRIES: u64 = 64;
/// The factor by which the limit of a search grows until it ends.
const GROWTH: u64 = 4;

/// The steps of a tokenizer before its model.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    normalizers: Vec<NormalizerStep>,
    pre_tokenizers: Vec<PreTokenizerStep>,
}

#[derive(Debug)]
enum NormalizerStep {
    Library(NormalizerWrapper),
    Replace { expression: Regex, content: String },
}

#[derive(Debug)]
enum PreTokenizerStep {
    Library(PreTokenizerWrapper),
    Split { expression: Regex, behavior: SplitDelimiterBehavior, is_inverted: bool },
}

/// The retries that a text has left.
pub(crate) struct Budget(Cell<u64>);

impl Budget {
    pub fn of(text: &str) -> Self {
        Self(Cell::new(MIN_RETRIES + RETRIES_OF_BYTE * text.len() as u64))
    }
}

impl Steps {
    /// Takes the steps of a pipeline.
    pub fn of(pipeline: &tokenizers::Tokenizer) -> Result<Self, TextError> {
        let mut steps = Self::default();
        if let Some(normalizer) = pipeline.get_normalizer() {
            steps.add_normalizer(normalizer)?;
        }
        if let Some(pre_tokenizer) = pipeline.get_pre_tokenizer() {
            steps.add_pre_tokenizer(pre_tokenizer)?;
        }
        Ok(steps)
    }

    fn add_normalizer(&mut self, normalizer: &NormalizerWrapper) -> Result<(), TextError> {
        if let NormalizerWrapper::Sequence(sequence) = normalizer {
            return sequence.as_ref().iter().try_for_each(|step| self.add_normalizer(step));
        }
        let mut step = NormalizerStep::Library(normalizer.clone());
        if let NormalizerWrapper::Replace(replace) = normalizer {
            // The library's type does not show its pattern, unlike its JSON form.
            let form =
                serde_json::to_value(replace).map_err(|error| invalid("a `Replace`", error.to_string()))?;
            if let Some(pattern) = form.pointer("/pattern/Regex").and_then(Value::as_str) {
                step = NormalizerStep::Replace {
                    expression: compile(pattern)?,
                    content: replace.content.clone(),
                };
            }
        }
        self.normalizers.push(step);
        Ok(())
    }

    fn add_pre_tokenizer(&mut self, pre_tokenizer: &PreTokenizerWrapper) -> Result<(), TextError> {
        if let PreTokenizerWrapper::Sequence(sequence) = pre_tokenizer {
            return sequence.as_ref().iter().try_for_each(|step| self.add_pre_tokenizer(step));
        }
        let mut step = PreTokenizerStep::Library(pre_tokenizer.clone());
        if let PreTokenizerWrapper::Split(split) = pre_tokenizer
            && let SplitPattern::Regex(pattern) = &split.pattern
        {
            let expression = compile(pattern)?;
            step =
                PreTokenizerStep::Split { expression, behavior: split.behavior, is_inverted: split.invert };
        }
        self.pre_tokenizers.push(step);
        Ok(())
    }

    pub fn normalize(&self, text: &mut NormalizedString, budget: &Budget) -> tokenizers::Result<()> {
        self.normalizers.iter().try_for_each(|step| match step {
            NormalizerStep::Library(normalizer) => normalizer.normalize(text),
            NormalizerStep::Replace { expression, content } => {
                text.replace(Bounded { expression, budget }, content)
            }
        })
    }

    /// Returns a normalized text.
    pub fn normalized(&self, text: &str) -> Result<String, TextError> {
        let mut normalized = NormalizedString::from(text);
        self.normalize(&mut normalized, &Budget::of(text))
            .map_err(|error| TextError::InvalidTokenizer { detail: error.to_string() })?;
        Ok(normalized.get().to_owned())
    }

    pub fn pre_tokenize(&self, pieces: &mut PreTokenizedString, budget: &Budget) -> tokenizers::Result<()> {
        self.pre_tokenizers.iter().try_for_each(|step| match step {
            PreTokenizerStep::Library(pre_tokenizer) => pre_tokenizer.pre_tokenize(pieces),
            PreTokenizerStep::Split { expression, behavior, is_inverted } => pieces.split(|_, part| {
                let bounded = Bounded { expression, budget };
                if *is_inverted {
                    part.split(Invert(bounded), *behavior)
                } else {
                    part.split(bounded, *behavior)
                }
            }),
        })
    }
}

fn compile(pattern: &str) -> Result<Regex, TextError> {
    Regex::new(pattern).map_err(|error| invalid("an expression", error.description().to_owned()))
}

fn invalid(what: &str, problem: String) -> TextError {
    TextError::InvalidTokenizer { detail: format!("{what} cannot be read: {problem}") }
}

/// An expression that finds what the library's own finds, within a budget.
struct Bounded<'a> {
    expression: &'a Regex,
    budget: &'a Budget,
}

impl Bounded<'_> {
    /// Returns the first match that begins at `from` or later.
    fn search(
        &self,
        text: &str,
        from: usize,
        region: &mut Region,
    ) -> tokenizers::Result<Option<(usize, usize)>> {
        let mut limit = FREE_RETRIES;
        loop {
            region.clear();
            let param = MatchParam::default();
            // The limit of a search counts all its retries, those at one position and those at the next ones. The other
            // limit is Oniguruma's default, which must not end the search earlier.
            // SAFETY: `param` is alive, so its pointer is that of an initialised object.
            unsafe {
                onig_sys::onig_set_retry_limit_in_match_of_match_param(param.as_raw(), 0);
                onig_sys::onig_set_retry_limit_in_search_of_match_param(param.as_raw(), limit);
            }
            let options = SearchOptions::SEARCH_OPTION_NONE;
            match self.expression.search_with_param(text, from, text.len(), options, Some(region), param) {
                Ok(found) => return Ok(found.and_then(|_| region.pos(0))),
                Err(error) if error.code() == onig_sys::ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER => {
                    let left = self.budget.0.get().checked_sub(limit).ok_or(
                        "an expression of the tokenizer takes too many steps; hint: send less text at once",
                    )?;
                    self.budget.0.set(left);
                    limit *= GROWTH;
                }
                Err(error) => return Err(error.description().to_owned().into()),
            }
        }
    }
}

impl Pattern for Bounded<'_> {
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut found = Vec::new();
        let mut region = Region::new();
        // The end of the last match, and the position at which the next search begins.
        let (mut end_of_last, mut from) = (None, 0);
        while from <= text.len()
            && let Some((start, end)) = self.search(text, from, &mut region)?
        {
            if start == end && end_of_last == Some(end) {
                // An empty match right behind another one does not count.
                from += text[from..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let begin = end_of_last.unwrap_or(0);
            if begin != start {
                found.push(((begin, start), false));
            }
            found.push(((start, end), true));
            (end_of_last, from) = (Some(end), end);
        }
        let begin = end_of_last.unwrap_or(0);
        if begin != text.len() {
            found.push(((begin, text.len()), false));
        }
        Ok(found)
    }
}
