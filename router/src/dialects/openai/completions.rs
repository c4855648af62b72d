//! `/v1/completions`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use trunkline_text::{StopText, Tokenizer};
use utoipa::ToSchema;

use super::{
    CompletionLogprobs, ErrorResponse, OneOrMany, Seed, StreamOptions, Usage, finish_reason, logprobs,
    system_fingerprint,
};
use crate::app::{App, unix_s};
use crate::dialects::Dialect;
use crate::error::ApiError;
use crate::generate::{Output, OutputToken};
use crate::http::sse::{self, KeepTokens, Render};
use crate::http::{EventFrame, Events, Refused, parse, read_body};
use crate::retention::{CacheRetention, RawRetention};
use crate::validate::{FieldNames, RawParams};

/// Tokens generated if the request does not say; OpenAI's own default.
const DEFAULT_MAX_TOKENS: u32 = 16;

const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_tokens",
    min_tokens: "min_tokens",
    top_logprobs: "logprobs",
    prompt: "prompt",
};

/// A prompt: text, or token ids as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text.
    Text(String),
    /// Token ids.
    TokenIds(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string, a list of token ids, or a list of one of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let Some(first) = list.next_element::<Element>()? else {
            return Ok(Prompt::TokenIds(Vec::new()));
        };
        match first {
            Element::TokenId(id) => {
                let mut ids = vec![id];
                while let Some(id) = list.next_element::<u32>()? {
                    ids.push(id);
                }
                Ok(Prompt::TokenIds(ids))
            }
            Element::Prompt(prompt) => match list.next_element::<serde::de::IgnoredAny>()? {
                None => Ok(prompt),
                Some(_) => {
                    Err(Error::custom("several prompts are not supported; hint: send one request for each"))
                }
            },
        }
    }
}

/// The first element of a list says what the list is.
enum Element {
    TokenId(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a token id, a string or a list of token ids")
            }
            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id)
                    .map(Element::TokenId)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(id), &"a token id"))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Prompt(Prompt::Text(text.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = list.next_element::<u32>()? {
                    ids.push(id);
                }
                Ok(Element::Prompt(Prompt::TokenIds(ids)))
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CompletionRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// A string or a list of token ids.
    #[schema(value_type = String)]
    pub prompt: Prompt,
    /// Most tokens to generate; default 16.
    #[schema(minimum = 1)]
    pub max_tokens: Option<i64>,
    /// 0 is greedy; default 1, or what the model's makers propose.
    #[schema(minimum = 0, maximum = 100)]
    pub temperature: Option<f64>,
    /// Keep the smallest set of tokens whose probability reaches it.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keep the k likeliest; 0 or -1 keeps all.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Drop tokens below this part of the likeliest one's probability.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Same seed, same output; random if absent.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    /// A string or a list of strings that end the output, and are not part of it.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<OneOrMany>,
    /// Keep the stop string in the output.
    pub include_stop_str_in_output: Option<bool>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Report logprobs of the output's tokens and of so many of the likeliest in each place.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<i64>,
    /// Subtracted from the logits of tokens that the output holds.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Subtracted once per occurrence.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Divides the positive logits of tokens that prompt or output hold, multiplies the negative ones.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// No end token before so many tokens.
    #[schema(minimum = 0)]
    pub min_tokens: Option<i64>,
    /// Go on after an end token.
    pub ignore_eos: Option<bool>,
    /// Requests share cached prefixes only with those of the same salt.
    pub cache_salt: Option<String>,
    /// OpenAI's grouping of requests: shown in `/v1/kv/tree`, which finds nodes by it.
    pub prompt_cache_key: Option<String>,
    /// `in_memory`, the default, or `24h`: the prompt is pinned in the cache for so long.
    pub prompt_cache_retention: Option<String>,
    /// The same in our own words.
    pub cache_retention: Option<CacheRetention>,
}

/// Fields that would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "echo", neutral: &["false"], hint: "put the prompt before the answer yourself" },
    Refused { field: "suffix", neutral: &["\"\""], hint: "leave it out" },
    Refused { field: "prompt_embeds", neutral: &[], hint: "send text or token ids" },
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
    Refused { field: "response_format", neutral: &["{\"type\":\"text\"}"], hint: "leave it out" },
];

/// A whole answer, or a piece of a streamed one.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionResponse)]
pub struct Answer<'a> {
    /// Names the answer, the same in all pieces.
    pub id: &'a str,
    /// `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: &'a str,
    /// One choice; none in the piece that carries `usage`.
    pub choices: Vec<Choice<'a>>,
    /// What it took; in a stream only with `include_usage`, null before the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// A choice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice<'a> {
    /// The output, or what is new of it.
    pub text: Cow<'a, str>,
    /// 0.
    pub index: u32,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null before the end.
    pub finish_reason: Option<&'static str>,
}

/// Continues a prompt.
#[utoipa::path(
    post, path = "/v1/completions", tag = "OpenAI", request_body = Body,
    responses(
        (status = 200, description = "The output; with `stream` as events of the same shape", body = Answer),
        (status = 400, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    match answer(&app, request).await {
        Ok(response) => response,
        Err(error) => Dialect::OpenAi.error_response(&error),
    }
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let admitted = app.admit(&request)?;
    let body = read_body(request.into_body(), app.limits.max_body_bytes).await?;
    let refused = [REFUSED, super::REFUSED_EVERYWHERE].concat();
    let mut body: Body = parse(&body, &refused, "")?;
    app.model.check_name(body.model.as_deref())?;
    let raw = raw_params(&mut body);
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, NAMES)?;
    let prompt = match body.prompt {
        Prompt::TokenIds(ids) => ids,
        Prompt::Text(text) => app.tokenize(text.len(), move |model| model.encode_prompt(&text)).await?,
    };
    let defaults = &app.model.text.generation_defaults;
    let request = validator.validate((admitted.arrived, &admitted.caller), prompt, raw, defaults, NAMES)?;
    let with_logprobs = request.sampling.logprobs;

    let head = Head {
        id: format!("cmpl-{}", crate::random::id()),
        created: unix_s(),
        model: app.model.served_name.clone(),
        system_fingerprint: system_fingerprint(&admitted.shard),
    };
    let generation = app.generate(request, admitted.permit).await?;
    let tokenizer = app.model.text.tokenizer.clone();
    if body.stream == Some(true) {
        let include_usage = body.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let render = CompletionStream::new(head, tokenizer, with_logprobs, include_usage);
        return Ok(sse::stream(generation, render, app.metrics.clone()));
    }
    let keep = if with_logprobs { KeepTokens::Yes } else { KeepTokens::No };
    let folded = sse::fold(generation, keep).await?;
    let logprobs = with_logprobs.then(|| completion_logprobs(&tokenizer, &folded.tokens, &mut 0));
    let choice = Choice {
        text: folded.text.into(),
        index: 0,
        logprobs,
        finish_reason: Some(finish_reason(folded.reason)),
    };
    Ok(axum::Json(head.answer(vec![choice], Some(Some(folded.usage.into())))).into_response())
}

fn raw_params(body: &mut Body) -> RawParams {
    let keep_stop = body.include_stop_str_in_output.unwrap_or(false);
    RawParams {
        max_new_tokens: body.max_tokens,
        default_max_new_tokens: Some(DEFAULT_MAX_TOKENS),
        temperature: body.temperature,
        top_p: body.top_p,
        top_k: body.top_k,
        min_p: body.min_p,
        seed: body.seed.map(|seed| seed.0),
        presence_penalty: body.presence_penalty,
        frequency_penalty: body.frequency_penalty,
        repetition_penalty: body.repetition_penalty,
        min_tokens: body.min_tokens,
        ignore_eos: body.ignore_eos.unwrap_or(false),
        stops: body.stop.take().unwrap_or_default().0,
        stop_text: Some(if keep_stop { StopText::Include } else { StopText::Omit }),
        logprobs: body.logprobs,
        cache_salt: body.cache_salt.take(),
        retention: RawRetention {
            prompt_cache_key: body.prompt_cache_key.take(),
            prompt_cache_retention: body.prompt_cache_retention.take(),
            cache_retention: body.cache_retention.take(),
            breakpoint: None,
        },
    }
}

/// The tokens' logprobs; an end token is no part of the text.
fn completion_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[OutputToken],
    offset: &mut usize,
) -> CompletionLogprobs {
    let mut list = CompletionLogprobs::default();
    for token in tokens.iter().filter(|token| !token.is_end) {
        logprobs::push_completion_token(&mut list, tokenizer, token, offset);
    }
    list
}

/// What all pieces of an answer begin with.
struct Head {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    fn answer<'a>(&'a self, choices: Vec<Choice<'a>>, usage: Option<Option<Usage>>) -> Answer<'a> {
        Answer {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices,
            usage,
        }
    }
}

struct CompletionStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    with_logprobs: bool,
    include_usage: bool,
    /// The event of a piece of text without logprobs, before the end.
    piece: EventFrame,
    /// Tokens whose text is held back, with logprobs.
    pending: Vec<OutputToken>,
    /// Characters of text so far.
    offset: usize,
}

impl CompletionStream {
    fn new(head: Head, tokenizer: Arc<Tokenizer>, with_logprobs: bool, include_usage: bool) -> Self {
        let piece = EventFrame::new(|text| {
            let choice = Choice { text: text.into(), index: 0, logprobs: None, finish_reason: None };
            head.answer(vec![choice], include_usage.then_some(None))
        });
        Self { head, tokenizer, with_logprobs, include_usage, piece, pending: Vec::new(), offset: 0 }
    }
}

impl Render for CompletionStream {
    fn output(&mut self, output: Output, events: &mut Events) {
        if !self.with_logprobs && output.finish.is_none() {
            if !output.text.is_empty() {
                events.framed(&self.piece, &output.text);
            }
            return;
        }
        if self.with_logprobs {
            self.pending.extend(output.token);
        }
        if output.text.is_empty() && output.finish.is_none() {
            return;
        }
        let tokens = std::mem::take(&mut self.pending);
        let logprobs =
            self.with_logprobs.then(|| completion_logprobs(&self.tokenizer, &tokens, &mut self.offset));
        let finish_reason = output.finish.map(|(reason, _)| finish_reason(reason));
        let choice = Choice { text: output.text.into(), index: 0, logprobs, finish_reason };
        events.json(&self.head.answer(vec![choice], self.include_usage.then_some(None)));
        if let Some((_, usage)) = output.finish {
            if self.include_usage {
                events.json(&self.head.answer(Vec::new(), Some(Some(usage.into()))));
            }
            events.done();
        }
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
