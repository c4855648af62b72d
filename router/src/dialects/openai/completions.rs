//! `/v1/completions`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trunkline_text::{DecodeSpecial, ModelText, StopText, TextError, TextStart, Tokenizer};
use utoipa::ToSchema;

use super::prompts::{Prompt, Prompts};
use super::{
    CompletionLogprobs, ErrorResponse, OneOrMany, Seed, StreamOptions, Usage, finish_reason, logprobs,
    system_fingerprint,
};
use crate::app::{App, unix_s};
use crate::choices::rank;
use crate::dialects::Dialect;
use crate::dialects::structured::StructuredFields;
use crate::error::ApiError;
use crate::generate::{self, Output, OutputToken};
use crate::grammars::RequestGrammar;
use crate::http::sse::{self, KeepTokens, Render};
use crate::http::{EventFrame, Events, Refused, parse};
use crate::retention::{CacheRetention, RawRetention};
use crate::service_tier::Wanted;
use crate::validate::{FieldNames, NumChoices, RawParams};

/// Tokens generated if the request does not say; OpenAI's own default.
const DEFAULT_MAX_TOKENS: u32 = 16;

const NAMES: FieldNames = FieldNames {
    max_new_tokens: "max_tokens",
    min_tokens: "min_tokens",
    top_logprobs: "logprobs",
    prompt: "prompt",
    stop: "stop",
};

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = CompletionRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// A string or a list of token ids; or a list of these, each continued on its own.
    #[schema(value_type = String)]
    pub prompt: Prompts,
    /// Outputs to show for each prompt.
    #[schema(minimum = 1)]
    pub n: Option<i64>,
    /// Outputs to compute for each prompt, of which the `n` with the highest mean logprob are shown; not with `stream`.
    #[schema(minimum = 1)]
    pub best_of: Option<i64>,
    /// Put the prompt before the output; not with `logprobs`.
    pub echo: Option<bool>,
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
    /// Seconds that the request may take, from its arrival to its last token; not OpenAI's.
    #[schema(exclusive_minimum = 0, maximum = 86400)]
    pub timeout: Option<f64>,
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
    /// What the output is: `{"type": "text"}`, `{"type": "json_object"}`, or
    /// `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// The output validates under this JSON schema. vLLM's, as the next four.
    #[schema(value_type = Option<Object>)]
    pub guided_json: Option<Value>,
    /// The output as a whole matches this regular expression.
    pub guided_regex: Option<String>,
    /// The output is one of these.
    pub guided_choice: Option<Vec<String>>,
    /// The output is of this Lark grammar.
    pub guided_grammar: Option<String>,
    /// One of the four: `json`, `regex`, `choice` or `grammar`.
    #[schema(value_type = Option<Object>)]
    pub structured_outputs: Option<Value>,
    /// Class in the queue: `auto`, `default`, `flex` or `priority`.
    pub service_tier: Option<String>,
    /// The same as vLLM has it: below 0 before others, above 0 after them. Not beside `service_tier`.
    pub priority: Option<i64>,
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
    Refused { field: "suffix", neutral: &["\"\""], hint: "leave it out" },
    Refused { field: "prompt_embeds", neutral: &[], hint: "send text or token ids" },
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
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
    /// The outputs, prompt by prompt; none in the piece that carries `usage`.
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
    /// Number of the output, from 0: those of the first prompt come first.
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
    let (admitted, body) = app.admit(request).await?;
    let refused = [REFUSED, super::REFUSED_EVERYWHERE].concat();
    let mut body: Body = parse(&body, &refused, "")?;
    app.model.check_name(body.model.as_deref())?;
    let mut raw = raw_params(&mut body)?;
    raw.deadline = admitted.deadline(body.timeout)?;
    let is_stream = body.stream == Some(true);
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, NAMES)?;
    let num_choices = validator.num_choices(body.n, body.best_of, body.prompt.0.len())?;
    check_together(&body, num_choices)?;
    let with_logprobs = raw.logprobs.is_some();
    // Outputs are ranked by their logprobs.
    raw.logprobs = raw.logprobs.or(num_choices.is_ranked().then_some(0));

    app.compile(&mut raw, &admitted.caller).await?;
    let (echo, prompts) = (body.echo == Some(true), body.prompt.0);
    let num_bytes = prompts.iter().map(Prompt::num_bytes).sum();
    let encoded = app.tokenize(num_bytes, move |model| encode(model, prompts, echo)).await?;
    let defaults = &app.model.text.generation_defaults;
    let mut requests = Vec::new();
    let mut echoed = Vec::new();
    for (token_ids, text) in encoded {
        let arrived = (admitted.arrived, &admitted.caller);
        requests.push(validator.validate(arrived, token_ids, raw.clone(), defaults, NAMES)?);
        echoed.push(text);
    }

    let head = Head {
        id: format!("cmpl-{}", crate::random::id()),
        created: unix_s(),
        model: app.model.served_name.clone(),
        system_fingerprint: system_fingerprint(&admitted.shard),
    };
    let choices = app.generate(requests, num_choices.computed, admitted.permit).await?;
    let tokenizer = app.model.text.tokenizer.clone();
    if is_stream {
        let include_usage = body.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let echoed = echoed.into_iter().flat_map(|text| std::iter::repeat_n(text, num_choices.computed));
        let render = CompletionStream::new(head, tokenizer, echoed.collect(), with_logprobs, include_usage);
        return Ok(sse::stream(choices, render, app.metrics.clone()));
    }
    let keep = if with_logprobs || num_choices.is_ranked() { KeepTokens::Yes } else { KeepTokens::No };
    let (mut folded, usage) = sse::fold(choices, keep).await?;
    let mut shown = Vec::new();
    for (prompt, outputs) in echoed.iter().zip(folded.chunks_mut(num_choices.computed)) {
        rank(outputs);
        for output in &outputs[..num_choices.shown] {
            shown.push(Choice {
                text: format!("{prompt}{}", output.text).into(),
                index: shown.len() as u32,
                logprobs: with_logprobs.then(|| completion_logprobs(&tokenizer, &output.tokens, &mut 0)),
                finish_reason: Some(finish_reason(output.reason)),
            });
        }
    }
    Ok(axum::Json(head.answer(shown, Some(Some(usage.into())))).into_response())
}

/// Fields that do not go together.
fn check_together(body: &Body, num_choices: NumChoices) -> Result<(), ApiError> {
    if body.stream == Some(true) && num_choices.is_ranked() {
        let problem =
            "is greater than `n`, but which outputs are best shows only at the end; hint: do not stream";
        return Err(ApiError::value("best_of", problem));
    }
    if body.echo == Some(true) && body.logprobs.is_some() {
        let hint = "logprobs of the prompt are not supported; leave one of `echo` and `logprobs` out";
        return Err(ApiError::UnsupportedField { field: "echo".into(), hint });
    }
    Ok(())
}

/// Each prompt's tokens, and its text if it is to be shown.
fn encode(
    model: &ModelText,
    prompts: Vec<Prompt>,
    with_text: bool,
) -> Result<Vec<(Vec<u32>, String)>, TextError> {
    let encode = |prompt| match prompt {
        Prompt::TokenIds(ids) => {
            let text = || model.tokenizer.decode(&ids, DecodeSpecial::Skip, TextStart::Beginning);
            let text = with_text.then(text).unwrap_or_default();
            Ok((ids, text))
        }
        Prompt::Text(text) => {
            let ids = model.encode_prompt(&text)?;
            Ok((ids, if with_text { text } else { String::new() }))
        }
    };
    prompts.into_iter().map(encode).collect()
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    let keep_stop = body.include_stop_str_in_output.unwrap_or(false);
    Ok(RawParams {
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
        grammar: grammar(body)?,
        cache_salt: body.cache_salt.take(),
        class: Wanted::from_openai(body.service_tier.as_deref(), body.priority)?,
        deadline: None,
        retention: RawRetention {
            prompt_cache_key: body.prompt_cache_key.take(),
            prompt_cache_retention: body.prompt_cache_retention.take(),
            cache_retention: body.cache_retention.take(),
            breakpoint: None,
        },
    })
}

fn grammar(body: &mut Body) -> Result<Option<RequestGrammar>, ApiError> {
    let fields = StructuredFields {
        response_format: body.response_format.take(),
        guided_json: body.guided_json.take(),
        guided_regex: body.guided_regex.take(),
        guided_choice: body.guided_choice.take(),
        guided_grammar: body.guided_grammar.take(),
        structured_outputs: body.structured_outputs.take(),
    };
    fields.grammar()
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
    choices: Vec<ChoiceStream>,
}

struct ChoiceStream {
    /// What is put before the output, at its first piece.
    echo: String,
    /// The event of a piece of text without logprobs, before the end.
    piece: EventFrame,
    /// Tokens whose text is held back, with logprobs.
    pending: Vec<OutputToken>,
    /// Characters of text so far.
    offset: usize,
}

impl CompletionStream {
    /// `echo`: for each choice what is put before its output.
    fn new(
        head: Head,
        tokenizer: Arc<Tokenizer>,
        echo: Vec<String>,
        with_logprobs: bool,
        include_usage: bool,
    ) -> Self {
        let choice = |(index, echo)| {
            let piece = EventFrame::new(|text| {
                let index = index as u32;
                let choice = Choice { text: text.into(), index, logprobs: None, finish_reason: None };
                head.answer(vec![choice], include_usage.then_some(None))
            });
            ChoiceStream { echo, piece, pending: Vec::new(), offset: 0 }
        };
        let choices = echo.into_iter().enumerate().map(choice).collect();
        Self { head, tokenizer, with_logprobs, include_usage, choices }
    }
}

impl Render for CompletionStream {
    fn begin(&mut self, events: &mut Events) {
        for choice in self.choices.iter_mut().filter(|choice| !choice.echo.is_empty()) {
            events.framed(&choice.piece, &std::mem::take(&mut choice.echo));
        }
    }

    fn output(&mut self, index: usize, output: Output, events: &mut Events) {
        let choice = &mut self.choices[index];
        if !self.with_logprobs && output.finish.is_none() {
            if !output.text.is_empty() {
                events.framed(&choice.piece, &output.text);
            }
            return;
        }
        if self.with_logprobs {
            choice.pending.extend(output.token);
        }
        if output.text.is_empty() && output.finish.is_none() {
            return;
        }
        let tokens = std::mem::take(&mut choice.pending);
        let logprobs =
            self.with_logprobs.then(|| completion_logprobs(&self.tokenizer, &tokens, &mut choice.offset));
        let finish_reason = output.finish.map(|(reason, _)| finish_reason(reason));
        let choice = Choice { text: output.text.into(), index: index as u32, logprobs, finish_reason };
        events.json(&self.head.answer(vec![choice], self.include_usage.then_some(None)));
    }

    fn finished(&mut self, usage: generate::Usage, events: &mut Events) {
        if self.include_usage {
            events.json(&self.head.answer(Vec::new(), Some(Some(usage.into()))));
        }
        events.done();
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
