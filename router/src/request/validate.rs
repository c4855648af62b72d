//! The one place where the limits of a request are checked, before any work is done for it.
//!
//! Dialects fill a `RawParams` with what the client sent, naming fields in their own words; `Validator` turns it and a
//! prompt into a `GenerationRequest` or an error that names the field, the value and the limit.

use std::ops::RangeInclusive;

use tokio::time::Instant;
use trunkline_contract::range;
use trunkline_scheduler::{SamplingParams, Watermark};
use trunkline_text::{GenerationDefaults, StopText};

use crate::error::ApiError;
use crate::grammars::RequestGrammar;
use crate::limits::{Limits, MAX_STOP_BYTES, MAX_TOP_LOGPROBS};
use crate::random;
use crate::request::deadline::Deadline;
use crate::request::ready::GenerationRequest;
use crate::request::retention::RawRetention;
use crate::request::service_tier::Wanted;
use crate::request::tokens::TokenFields;
use crate::tenants::Caller;

/// Longest salt in bytes.
const MAX_SALT_BYTES: usize = 256;

/// What a dialect calls the fields whose names differ between dialects.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// `max_tokens`, `max_completion_tokens` or `max_new_tokens`.
    pub max_new_tokens: &'static str,
    /// `min_tokens` or `min_new_tokens`.
    pub min_tokens: &'static str,
    /// `top_logprobs`, `logprobs` or `top_n_tokens`.
    pub top_logprobs: &'static str,
    /// The prompt.
    pub prompt: &'static str,
    /// `stop` or `stop_sequences`.
    pub stop: &'static str,
}

/// What the client sent, not yet checked. `None`: not sent.
#[derive(Debug, Clone, Default)]
pub struct RawParams {
    /// Most tokens to generate.
    pub max_new_tokens: Option<i64>,
    /// If `max_new_tokens` is not sent: at most this many, or as many as the context has room for if absent.
    pub default_max_new_tokens: Option<u32>,
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus.
    pub top_p: Option<f64>,
    /// 0 and -1: all.
    pub top_k: Option<i64>,
    /// Relative to the likeliest.
    pub min_p: Option<f64>,
    /// Any integer of 64 bits; random if absent.
    pub seed: Option<u64>,
    /// See `SamplingParams`.
    pub presence_penalty: Option<f64>,
    /// See `SamplingParams`.
    pub frequency_penalty: Option<f64>,
    /// See `SamplingParams`.
    pub repetition_penalty: Option<f64>,
    /// No end token before.
    pub min_tokens: Option<i64>,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// Strings that end the output.
    pub stops: Vec<String>,
    /// Keep the stop string.
    pub stop_text: Option<StopText>,
    /// Report logprobs, and with them so many of the likeliest tokens.
    pub logprobs: Option<i64>,
    /// Nearest to the entropy.
    pub typical_p: Option<f64>,
    /// What is said of single tokens.
    pub tokens: TokenFields,
    /// The answer shows the prompt, so that there need be no output.
    pub shows_prompt: bool,
    /// What the output has to be; to be compiled before `validate`.
    pub grammar: Option<RequestGrammar>,
    /// Namespace of the KV index.
    pub cache_salt: Option<String>,
    /// When its time is over (`Admitted::deadline`).
    pub deadline: Option<Deadline>,
    /// Class in the queue.
    pub class: Wanted,
    /// How long the prompt is kept.
    pub retention: RawRetention,
    /// The output carries the server's watermark.
    pub watermark: bool,
}

/// How many outputs a prompt gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumChoices {
    /// Computed.
    pub computed: usize,
    /// Shown: the best of those. At most as many.
    pub shown: usize,
}

impl NumChoices {
    /// Whether some are left out, so that all must be ranked.
    pub fn is_ranked(&self) -> bool {
        self.computed > self.shown
    }
}

/// Limits and defaults that hold now: flags, model and shard put together.
#[derive(Debug, Clone)]
pub struct Validator {
    /// Most tokens of prompt and output.
    pub max_total_tokens: u32,
    /// Most tokens of the prompt.
    pub max_input_tokens: u32,
    /// Token ids are below it.
    pub vocab_size: u32,
    /// Most outputs of a prompt.
    pub max_best_of: u32,
    /// Most requests open at once; each output of a request counts as one.
    pub max_concurrent_requests: usize,
    /// Most stop strings.
    pub max_stop_sequences: usize,
    /// The model's end tokens.
    pub end_token_ids: Vec<u32>,
    /// What requests get that ask for a watermark.
    pub watermark: Watermark,
}

impl Validator {
    /// From the flags, the model's context, what the KV pool can hold and the vocabulary.
    pub fn new(
        limits: &Limits,
        model_context: u32,
        pool_tokens: u64,
        vocab_size: u32,
        end_token_ids: Vec<u32>,
    ) -> Self {
        let pool = u32::try_from(pool_tokens).unwrap_or(u32::MAX);
        let max_total_tokens = limits.max_total_tokens.unwrap_or(u32::MAX).min(model_context).min(pool);
        let room = max_total_tokens.saturating_sub(1);
        Self {
            max_total_tokens,
            max_input_tokens: limits.max_input_tokens.unwrap_or(u32::MAX).min(room),
            vocab_size,
            max_best_of: limits.max_best_of,
            max_concurrent_requests: limits.max_concurrent_requests,
            max_stop_sequences: limits.max_stop_sequences,
            end_token_ids,
            watermark: limits.watermark,
        }
    }

    /// Everything that can be checked before the prompt is tokenized.
    pub fn check(&self, raw: &RawParams, names: FieldNames) -> Result<(), ApiError> {
        let mut sampling = sampling(raw, &GenerationDefaults::default(), names)?;
        raw.tokens.check(&mut sampling, self.vocab_size)?;
        if let Some(asked) = raw.max_new_tokens {
            let least = i64::from(!raw.shows_prompt);
            if asked < least {
                return Err(too_small(names.max_new_tokens, asked, least));
            }
            if i64::from(sampling.min_tokens) > asked {
                let problem =
                    format!("is {}, more than `{}` ({asked})", sampling.min_tokens, names.max_new_tokens);
                return Err(ApiError::value(names.min_tokens, problem));
            }
        }
        if sampling.min_tokens > self.max_total_tokens {
            let problem = format!("is {}, the limit is {}", sampling.min_tokens, self.max_total_tokens);
            return Err(ApiError::value(names.min_tokens, problem));
        }
        self.check_stops(&raw.stops, names.stop)?;
        check_end(raw, names)?;
        raw.retention.retention()?;
        if raw.cache_salt.as_ref().is_some_and(|salt| salt.len() > MAX_SALT_BYTES) {
            return Err(ApiError::value("cache_salt", format!("is longer than {MAX_SALT_BYTES} bytes")));
        }
        Ok(())
    }

    /// How many outputs each of `num_prompts` prompts gets, by `n` and `best_of`.
    pub fn num_choices(
        &self,
        n: Option<i64>,
        best_of: Option<i64>,
        num_prompts: usize,
    ) -> Result<NumChoices, ApiError> {
        let check = |field: &str, value: i64, min: i64| {
            if value < min {
                return Err(too_small(field, value, min));
            }
            if value > i64::from(self.max_best_of) {
                let limit = self.max_best_of;
                let problem = format!("is {value}, the limit is {limit}; hint: raise `--max-best-of`");
                return Err(ApiError::value(field, problem));
            }
            Ok(value as usize)
        };
        let shown = check("n", n.unwrap_or(1), 1)?;
        let computed = best_of.map_or(Ok(shown), |best_of| check("best_of", best_of, shown as i64))?;
        let total = computed.saturating_mul(num_prompts);
        if total > self.max_concurrent_requests {
            let problem = format!(
                "asks for {total} outputs at once, the limit is {}; hint: send several requests or raise \
                 `--max-concurrent-requests`",
                self.max_concurrent_requests
            );
            let field = if num_prompts > 1 {
                "prompt"
            } else if best_of.is_some() {
                "best_of"
            } else {
                "n"
            };
            return Err(ApiError::value(field, problem));
        }
        Ok(NumChoices { computed, shown })
    }

    fn check_stops(&self, stops: &[String], field: &str) -> Result<(), ApiError> {
        if stops.len() > self.max_stop_sequences {
            let problem = format!(
                "has {} strings, the limit is {}; hint: send fewer or raise `--max-stop-sequences`",
                stops.len(),
                self.max_stop_sequences
            );
            return Err(ApiError::value(field, problem));
        }
        for (idx, stop) in stops.iter().enumerate() {
            if stop.is_empty() {
                return Err(ApiError::value(format!("{field}[{idx}]"), "is empty"));
            }
            if stop.len() > MAX_STOP_BYTES {
                let problem = format!("has {} bytes, the limit is {MAX_STOP_BYTES}", stop.len());
                return Err(ApiError::value(format!("{field}[{idx}]"), problem));
            }
        }
        Ok(())
    }

    /// The checked request. `defaults` fill what the client did not send.
    pub fn validate(
        &self,
        (arrived, caller): (Instant, &Caller),
        mut prompt_token_ids: Vec<u32>,
        raw: RawParams,
        defaults: &GenerationDefaults,
        names: FieldNames,
    ) -> Result<GenerationRequest, ApiError> {
        self.check(&raw, names)?;
        raw.tokens.truncate(&mut prompt_token_ids, self.prompt_room(&raw));
        raw.tokens.check_prompt(prompt_token_ids.len())?;
        self.check_prompt(&prompt_token_ids, names)?;
        let room = self.max_total_tokens - prompt_token_ids.len() as u32;
        let max_new_tokens = match raw.max_new_tokens {
            Some(asked) if asked > i64::from(room) => {
                return Err(ApiError::ContextLength {
                    limit: self.max_total_tokens,
                    prompt_tokens: prompt_token_ids.len(),
                    field: names.max_new_tokens,
                    max_new_tokens: asked.unsigned_abs(),
                    hint: format!("lower `{}` to at most {room} or shorten the prompt", names.max_new_tokens),
                });
            }
            Some(asked) => asked as u32,
            None => raw.default_max_new_tokens.unwrap_or(room).min(room),
        };
        let grammar = match raw.grammar.clone() {
            None => None,
            Some(RequestGrammar::Compiled(grammar)) => Some(grammar),
            Some(RequestGrammar::Asked { field, .. }) => {
                let request_id = random::id();
                tracing::error!(request_id, field, "a grammar was not compiled");
                return Err(ApiError::Bug { request_id });
            }
        };
        let mut sampling = sampling(&raw, defaults, names)?;
        sampling.watermark = raw.watermark.then_some(self.watermark);
        let stop_token_ids = raw.tokens.check(&mut sampling, self.vocab_size)?;
        // With `ignore_eos` those that the request names still end the output.
        let ignore_eos = raw.ignore_eos && stop_token_ids.is_empty();
        let mut end_token_ids =
            if raw.ignore_eos && !ignore_eos { Vec::new() } else { self.end_token_ids.clone() };
        let is_own = |id: &u32| end_token_ids.contains(id);
        let (own, stop_token_ids): (Vec<u32>, Vec<u32>) = stop_token_ids.into_iter().partition(is_own);
        end_token_ids.extend(own.into_iter().chain(stop_token_ids.iter().copied()));
        if sampling.min_tokens > max_new_tokens {
            let problem =
                format!("is {}, but only {max_new_tokens} tokens will be generated", sampling.min_tokens);
            return Err(ApiError::value(names.min_tokens, problem));
        }
        Ok(GenerationRequest {
            arrived,
            deadline: raw.deadline,
            prompt_token_ids,
            max_new_tokens,
            max_new_tokens_field: names.max_new_tokens,
            sampling,
            end_token_ids,
            stop_token_ids,
            ignore_eos,
            shown_token_ids: Vec::new(),
            sections: None,
            special_tokens: raw.tokens.special_tokens(),
            stops: raw.stops,
            stop_text: raw.stop_text.unwrap_or(StopText::Omit),
            grammar,
            retention: raw.retention.retention()?,
            salt: caller.salt(raw.cache_salt.as_deref()),
            priority: caller.class(raw.class),
        })
    }

    /// Most tokens of a prompt beside the output that is asked for.
    fn prompt_room(&self, raw: &RawParams) -> usize {
        let asked = raw.max_new_tokens.and_then(|asked| u32::try_from(asked).ok()).unwrap_or(1);
        self.max_input_tokens.min(self.max_total_tokens.saturating_sub(asked)) as usize
    }

    fn check_prompt(&self, token_ids: &[u32], names: FieldNames) -> Result<(), ApiError> {
        if token_ids.is_empty() {
            return Err(ApiError::value(names.prompt, "is empty; hint: send at least one token"));
        }
        if token_ids.len() > self.max_input_tokens as usize {
            return Err(ApiError::PromptTooLong {
                prompt_tokens: token_ids.len(),
                max_input_tokens: self.max_input_tokens,
                context: self.max_total_tokens,
            });
        }
        if let Some(idx) = token_ids.iter().position(|&id| id >= self.vocab_size) {
            let problem = format!("is {}, token ids are below {}", token_ids[idx], self.vocab_size);
            return Err(ApiError::value(format!("{}[{idx}]", names.prompt), problem));
        }
        Ok(())
    }
}

/// A grammar says where its output ends, so nothing else may put that off; what it forces may be there before the
/// prompt's logprobs.
fn check_end(raw: &RawParams, names: FieldNames) -> Result<(), ApiError> {
    let Some(RequestGrammar::Asked { field, .. }) = raw.grammar else { return Ok(()) };
    if let Some(asked) = raw.tokens.prompt_logprobs {
        let problem = format!("cannot go with `{field}`; hint: ask for them in a request of its own");
        return Err(ApiError::value(asked.field, problem));
    }
    if let Some(asked) = raw.min_tokens.filter(|asked| *asked > 0) {
        let problem =
            format!("is {asked}, but `{field}` says where the output ends; hint: leave one of them out");
        return Err(ApiError::value(names.min_tokens, problem));
    }
    if raw.ignore_eos {
        let problem = "says where the output ends, which cannot be ignored; hint: leave `ignore_eos` out";
        return Err(ApiError::value(field, problem));
    }
    Ok(())
}

fn sampling(
    raw: &RawParams,
    defaults: &GenerationDefaults,
    names: FieldNames,
) -> Result<SamplingParams, ApiError> {
    let default = |value: Option<f32>, otherwise: f64| value.map_or(otherwise, f64::from);
    let temperature = raw.temperature.unwrap_or(default(defaults.temperature, 1.0));
    let top_p = raw.top_p.unwrap_or(default(defaults.top_p, 1.0));
    let min_p = raw.min_p.unwrap_or(default(defaults.min_p, 0.0));
    let presence_penalty = raw.presence_penalty.unwrap_or(0.0);
    let frequency_penalty = raw.frequency_penalty.unwrap_or(0.0);
    let repetition_penalty = raw.repetition_penalty.unwrap_or(default(defaults.repetition_penalty, 1.0));
    let params = SamplingParams {
        temperature: bounded("temperature", temperature, range::TEMPERATURE)?,
        // OpenAI's range begins with 0, which keeps only the likeliest token. So does the smallest valid number.
        top_p: bounded("top_p", top_p, 0.0..=*range::TOP_P.end())?.max(*range::TOP_P.start()),
        top_k: top_k(raw.top_k, defaults.top_k)?,
        min_p: bounded("min_p", min_p, range::MIN_P)?,
        seed: raw.seed.unwrap_or_else(random::u64),
        choice: 0,
        presence_penalty: bounded("presence_penalty", presence_penalty, range::PENALTY)?,
        frequency_penalty: bounded("frequency_penalty", frequency_penalty, range::PENALTY)?,
        repetition_penalty: bounded(
            "repetition_penalty",
            repetition_penalty,
            range::REQUEST_REPETITION_PENALTY,
        )?,
        min_tokens: count(names.min_tokens, raw.min_tokens.unwrap_or(0), i64::from(u32::MAX))?,
        end_token_ids: Vec::new(),
        num_top_logprobs: count(names.top_logprobs, raw.logprobs.unwrap_or(0), MAX_TOP_LOGPROBS as i64)?,
        logprobs: raw.logprobs.is_some(),
        typical_p: bounded("typical_p", raw.typical_p.unwrap_or(1.0), range::TYPICAL_P)?,
        ..SamplingParams::default()
    };
    Ok(params)
}

fn top_k(sent: Option<i64>, default: Option<u32>) -> Result<u32, ApiError> {
    match sent {
        None => Ok(default.unwrap_or(0)),
        Some(-1) => Ok(0),
        Some(k) => count("top_k", k, i64::from(u32::MAX)),
    }
}

fn count(field: &str, value: i64, max: i64) -> Result<u32, ApiError> {
    if value < 0 {
        return Err(too_small(field, value, 0));
    }
    if value > max {
        return Err(ApiError::value(field, format!("is {value}, the limit is {max}")));
    }
    // The limit is at most u32::MAX.
    Ok(value as u32)
}

fn too_small(field: &str, value: i64, min: i64) -> ApiError {
    ApiError::value(field, format!("is {value}, must be at least {min}"))
}

/// Narrows a value to f32 if it is in its range. A range that begins with the smallest positive f32 stands for all
/// positive numbers.
fn bounded(field: &str, value: f64, range: RangeInclusive<f32>) -> Result<f32, ApiError> {
    let (low, high) = range.into_inner();
    let is_above_zero = low == f32::MIN_POSITIVE;
    let is_high_enough = if is_above_zero { value > 0.0 } else { value >= f64::from(low) };
    // NaN is in no range.
    if !(is_high_enough && value <= f64::from(high)) {
        let low_text = if is_above_zero { "greater than 0".to_owned() } else { format!("at least {low}") };
        return Err(ApiError::value(field, format!("is {value}, must be {low_text} and at most {high}")));
    }
    // A tiny value must not become 0 in f32, which is out of range.
    Ok((value as f32).max(low))
}
