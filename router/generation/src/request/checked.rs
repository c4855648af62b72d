//! The one place where the limits of a request are checked, before any work is done for it.
//!
//! A dialect fills [`RawParams`] with what the client sent, naming fields in its own words. [`Validator::check`] turns
//! them into [`CheckedParams`], and [`CheckedParams::with_prompt`] completes the request with a prompt. An error names
//! the field, the value and the limit.

use std::sync::Arc;

use trunkline_contract::RequestNumbers;
use trunkline_scheduler::{SamplingParams, SequenceRequest};
use trunkline_text::GenerationDefaults;

use super::arrival::Arrival;
use super::avoid::CheckedAvoid;
use super::number::{RequestNumber, count, too_small};
use super::prompt_limits::PromptLimits;
use super::raw::{FieldNames, RawParams};
use super::ready::{Delivery, GenerationRequest, Prompt};
use super::retention::{Breakpoint, to_ms};
use super::tokens::{PromptLogprobsField, TokenFields};
use crate::adapters::{Adapters, Chosen};
use crate::model::Model;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_STOP_BYTES, MAX_TOP_LOGPROBS, ServerLimits};
use trunkline_base::random;
use trunkline_engine::shard::ShardInfo;

const MAX_SALT_BYTES: usize = 256;

/// The number of outputs of each prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumChoices {
    /// Outputs that are computed.
    pub computed: usize,
    /// Outputs that the answer shows: the likeliest of those computed.
    pub shown: usize,
}

impl NumChoices {
    pub const ONE: Self = Self { computed: 1, shown: 1 };

    /// Returns true if the answer leaves some outputs out, so that they have to be ranked.
    pub fn is_ranked(&self) -> bool {
        self.computed > self.shown
    }
}

/// Checks requests against the limits that flags, model and shard set.
pub struct Validator {
    pub prompt: PromptLimits,
    limits: Arc<ServerLimits>,
    model: Arc<Model>,
}

impl Validator {
    /// Combines the flags with the model's context, and the vocabulary and the KV pool of a shard.
    pub fn new(limits: Arc<ServerLimits>, model: Arc<Model>, shard: &ShardInfo) -> Self {
        let context = model.text.max_context_tokens.unwrap_or(u32::MAX).min(shard.max_position_embeddings);
        let pool = u32::try_from(shard.pool_tokens()).unwrap_or(u32::MAX);
        let max_total_tokens = limits.max_total_tokens.unwrap_or(u32::MAX).min(context).min(pool);
        let room = max_total_tokens.saturating_sub(1);
        let max_input_tokens = limits.max_input_tokens.unwrap_or(u32::MAX).min(room);
        let prompt_flag = match max_total_tokens {
            _ if max_input_tokens < room => Some("--max-input-tokens"),
            total if total == context => None,
            total if total == pool => Some("--max-batch-total-tokens"),
            _ => Some("--max-total-tokens"),
        };
        let vocab_size = shard.vocab_size;
        Self {
            prompt: PromptLimits { max_total_tokens, max_input_tokens, prompt_flag, vocab_size },
            limits,
            model,
        }
    }

    /// Allows prompts to fill the context, for requests that generate nothing. A prompt has at most `most` tokens.
    pub fn allow_whole_context(&mut self, most: u32) {
        let limits = &mut self.prompt;
        if limits.max_input_tokens == limits.max_total_tokens.saturating_sub(1) {
            limits.max_input_tokens = limits.max_total_tokens;
        }
        if most < limits.max_input_tokens {
            limits.max_input_tokens = most;
            limits.prompt_flag = Some("--max-batch-prefill-tokens");
        }
    }

    /// Returns a line for each limit that is larger than what the model and the KV cache allow.
    pub fn useless_limits(&self) -> Vec<String> {
        let PromptLimits { max_total_tokens, .. } = self.prompt;
        let room = max_total_tokens.saturating_sub(1);
        [
            ("--max-input-tokens", self.limits.max_input_tokens, room, "tokens of a prompt"),
            (
                "--max-total-tokens",
                self.limits.max_total_tokens,
                max_total_tokens,
                "tokens of prompt and output",
            ),
        ]
        .into_iter()
        .filter_map(|(flag, given, most, what)| {
            let given = given.filter(|given| *given > most)?;
            Some(format!("`{flag}` is {given}, but model and KV cache allow only {most} {what}"))
        })
        .collect()
    }

    /// Checks everything that does not depend on the prompt. The pipeline calls it once for each body, as do vectors.
    ///
    /// `grammar_field` is the field that asks for a grammar, if one does.
    pub fn check(
        &self,
        arrival: &Arrival,
        raw: RawParams,
        grammar_field: Option<&'static str>,
    ) -> Result<CheckedParams, ApiError> {
        let deadline = arrival.deadline(raw.timeout)?;
        let names = raw.names;
        let none = GenerationDefaults::default();
        let defaults = if raw.takes_defaults { &self.model.text.generation_defaults } else { &none };
        let mut sampling = sampling(&raw, defaults, names)?;
        sampling.watermark = raw.watermark.then_some(self.limits.watermark);
        let stop_token_ids = raw.tokens.check(&mut sampling, self.prompt.vocab_size)?;
        self.check_output_length(&raw, sampling.min_tokens)?;
        self.check_stops(&raw.stops, names.stop)?;
        check_end(&raw, grammar_field)?;
        let avoid = raw.avoid.check()?;
        check_prompt_logprobs(raw.tokens.prompt_logprobs, avoid.as_ref().map(|avoid| avoid.field))?;
        let retention = raw.retention.check()?;
        let is_decided = raw.retention.cache_retention.is_some() || retention.pinned_ms.is_some();
        if raw.cache_salt.as_ref().is_some_and(|salt| salt.len() > MAX_SALT_BYTES) {
            return Err(ApiError::value("cache_salt", format!("is longer than {MAX_SALT_BYTES} bytes")));
        }
        // With `ignore_eos` the tokens that the request names still end the output.
        let ignore_eos = raw.ignore_eos && stop_token_ids.is_empty();
        let mut end_token_ids =
            if raw.ignore_eos && !ignore_eos { Vec::new() } else { self.model.text.end_token_ids.clone() };
        let is_own = |id: &u32| end_token_ids.contains(id);
        let (own, stop_token_ids): (Vec<u32>, Vec<u32>) = stop_token_ids.into_iter().partition(is_own);
        end_token_ids.extend(own.into_iter().chain(stop_token_ids.iter().copied()));
        sampling.end_token_ids = end_token_ids;
        Ok(CheckedParams {
            limits: raw.context.map_or(Ok(self.prompt), |own| self.prompt.within(own))?,
            delivery: Delivery {
                id: arrival.id.clone(),
                arrived: arrival.at,
                deadline,
                names,
                end_token_ids: if ignore_eos { Vec::new() } else { sampling.end_token_ids.clone() },
                stop_token_ids,
                shown_token_ids: Vec::new(),
                special_tokens: raw.tokens.special_tokens(),
                stops: raw.stops,
                stop_text: raw.stop_text,
                adapter: None,
                sections: None,
            },
            sequence: SequenceRequest {
                sampling,
                ignore_eos,
                retention,
                priority: raw.class.granted(arrival.caller.max_priority()),
                salt: arrival.caller.salt(raw.cache_salt.as_deref()),
                ..SequenceRequest::default()
            },
            max_new_tokens: raw.max_new_tokens,
            default_max_new_tokens: raw.default_max_new_tokens,
            // The mask has them.
            tokens: TokenFields { allowed_token_ids: None, ..raw.tokens },
            avoid,
            takes_end_tokens: !raw.ignore_eos,
            takes_breakpoints: !is_decided,
            speculates: raw.speculation != Some(false),
            prediction: raw.prediction,
            model: self.model.served_name.as_str().into(),
        })
    }

    /// Checks `max_new_tokens`, as far as that is possible without the prompt, and `min_tokens`.
    fn check_output_length(&self, raw: &RawParams, min_tokens: u32) -> Result<(), ApiError> {
        let names = raw.names;
        if let Some(asked) = raw.max_new_tokens {
            let least = i64::from(!raw.shows_prompt);
            if asked < least {
                return Err(too_small(names.max_new_tokens, asked, least));
            }
            if i64::from(min_tokens) > asked {
                let problem = format!("is {min_tokens}, more than `{}` ({asked})", names.max_new_tokens);
                return Err(ApiError::value(names.min_tokens, problem));
            }
        }
        if min_tokens > self.prompt.max_total_tokens {
            let problem = format!("is {min_tokens}, the limit is {}", self.prompt.max_total_tokens);
            return Err(ApiError::value(names.min_tokens, problem));
        }
        Ok(())
    }

    /// Returns the number of outputs of each of `num_prompts` prompts, by `n` and `best_of`.
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
            if value > i64::from(self.limits.max_best_of) {
                let limit = self.limits.max_best_of;
                let problem = format!("is {value}, the limit is {limit}; hint: raise `--max-best-of`");
                return Err(ApiError::value(field, problem));
            }
            Ok(value as usize)
        };
        let shown = check("n", n.unwrap_or(1), 1)?;
        let computed = best_of.map_or(Ok(shown), |best_of| check("best_of", best_of, shown as i64))?;
        let total = computed.saturating_mul(num_prompts);
        if total > self.limits.max_open {
            let problem = format!(
                "asks for {total} outputs at once, the limit is {}; hint: send several requests or raise \
                 `--max-concurrent-requests`",
                self.limits.max_open
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
        if stops.len() > self.limits.max_stop_sequences {
            let problem = format!(
                "has {} strings, the limit is {}; hint: send fewer or raise `--max-stop-sequences`",
                stops.len(),
                self.limits.max_stop_sequences
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
}

/// A request after every check that needs no prompt. Requests with several prompts share one. [`Validator::check`]
/// makes it.
#[derive(Debug, Clone)]
pub struct CheckedParams {
    limits: PromptLimits,
    /// The computation, without what the prompt decides.
    sequence: SequenceRequest,
    /// The way to the client, without what the prompt decides.
    delivery: Delivery,
    max_new_tokens: Option<i64>,
    default_max_new_tokens: Option<u32>,
    tokens: TokenFields,
    avoid: Option<CheckedAvoid>,
    /// False if the request ignores end tokens that it does not name.
    takes_end_tokens: bool,
    /// False if fields of the request decide how long its prompt is kept.
    takes_breakpoints: bool,
    speculates: bool,
    prediction: Option<String>,
    /// The name of the model in the answer.
    model: Arc<str>,
}

impl CheckedParams {
    /// Names the adapter of the request, also in its trace.
    pub fn with_adapter(self, adapter: Option<Chosen>) -> Self {
        if let (Some(chosen), Some(trace)) = (&adapter, self.delivery.id.trace()) {
            trace.update(|record| {
                record.model = chosen.shown.to_string();
                record.adapter = Some(chosen.adapter().name.clone());
            });
        }
        let model = adapter.as_ref().map_or(self.model, |chosen| chosen.shown.clone());
        Self { model, delivery: Delivery { adapter, ..self.delivery }, ..self }
    }

    /// Returns the adapter of the request, if it names one.
    pub fn adapter(&self) -> Option<&Chosen> {
        self.delivery.adapter.as_ref()
    }

    /// Opens the adapter, if there is one, before the request's deadline. Only then the request can be computed.
    pub async fn open_adapter(&mut self, adapters: &Arc<Adapters>) -> Result<(), ApiError> {
        let Delivery { adapter, deadline, .. } = &self.delivery;
        let Some(adapter) = adapter else { return Ok(()) };
        let adding = adapter.add_to(&mut self.sequence, adapters);
        match deadline {
            Some(deadline) => {
                let added = tokio::time::timeout_at(deadline.at, adding).await;
                added.map_err(|_| deadline.exceeded())?
            }
            None => adding.await,
        }
    }

    /// Returns the name of the model in the answer: the adapter's as the request gave it, or the model's own.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the client's guess at much of the output, if drafts may use it.
    pub fn prediction(&self) -> Option<&str> {
        self.prediction.as_deref().filter(|_| self.speculates)
    }

    /// Returns what the output avoids, if anything.
    pub fn avoid(&self) -> Option<&CheckedAvoid> {
        self.avoid.as_ref()
    }

    /// Checks a prompt against the limits, and completes the request with it. Each dialect calls it once for each
    /// prompt that it has tokenized.
    pub fn with_prompt(&self, prompt: Prompt) -> Result<GenerationRequest, ApiError> {
        let Prompt { mut token_ids, mut prediction_token_ids, pooling, .. } = prompt;
        self.tokens.truncate(&mut token_ids, self.prompt_room());
        self.tokens.check_prompt(token_ids.len())?;
        self.check_length(token_ids.len())?;
        self.check_ids(&token_ids)?;
        let max_new_tokens = match pooling {
            Some(_) => 1,
            None => self.max_new_tokens(token_ids.len())?,
        };
        let min_tokens = self.sequence.sampling.min_tokens;
        if min_tokens > max_new_tokens {
            let problem = format!("is {min_tokens}, but only {max_new_tokens} tokens will be generated");
            return Err(ApiError::value(self.delivery.names.min_tokens, problem));
        }
        prediction_token_ids.truncate(max_new_tokens as usize);
        let is_drafted = self.speculates && pooling.is_none();
        let mut sequence = SequenceRequest { token_ids, max_new_tokens, pooling, ..self.sequence.clone() };
        if let Some(Breakpoint { ttl_s, num_tokens }) = prompt.breakpoint.filter(|_| self.takes_breakpoints) {
            (sequence.retention.pinned_ms, sequence.retention.num_tokens) = (Some(to_ms(ttl_s)), num_tokens);
        }
        let Prompt { grammar, shown_token_ids, sections, .. } = prompt;
        let mut delivery = Delivery { shown_token_ids, sections, ..self.delivery.clone() };
        for id in prompt.end_token_ids.into_iter().filter(|_| self.takes_end_tokens) {
            if !delivery.end_token_ids.contains(&id) {
                delivery.end_token_ids.push(id);
                sequence.sampling.end_token_ids.push(id);
            }
        }
        Ok(GenerationRequest {
            sequence,
            delivery,
            grammar,
            prediction_token_ids: is_drafted.then_some(prediction_token_ids),
        })
    }

    /// Returns how many tokens to generate behind a prompt, which fits the context.
    fn max_new_tokens(&self, num_prompt_tokens: usize) -> Result<u32, ApiError> {
        let room = self.limits.max_total_tokens - num_prompt_tokens as u32;
        let field = self.delivery.names.max_new_tokens;
        match self.max_new_tokens {
            Some(asked) if asked > i64::from(room) => Err(ApiError::ContextLength {
                limit: self.limits.max_total_tokens,
                prompt_tokens: num_prompt_tokens,
                field,
                max_new_tokens: asked.unsigned_abs(),
                hint: format!("lower `{field}` to at most {room} or shorten the prompt"),
            }),
            Some(asked) => Ok(asked as u32),
            None => Ok(self.default_max_new_tokens.unwrap_or(room).min(room)),
        }
    }

    /// Returns the length of the longest prompt that leaves room for the output that is asked for.
    fn prompt_room(&self) -> usize {
        let asked = self.max_new_tokens.and_then(|asked| u32::try_from(asked).ok()).unwrap_or(1);
        self.limits.max_input_tokens.min(self.limits.max_total_tokens.saturating_sub(asked)) as usize
    }

    /// Checks the number of tokens of a prompt.
    pub fn check_length(&self, num_tokens: usize) -> Result<(), ApiError> {
        if num_tokens == 0 {
            return Err(ApiError::value(
                self.delivery.names.prompt,
                "is empty; hint: send at least one token",
            ));
        }
        if num_tokens > self.limits.max_input_tokens as usize {
            return Err(ApiError::PromptTooLong {
                prompt_tokens: num_tokens,
                max_input_tokens: self.limits.max_input_tokens,
                context: self.limits.max_total_tokens,
                flag: self.limits.prompt_flag,
            });
        }
        Ok(())
    }

    /// Checks that the ids of a prompt are in the vocabulary.
    pub fn check_ids(&self, token_ids: &[u32]) -> Result<(), ApiError> {
        match token_ids.iter().position(|&id| id >= self.limits.vocab_size) {
            None => Ok(()),
            Some(idx) => {
                let problem =
                    format!("is {}, token ids are below {}", token_ids[idx], self.limits.vocab_size);
                Err(ApiError::value(format!("{}[{idx}]", self.delivery.names.prompt), problem))
            }
        }
    }
}

/// Refuses logprobs of the prompt beside a field that constrains the output.
fn check_prompt_logprobs(
    asked: Option<PromptLogprobsField>,
    constraint_field: Option<&'static str>,
) -> Result<(), ApiError> {
    let (Some(asked), Some(field)) = (asked, constraint_field) else { return Ok(()) };
    let problem = format!("cannot be combined with `{field}`; hint: send a separate request for them");
    Err(ApiError::value(asked.field, problem))
}

/// Refuses fields that contradict a grammar. A grammar decides where its output ends, so nothing else may postpone that
/// end; and tokens that it forces may precede the prompt's logprobs.
fn check_end(raw: &RawParams, grammar_field: Option<&'static str>) -> Result<(), ApiError> {
    let Some(field) = grammar_field else { return Ok(()) };
    check_prompt_logprobs(raw.tokens.prompt_logprobs, Some(field))?;
    if let Some(asked) = raw.min_tokens.filter(|asked| *asked > 0) {
        let problem =
            format!("is {asked}, but `{field}` decides where the output ends; hint: leave one of them out");
        return Err(ApiError::value(raw.names.min_tokens, problem));
    }
    if raw.ignore_eos {
        let problem =
            "decides where the output ends, so it excludes `ignore_eos`; hint: leave one of them out";
        return Err(ApiError::value(field, problem));
    }
    Ok(())
}

fn sampling(
    raw: &RawParams,
    defaults: &GenerationDefaults,
    names: FieldNames,
) -> Result<SamplingParams, ApiError> {
    let numbers = checked_numbers(raw.numbers, defaults)?;
    Ok(SamplingParams {
        seed: raw.seed.unwrap_or_else(random::u64),
        min_tokens: count(names.min_tokens, raw.min_tokens.unwrap_or(0), i64::from(u32::MAX))?,
        num_top_logprobs: count(names.top_logprobs, raw.logprobs.unwrap_or(0), MAX_TOP_LOGPROBS as i64)?,
        logprobs: raw.logprobs.is_some(),
        ..numbers
    })
}

macro_rules! declare_numbers {
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ident = $neutral:literal in $range:expr,
        sent as $sent:ident = $default:literal in $request:expr, $(model $model:ident,)? by $by:tt;)*) => {
        /// Checks the numbers of a request, and those of the model or the table for what was not sent.
        fn checked_numbers(sent: RequestNumbers, defaults: &GenerationDefaults) -> Result<SamplingParams, ApiError> {
            Ok(SamplingParams {
                $($name: sent.$name$(.or(defaults.$model.map($sent::from)))?.unwrap_or($default)
                    .checked(stringify!($name), [$request, $range])?,)*
                ..SamplingParams::default()
            })
        }
    };
}

trunkline_contract::with_sampling_params! { [declare_numbers] }
