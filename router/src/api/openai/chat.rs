//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use trunkline_text::{ChatPrompt, ChatRequest, Tokenizer};

use super::chat_stream::{ChatStream, Head, Shown, chat_logprobs};
use super::chat_types::{Answer, AssistantMessage, Body, Choice};
use super::messages::{Message, last_mark, to_chat};
use super::prompt_logprobs::PromptLogprobs;
use super::tools::{ToolCall, tools};
use super::{ErrorResponse, system_fingerprint};
use crate::api::Dialect;
use crate::api::app::{App, unix_s};
use crate::api::chat::conversation::{Conversation, reasoning_kwargs};
use crate::api::chat::prompt as chat_prompt;
use crate::api::chat::reply::{Reply, ReplyPlan};
use crate::api::chat::tools::Tools;
use crate::api::sse::{self, Folded, KeepTokens};
use crate::error::ApiError;
use crate::generation::admission::Admitted;
use crate::grammars::RequestGrammar;
use crate::http::{Refused, parse};
use crate::request::ready::GenerationRequest;
use crate::request::service_tier::openai_name;
use crate::request::tokens::PromptLogprobsField;
use crate::request::validate::{FieldNames, RawParams};

/// Fields that would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "best_of", neutral: &["1"], hint: "use `n`" },
    Refused { field: "functions", neutral: &["[]"], hint: "use `tools`" },
    Refused { field: "function_call", neutral: &["\"none\"", "\"auto\""], hint: "use `tools`" },
    Refused { field: "modalities", neutral: &["[\"text\"]", "[]"], hint: "this server gives text alone" },
    Refused { field: "audio", neutral: &[], hint: "this server gives text alone" },
    Refused { field: "verbosity", neutral: &["\"medium\""], hint: "say it in the prompt" },
    Refused { field: "web_search_options", neutral: &[], hint: "leave it out" },
    Refused { field: "chat_template", neutral: &[], hint: "the model's own template is used" },
    Refused { field: "documents", neutral: &["[]"], hint: "put them into the messages" },
    Refused { field: "echo", neutral: &["false"], hint: "leave it out" },
    Refused {
        field: "tool_prompt",
        neutral: &[],
        hint: "the model's own template says it; or use a message",
    },
];

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
    Dialect::OpenAi.answer(answer(&app, request).await)
}

/// The body of a chat. `prefix` names it in errors (`instances[0].`), empty for a whole body.
pub(crate) fn parse_body(body: &[u8], prefix: &str) -> Result<Body, ApiError> {
    parse(body, &[REFUSED, super::REFUSED_EVERYWHERE].concat(), prefix)
}

/// A chat that was checked.
pub(crate) struct Prepared {
    /// For the device.
    pub(crate) request: GenerationRequest,
    /// How its replies are read.
    reply: ReplyPlan,
    /// The client said which tool is called.
    names_tool: bool,
    /// Replies to compute.
    num_choices: usize,
}

/// Checks a chat and makes its prompt; takes from the body what it needs of it.
pub(crate) async fn prepare(app: &App, admitted: &Admitted, body: &mut Body) -> Result<Prepared, ApiError> {
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
    app.limits.check_messages("messages", body.messages.iter().map(Message::num_parts))?;
    let mut raw = raw_params(body)?;
    raw.deadline = admitted.deadline(body.timeout)?;
    let tools = tools(body.tools.take(), body.tool_choice.as_ref(), body.parallel_tool_calls, &app.limits)?;
    raw.grammar = grammar(body, &tools)?;
    let mark = last_mark(&body.messages)?;
    let validator = app.validator(&admitted.shard);
    validator.check(&raw, names)?;
    let num_choices = validator.num_choices(body.n, None, 1)?.computed;

    let chat = chat_request(body)?;
    let names_tool = tools.is_named();
    let hides_reasoning = body.include_reasoning == Some(false);
    let conversation = Conversation { chat, mark, tools, hides_reasoning };
    let (request, reply) = conversation.request(app, admitted, &validator, raw, names).await?;
    Ok(Prepared { request, reply, names_tool, num_choices })
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (admitted, body) = app.admit(request).await?;
    let mut body = parse_body(&body, "")?;
    let Prepared { request, reply, names_tool, num_choices } = prepare(app, &admitted, &mut body).await?;
    let tokenizer = app.model.text.tokenizer.clone();
    let shown = Shown {
        reply,
        names_tool,
        stops: request.stops.clone(),
        logprobs: request.sampling.logprobs,
        usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
        predicted: body.prediction.is_some(),
        is_tgi_client: body.model.as_deref() == Some("tgi"),
    };
    let num_prompt_top = request.sampling.prompt_logprobs.map(|num_top| num_top as usize);

    let head = Head {
        id: format!("chatcmpl-{}", crate::random::id()),
        created: unix_s(),
        model: app.model.served_name.clone(),
        system_fingerprint: system_fingerprint(&admitted.shard),
        service_tier: body.service_tier.is_some().then(|| openai_name(request.priority)),
    };
    let choices = app.generate(vec![request], num_choices, admitted.permit).await?;
    if body.stream == Some(true) {
        let render = ChatStream::new(head, tokenizer, num_choices, shown);
        return Ok(sse::stream(choices, render, app));
    }
    let keep = if shown.logprobs { KeepTokens::Yes } else { KeepTokens::No };
    let (mut folded, usage) = sse::fold(choices, keep).await?;
    let prompt_logprobs = folded[0].prompt.take().zip(num_prompt_top);
    let prompt_logprobs =
        prompt_logprobs.map(|(scored, num_top)| PromptLogprobs::new(scored, tokenizer.clone(), num_top));
    let choices = folded.into_iter().enumerate();
    Ok(axum::Json(Answer {
        id: head.id,
        object: "chat.completion",
        created: head.created,
        model: head.model,
        system_fingerprint: head.system_fingerprint,
        service_tier: head.service_tier,
        choices: choices.map(|(index, folded)| choice(index, folded, &shown, &tokenizer)).collect(),
        usage: shown.usage(usage),
        prompt_logprobs,
    })
    .into_response())
}

fn choice(index: usize, folded: Folded, shown: &Shown, tokenizer: &Tokenizer) -> Choice {
    let reply = Reply::of(&shown.reply, folded.text, folded.reason);
    let (finish_reason, stop_reason) = shown.end(folded.reason, reply.calls.len());
    Choice {
        index: index as u32,
        logprobs: shown.logprobs.then(|| chat_logprobs(tokenizer, &folded.tokens)),
        finish_reason,
        stop_reason,
        message: AssistantMessage {
            role: "assistant",
            content: (reply.calls.is_empty() || !reply.text.is_empty()).then_some(reply.text),
            reasoning_content: (!reply.reasoning.is_empty()).then_some(reply.reasoning),
            tool_calls: reply.calls.into_iter().map(ToolCall::from).collect(),
        },
    }
}

/// The prompt of the chat that a body holds, for who wants to see it.
pub(crate) async fn template(app: &App, body: &[u8]) -> Result<ChatPrompt, ApiError> {
    let mut body = parse_body(body, "")?;
    app.model.check_name(body.model.as_deref())?;
    app.limits.check_messages("messages", body.messages.iter().map(Message::num_parts))?;
    let tools = tools(body.tools.take(), body.tool_choice.as_ref(), body.parallel_tool_calls, &app.limits)?;
    let mut chat = chat_request(&mut body)?;
    tools.describe(&mut chat, app.model.reply.knows_tools(), &mut None);
    app.tokenize(chat_prompt::num_bytes(&chat), move |text| text.encode_chat(&chat)).await
}

/// What the template makes a prompt of, but for the tools.
fn chat_request(body: &mut Body) -> Result<ChatRequest, ApiError> {
    let is_continued = body.continue_final_message.unwrap_or(false);
    let opens_reply = body.add_generation_prompt.unwrap_or(!is_continued);
    if is_continued && opens_reply {
        let problem = "is true, but `continue_final_message` too; hint: send one of them";
        return Err(ApiError::value("add_generation_prompt", problem));
    }
    Ok(ChatRequest {
        messages: to_chat(std::mem::take(&mut body.messages))?,
        add_generation_prompt: opens_reply,
        continue_final_message: is_continued,
        kwargs: kwargs(body),
        now_unix_s: unix_s().cast_signed(),
        ..ChatRequest::default()
    })
}

/// What the client tells the template; the field of its own goes before what `reasoning_effort` means.
fn kwargs(body: &mut Body) -> Map<String, Value> {
    let mut kwargs = reasoning_kwargs(body.reasoning_effort.as_deref());
    kwargs.extend(body.chat_template_kwargs.take().unwrap_or_default());
    kwargs
}

/// What the reply has to be. Where it must be calls, `response_format` is of replies that are none.
fn grammar(body: &mut Body, tools: &Tools) -> Result<Option<RequestGrammar>, ApiError> {
    let asked = body.structured().grammar()?;
    Ok(tools.grammar().or(asked))
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
    let prompt_logprobs = body.prompt_logprobs.and_then(|count| count.0);
    if prompt_logprobs.is_some() && body.stream == Some(true) {
        let problem = "cannot be streamed; hint: do not stream";
        return Err(ApiError::value("prompt_logprobs", problem));
    }
    if let Some(prediction) = &body.prediction {
        prediction.check()?;
    }
    let mut raw = body.shared_params()?;
    raw.max_new_tokens = body.max_completion_tokens.or(body.max_tokens);
    raw.logprobs = asked.then(|| body.top_logprobs.unwrap_or(0));
    raw.tokens.prompt_logprobs =
        prompt_logprobs.map(|num_top| PromptLogprobsField { field: "prompt_logprobs", num_top });
    Ok(raw)
}
