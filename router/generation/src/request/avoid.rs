//! Fields that name what an output avoids: vLLM's `bad_words`, and DRY, llama.cpp's penalty for repeated texts.

use trunkline_grammar::{Avoided, DryParams};
use trunkline_text::{EncodeSpecial, ModelText, TextError};

use super::number::{bounded, count};
use trunkline_base::error::ApiError;

/// The most words of `bad_words`.
const MAX_BAD_WORDS: usize = 1024;
/// The most bytes of one of them.
const MAX_BAD_WORD_BYTES: usize = 256;

// llama.cpp's defaults.
const DRY_BASE: f64 = 1.75;
const DRY_ALLOWED_LENGTH: i64 = 2;
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The fields as the client sent them, not yet checked.
#[derive(Debug, Clone, Default)]
pub struct AvoidFields {
    pub bad_words: Vec<String>,
    pub dry_multiplier: Option<f64>,
    pub dry_base: Option<f64>,
    pub dry_allowed_length: Option<i64>,
    pub dry_penalty_last_n: Option<i64>,
    pub dry_sequence_breakers: Option<Vec<String>>,
}

/// The checked fields of a request that avoids something.
#[derive(Debug, Clone)]
pub struct CheckedAvoid {
    /// A field that asks for it, for error messages.
    pub field: &'static str,
    words: Vec<String>,
    dry: Option<DryParams>,
}

impl AvoidFields {
    /// Checks the fields. Returns `None` if the output may hold everything.
    pub fn check(self) -> Result<Option<CheckedAvoid>, ApiError> {
        let dry = self.dry()?;
        check_texts("bad_words", &self.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_BYTES)?;
        let field = match (self.bad_words.is_empty(), &dry) {
            (false, _) => "bad_words",
            (true, Some(_)) => "dry_multiplier",
            (true, None) => return Ok(None),
        };
        Ok(Some(CheckedAvoid { field, words: self.bad_words, dry }))
    }

    fn dry(&self) -> Result<Option<DryParams>, ApiError> {
        let multiplier =
            bounded("dry_multiplier", self.dry_multiplier.unwrap_or(0.0), DryParams::MULTIPLIERS)?;
        let base = bounded("dry_base", self.dry_base.unwrap_or(DRY_BASE), DryParams::BASES)?;
        let most = i64::from(*DryParams::ALLOWED_LENGTHS.end());
        let asked = self.dry_allowed_length.unwrap_or(DRY_ALLOWED_LENGTH);
        let allowed_length = count("dry_allowed_length", asked, most)?;
        let window = match self.dry_penalty_last_n.unwrap_or(-1) {
            -1 => usize::MAX,
            asked => usize::try_from(asked).map_err(|_| {
                let problem = format!("is {asked}, must be at least 0, or -1 for all tokens");
                ApiError::value("dry_penalty_last_n", problem)
            })?,
        };
        let breakers = match &self.dry_sequence_breakers {
            Some(breakers) => breakers.clone(),
            None => DRY_BREAKERS.map(str::to_owned).to_vec(),
        };
        let (most, most_bytes) = (DryParams::MAX_BREAKERS, DryParams::MAX_BREAKER_BYTES);
        check_texts("dry_sequence_breakers", &breakers, most, most_bytes)?;
        let params = DryParams { multiplier, base, allowed_length, window, breakers };
        Ok((multiplier > 0.0 && window > 0).then_some(params))
    }
}

impl CheckedAvoid {
    /// Returns the length of all texts to tokenize.
    pub fn num_bytes(&self) -> usize {
        self.words.iter().map(String::len).sum()
    }

    /// Tokenizes the words, each at the beginning of a text and after a space.
    pub fn encode(&self, model: &ModelText) -> Result<Avoided, TextError> {
        let mut words = Vec::new();
        for word in &self.words {
            for text in [word.clone(), format!(" {}", word.trim_start())] {
                let token_ids = model.tokenizer.encode(&text, EncodeSpecial::Plain)?;
                if !token_ids.is_empty() && !words.contains(&token_ids) {
                    words.push(token_ids);
                }
            }
        }
        Ok(Avoided { words, dry: self.dry.clone() })
    }
}

fn check_texts(field: &str, texts: &[String], most: usize, most_bytes: usize) -> Result<(), ApiError> {
    if texts.len() > most {
        return Err(ApiError::value(field, format!("has {} strings, the limit is {most}", texts.len())));
    }
    for (idx, text) in texts.iter().enumerate() {
        let problem = match text.len() {
            0 => "is empty".to_owned(),
            num_bytes if num_bytes > most_bytes => {
                format!("has {num_bytes} bytes, the limit is {most_bytes}")
            }
            _ => continue,
        };
        return Err(ApiError::value(format!("{field}[{idx}]"), problem));
    }
    Ok(())
}
