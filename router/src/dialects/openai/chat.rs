//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trunkline_text::{ChatRequest, StopText, Tokenizer};
use utoipa::ToSchema;

use super::messages::{Message, last_mark, messages, to_chat};
use super::{
    ChatLogprobs, ErrorResponse, OneOrMany, Seed, StreamOptions, Usage, finish_reason, logprobs,
    system_fingerprint,
};
use crate::app::{App, unix_s};
use crate::dialects::{Dialect, chat_prompt};
use crate::error::ApiError;
use crate::generate::{self, Output, OutputToken};
use crate::http::sse::{self, Folded, KeepTokens, Render};
use crate::http::{EventFrame, Events, Refused, parse, read_body};
use crate::retention::{Breakpoint, CacheRetention, RawRetention};
use crate::validate::{FieldNames, RawParams};

/// Body of a request.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ChatCompletionRequest)]
pub struct Body {
    /// The served model's name, or nothing.
    pub model: Option<String>,
    /// The conversation, oldest first.
    #[serde(deserialize_with = "messages")]
    pub messages: Vec<Message>,
    /// Most tokens to generate; default: as many as the context has room for. Older name of the next.
    #[schema(minimum = 1)]
    pub max_tokens: Option<i64>,
    /// Most tokens to generate.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<i64>,
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
    /// Replies to compute.
    #[schema(minimum = 1)]
    pub n: Option<i64>,
    /// Answer as server-sent events.
    pub stream: Option<bool>,
    /// Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Report logprobs of the output's tokens.
    pub logprobs: Option<bool>,
    /// And of so many of the likeliest tokens in each place.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
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
    /// Go on with the last message rather than answer it; `add_generation_prompt` must be false with it.
    pub continue_final_message: Option<bool>,
    /// Open an assistant's reply; default true, or false with `continue_final_message`.
    pub add_generation_prompt: Option<bool>,
    /// More variables for the chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Requests share cached prefixes only with those of the same salt.
    pub cache_salt: Option<String>,
    /// OpenAI's grouping of requests; accepted, but all of a tenant's requests are one group here.
    pub prompt_cache_key: Option<String>,
    /// `in_memory`, the default, or `24h`: the prompt is pinned in the cache for so long.
    pub prompt_cache_retention: Option<String>,
    /// The same in our own words.
    pub cache_retention: Option<CacheRetention>,
}

/// Fields that would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "best_of", neutral: &["1"], hint: "use `n`" },
    Refused { field: "tools", neutral: &["[]"], hint: "tools are not supported yet" },
    Refused { field: "tool_choice", neutral: &["\"none\"", "\"auto\""], hint: "tools are not supported yet" },
    Refused { field: "functions", neutral: &["[]"], hint: "tools are not supported yet" },
    Refused {
        field: "function_call",
        neutral: &["\"none\"", "\"auto\""],
        hint: "tools are not supported yet",
    },
    Refused {
        field: "response_format",
        neutral: &["{\"type\":\"text\"}"],
        hint: "only `{\"type\": \"text\"}` is supported yet",
    },
    Refused { field: "modalities", neutral: &["[\"text\"]", "[]"], hint: "this server gives text alone" },
    Refused { field: "audio", neutral: &[], hint: "this server gives text alone" },
    Refused {
        field: "reasoning_effort",
        neutral: &[],
        hint: "use `chat_template_kwargs` if the model has a switch",
    },
    Refused { field: "verbosity", neutral: &[], hint: "say it in the prompt" },
    Refused { field: "web_search_options", neutral: &[], hint: "leave it out" },
    Refused { field: "chat_template", neutral: &[], hint: "the model's own template is used" },
    Refused { field: "documents", neutral: &["[]"], hint: "put them into the messages" },
    Refused { field: "echo", neutral: &["false"], hint: "leave it out" },
];

/// A whole answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionResponse)]
pub struct Answer {
    /// Names the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: String,
    /// The replies.
    pub choices: Vec<Choice>,
    /// What it took.
    pub usage: Usage,
}

/// A choice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub struct Choice {
    /// Number of the reply, from 0.
    pub index: u32,
    /// The reply.
    pub message: AssistantMessage,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
}

/// The reply.
#[derive(Debug, Serialize, ToSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: &'static str,
    /// Its text.
    pub content: String,
}

/// A piece of a streamed answer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatCompletionChunk)]
pub struct Chunk<'a> {
    /// Names the answer, the same in all chunks.
    pub id: &'a str,
    /// `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The served model's name.
    pub model: &'a str,
    /// Equal fingerprints give equal bits.
    pub system_fingerprint: &'a str,
    /// One choice; none in the chunk that carries `usage`.
    pub choices: Vec<ChunkChoice<'a>>,
    /// With `include_usage`: in the last chunk what it took, null in the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

/// A piece of a choice.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
pub struct ChunkChoice<'a> {
    /// Number of the reply, from 0.
    pub index: u32,
    /// What is new.
    pub delta: Delta<'a>,
    /// If asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// On the last one.
    pub finish_reason: Option<&'static str>,
}

/// What is new in a chunk.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Delta<'a> {
    /// In the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Text to append.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
}

/// Answers a chat.
#[utoipa::path(
    post, path = "/v1/chat/completions", tag = "OpenAI", request_body = Body,
    responses(
        (status = 200, description = "The reply; with `stream` as events of ChatCompletionChunk", body = Answer),
        (status = 400, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Response {
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
    let names = FieldNames {
        max_new_tokens: if body.max_completion_tokens.is_some() {
            "max_completion_tokens"
        } else {
            "max_tokens"
        },
        min_tokens: "min_tokens",
        top_logprobs: "top_logprobs",
        prompt: "messages",
        stop: "stop",
    };
    let mut raw = raw_params(&mut body)?;
    let mark = last_mark(&body.messages)?;
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, names)?;
    let num_choices = validator.num_choices(body.n, None, 1)?.computed;

    let is_continued = body.continue_final_message.unwrap_or(false);
    let opens_reply = body.add_generation_prompt.unwrap_or(!is_continued);
    if is_continued && opens_reply {
        let problem = "is true, but `continue_final_message` too; hint: send one of them";
        return Err(ApiError::value("add_generation_prompt", problem));
    }
    let chat = ChatRequest {
        messages: to_chat(std::mem::take(&mut body.messages))?,
        add_generation_prompt: opens_reply,
        continue_final_message: is_continued,
        kwargs: body.chat_template_kwargs.take().unwrap_or_default(),
        now_unix_s: unix_s().cast_signed(),
        ..ChatRequest::default()
    };
    let num_bytes = chat_prompt::num_bytes(&chat);
    let (prompt, num_marked) =
        app.tokenize(num_bytes, move |text| chat_prompt::encode(text, &chat, mark)).await?;
    raw.retention.breakpoint = mark.map(|mark| Breakpoint { ttl_s: mark.ttl_s, num_tokens: num_marked });
    let defaults = &app.model.text.generation_defaults;
    let request = validator.validate((admitted.arrived, &admitted.caller), prompt, raw, defaults, names)?;
    let with_logprobs = request.sampling.logprobs;

    let head = Head {
        id: format!("chatcmpl-{}", crate::random::id()),
        created: unix_s(),
        model: app.model.served_name.clone(),
        system_fingerprint: system_fingerprint(&admitted.shard),
    };
    let choices = app.generate(vec![request], num_choices, admitted.permit).await?;
    let tokenizer = app.model.text.tokenizer.clone();
    if body.stream == Some(true) {
        let include_usage = body.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        let render = ChatStream::new(head, tokenizer, num_choices, with_logprobs, include_usage);
        return Ok(sse::stream(choices, render, app.metrics.clone()));
    }
    let keep = if with_logprobs { KeepTokens::Yes } else { KeepTokens::No };
    let (folded, usage) = sse::fold(choices, keep).await?;
    let choice = |(index, folded): (usize, Folded)| Choice {
        index: index as u32,
        logprobs: with_logprobs.then(|| chat_logprobs(&tokenizer, &folded.tokens)),
        message: AssistantMessage { role: "assistant", content: folded.text },
        finish_reason: finish_reason(folded.reason),
    };
    Ok(axum::Json(Answer {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        system_fingerprint: head.system_fingerprint,
        choices: folded.into_iter().enumerate().map(choice).collect(),
        usage: usage.into(),
    })
    .into_response())
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    if let (Some(old), Some(new)) = (body.max_tokens, body.max_completion_tokens)
        && old != new
    {
        let problem = format!("is {new}, but `max_tokens` is {old}; hint: send one of them");
        return Err(ApiError::value("max_completion_tokens", problem));
    }
    let asked = body.logprobs.unwrap_or(false);
    if body.top_logprobs.is_some_and(|top| top != 0) && !asked {
        return Err(ApiError::value("top_logprobs", "needs `logprobs`; hint: set `logprobs` to true"));
    }
    let keep_stop = body.include_stop_str_in_output.unwrap_or(false);
    Ok(RawParams {
        max_new_tokens: body.max_completion_tokens.or(body.max_tokens),
        default_max_new_tokens: None,
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
        logprobs: asked.then(|| body.top_logprobs.unwrap_or(0)),
        cache_salt: body.cache_salt.take(),
        retention: RawRetention {
            prompt_cache_key: body.prompt_cache_key.take(),
            prompt_cache_retention: body.prompt_cache_retention.take(),
            cache_retention: body.cache_retention.take(),
            breakpoint: None,
        },
    })
}

/// The tokens' logprobs; an end token is no part of the content.
fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[OutputToken]) -> ChatLogprobs {
    let content = tokens.iter().filter(|token| !token.is_end);
    ChatLogprobs { content: content.map(|token| logprobs::chat_token(tokenizer, token)).collect() }
}

/// What all chunks of an answer begin with.
struct Head {
    id: String,
    created: u64,
    model: String,
    system_fingerprint: String,
}

impl Head {
    /// `usage`: none if the request did not ask for it, null before the end.
    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>, usage: Option<Option<Usage>>) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            choices,
            usage,
        }
    }
}

struct ChatStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    with_logprobs: bool,
    include_usage: bool,
    choices: Vec<ChoiceStream>,
}

struct ChoiceStream {
    /// The chunk of a piece of text without logprobs.
    piece: EventFrame,
    /// Tokens whose text is held back, with logprobs.
    pending: Vec<OutputToken>,
}

impl ChatStream {
    fn new(
        head: Head,
        tokenizer: Arc<Tokenizer>,
        num_choices: usize,
        with_logprobs: bool,
        include_usage: bool,
    ) -> Self {
        let choice = |index| {
            let piece = EventFrame::new(|text| {
                let delta = Delta { role: None, content: Some(text) };
                head.chunk(Self::choice(index, delta, None, None), include_usage.then_some(None))
            });
            ChoiceStream { piece, pending: Vec::new() }
        };
        let choices = (0..num_choices).map(choice).collect();
        Self { head, tokenizer, with_logprobs, include_usage, choices }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        self.head.chunk(choices, self.include_usage.then_some(None))
    }

    fn choice<'a>(
        index: usize,
        delta: Delta<'a>,
        logprobs: Option<ChatLogprobs>,
        finish: Option<&'static str>,
    ) -> Vec<ChunkChoice<'a>> {
        vec![ChunkChoice { index: index as u32, delta, logprobs, finish_reason: finish }]
    }
}

impl Render for ChatStream {
    fn begin(&mut self, events: &mut Events) {
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some("assistant"), content: Some("") };
            events.json(&self.chunk(Self::choice(index, delta, None, None)));
        }
    }

    fn output(&mut self, index: usize, output: Output, events: &mut Events) {
        let choice = &mut self.choices[index];
        if self.with_logprobs {
            choice.pending.extend(output.token.filter(|token| !token.is_end));
        }
        let is_last = output.finish.is_some();
        if self.with_logprobs && (!output.text.is_empty() || (is_last && !choice.pending.is_empty())) {
            let tokens = std::mem::take(&mut choice.pending);
            let logprobs = chat_logprobs(&self.tokenizer, &tokens);
            let delta = Delta { role: None, content: Some(&output.text) };
            events.json(&self.chunk(Self::choice(index, delta, Some(logprobs), None)));
        } else if !output.text.is_empty() {
            events.framed(&choice.piece, &output.text);
        }
        if let Some((reason, _)) = output.finish {
            let finish = Some(finish_reason(reason));
            events.json(&self.chunk(Self::choice(index, Delta::default(), None, finish)));
        }
    }

    fn finished(&mut self, usage: generate::Usage, events: &mut Events) {
        if self.include_usage {
            events.json(&self.head.chunk(Vec::new(), Some(Some(usage.into()))));
        }
        events.done();
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
