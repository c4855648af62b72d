//! Request fields about individual tokens: bias, allowed and stop tokens, logprobs of the prompt.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use trunkline_contract::{SamplingParams, TokenMask, range};
use trunkline_text::DecodeSpecial;
use utoipa::ToSchema;

use super::number::bounded;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_LOGIT_BIAS, MAX_PROMPT_LOGPROBS, MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS};

/// The fields as the client sent them, not yet checked.
#[derive(Debug, Clone, Default)]
pub struct TokenFields {
    /// Tokens that end the output, in addition to the model's end tokens.
    pub stop_token_ids: Vec<i64>,
    pub logit_bias: LogitBias,
    pub allowed_token_ids: Option<Vec<i64>>,
    pub prompt_logprobs: Option<PromptLogprobsField>,
    /// If false, the output includes the text of control tokens.
    pub skip_special_tokens: Option<bool>,
    /// The number of prompt tokens to keep; -1 keeps as many as fit.
    pub truncate_prompt_tokens: Option<i64>,
    pub truncation_side: TruncationSide,
}

/// The end of a prompt at which tokens are removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TruncationSide {
    /// The beginning is removed.
    #[default]
    Left,
    /// The end is removed.
    Right,
}

#[derive(Debug, Clone, Copy)]
pub struct PromptLogprobsField {
    pub field: &'static str,
    /// The number of likeliest tokens at each position.
    pub num_top: i64,
}

impl TokenFields {
    /// Returns the way in which the output shows control tokens.
    pub fn special_tokens(&self) -> DecodeSpecial {
        if self.skip_special_tokens == Some(false) { DecodeSpecial::Keep } else { DecodeSpecial::Skip }
    }

    /// Checks the fields, copies them to `sampling` and returns the stop tokens. All ids must be below `vocab_size`.
    pub fn check(&self, sampling: &mut SamplingParams, vocab_size: u32) -> Result<Vec<u32>, ApiError> {
        if self.stop_token_ids.len() > MAX_STOP_TOKEN_IDS {
            let problem = format!("has {} ids, the limit is {MAX_STOP_TOKEN_IDS}", self.stop_token_ids.len());
            return Err(ApiError::value("stop_token_ids", problem));
        }
        if let Some(asked) = self.truncate_prompt_tokens.filter(|asked| *asked < 1 && *asked != -1) {
            let problem = format!("is {asked}, must be at least 1, or -1 for as many as fit");
            return Err(ApiError::value("truncate_prompt_tokens", problem));
        }
        sampling.logit_bias = self.logit_bias.checked(vocab_size)?;
        if let Some(allowed) = &self.allowed_token_ids {
            if allowed.is_empty() {
                let problem = "is empty, so no token could be sampled; hint: leave it out";
                return Err(ApiError::value("allowed_token_ids", problem));
            }
            if allowed.len() > vocab_size as usize {
                let problem = format!("has {} ids, the vocabulary has {vocab_size}", allowed.len());
                return Err(ApiError::value("allowed_token_ids", problem));
            }
            let token_ids = token_ids("allowed_token_ids", allowed, vocab_size)?;
            sampling.allowed_tokens = Some(TokenMask::of(token_ids, vocab_size));
        }
        if let Some(PromptLogprobsField { field, num_top }) = self.prompt_logprobs {
            let most = MAX_TOP_LOGPROBS as i64;
            if !(0..=most).contains(&num_top) {
                return Err(ApiError::value(field, format!("is {num_top}, must be from 0 to {most}")));
            }
            sampling.prompt_logprobs = Some(num_top as u32);
        }
        token_ids("stop_token_ids", &self.stop_token_ids, vocab_size)
    }

    /// Checks the number of logprobs that a prompt of this length would return.
    pub fn check_prompt(&self, num_prompt_tokens: usize) -> Result<(), ApiError> {
        let Some(PromptLogprobsField { field, num_top }) = self.prompt_logprobs else { return Ok(()) };
        let per_token = usize::try_from(num_top).unwrap_or(0) + 1;
        let num_logprobs = num_prompt_tokens.saturating_mul(per_token);
        if num_logprobs > MAX_PROMPT_LOGPROBS {
            let problem = format!(
                "asks for {num_logprobs} logprobs of a prompt of {num_prompt_tokens} tokens, the limit is \
                 {MAX_PROMPT_LOGPROBS}; hint: ask for fewer at each position or shorten the prompt"
            );
            return Err(ApiError::value(field, problem));
        }
        Ok(())
    }

    /// Removes all but the last tokens of the prompt, or all but the first ones, if the request asks for it. `room` is
    /// the number of tokens that fit.
    pub fn truncate(&self, token_ids: &mut Vec<u32>, room: usize) {
        let kept = match self.truncate_prompt_tokens {
            None => return,
            Some(kept) => usize::try_from(kept).unwrap_or(room),
        };
        match self.truncation_side {
            TruncationSide::Left => drop(token_ids.drain(..token_ids.len().saturating_sub(kept))),
            TruncationSide::Right => token_ids.truncate(kept),
        }
    }
}

fn token_ids(field: &str, ids: &[i64], vocab_size: u32) -> Result<Vec<u32>, ApiError> {
    let check = |(idx, id): (usize, &i64)| match u32::try_from(*id) {
        Ok(id) if id < vocab_size => Ok(id),
        _ => {
            let problem = format!("is {id}, but token ids are from 0 to {}", vocab_size.saturating_sub(1));
            Err(ApiError::value(format!("{field}[{idx}]"), problem))
        }
    };
    ids.iter().enumerate().map(check).collect()
}

/// The field `logit_bias`, a map from token ids as strings to values that are added to their logits.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogitBias(Vec<(String, f64)>);

impl LogitBias {
    fn checked(&self, vocab_size: u32) -> Result<Vec<(u32, f32)>, ApiError> {
        if self.0.len() > MAX_LOGIT_BIAS {
            return Err(ApiError::value("logit_bias", format!("has more than {MAX_LOGIT_BIAS} tokens")));
        }
        let id_of = |key: &str| {
            let is_number = key.bytes().all(|byte| byte.is_ascii_digit());
            key.parse().ok().filter(|id| is_number && *id < vocab_size)
        };
        let unknown: Vec<&str> =
            self.0.iter().map(|(key, _)| key.as_str()).filter(|key| id_of(key).is_none()).collect();
        if !unknown.is_empty() {
            return Err(unknown_tokens(&unknown, vocab_size));
        }
        let mut checked: Vec<(u32, f32)> = Vec::with_capacity(self.0.len());
        for (id, bias) in self.0.iter().filter_map(|(key, bias)| Some((id_of(key)?, *bias))) {
            if checked.iter().any(|(known, _)| *known == id) {
                return Err(ApiError::value("logit_bias", format!("has the token {id} twice")));
            }
            checked.push((id, bounded(&format!("logit_bias.{id}"), bias, range::LOGIT_BIAS)?));
        }
        Ok(checked)
    }
}

/// Returns the error for keys that are no token ids. It names the first of them, cut, because a key may be as long as a
/// body.
fn unknown_tokens(keys: &[&str], vocab_size: u32) -> ApiError {
    const MAX_NAMED: usize = 8;
    let named: Vec<String> = keys
        .iter()
        .take(MAX_NAMED)
        .map(|key| format!("{:?}", key.chars().take(32).collect::<String>()))
        .collect();
    let more = keys.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (noun, named) = (if keys.len() == 1 { "token" } else { "tokens" }, named.join(", "));
    let last = vocab_size.saturating_sub(1);
    let problem = format!("has the {noun} {named}{more}, but token ids are from 0 to {last}");
    ApiError::value("logit_bias", problem)
}

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(LogitBiasVisitor)
    }
}

struct LogitBiasVisitor;

impl<'de> Visitor<'de> for LogitBiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of token ids and numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, bias)) = map.next_entry::<String, f64>()? {
            // One entry more than the limit is parsed, so that validation reports the better error.
            if entries.len() > MAX_LOGIT_BIAS {
                return Err(A::Error::invalid_length(entries.len() + 1, &"at most 1024 tokens"));
            }
            entries.push((key, bias));
        }
        Ok(LogitBias(entries))
    }
}
