//! The answers of `/api/chat` and `/api/generate`, whole or as lines of a stream.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;
use utoipa::ToSchema;

use super::keep_alive::KeepAlive;
use crate::chat::reply::Call;
use crate::openai::ChatTokenLogprob;
use crate::pipeline::Scope;
use trunkline_generation::generate::{FinishReason, Usage};

/// A complete answer to a chat, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaChatResponse)]
pub struct ChatAnswer<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// The time of this answer, or of this piece, as in RFC 3339.
    pub created_at: String,
    /// The reply, or its new part.
    pub message: AnswerMessage,
    #[serde(flatten)]
    #[schema(inline)]
    pub common: Common,
}

/// A complete answer to a prompt, or a piece of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaGenerateResponse)]
pub struct GenerateAnswer<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// The time of this answer, or of this piece, as in RFC 3339.
    pub created_at: String,
    /// The text of the output, or its new part.
    pub response: String,
    /// The reasoning, or its new part.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub thinking: String,
    #[serde(flatten)]
    #[schema(inline)]
    pub common: Common,
}

/// The members of both answers.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaCommon)]
pub struct Common {
    /// The logprobs of the tokens of this piece, if requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub logprobs: Vec<ChatTokenLogprob>,
    /// True if the answer is complete.
    pub done: bool,
    /// `stop`, `length`, or `load` for a request without a prompt; only in the last piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_reason: Option<&'static str>,
    #[serde(flatten)]
    #[schema(inline)]
    pub counts: Counts,
}

/// A reply, or a part of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaReply)]
pub struct AnswerMessage {
    /// The author, always `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// The reasoning.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub thinking: String,
    /// The calls of tools. A stream has each call in one piece.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaToolCall)]
pub struct ToolCall {
    /// The id of the call. The message with the result may repeat it as `tool_call_id`.
    pub id: String,
    /// The called function and its arguments.
    pub function: CalledFunction,
}

/// A called function with its arguments.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaCalledFunction)]
pub struct CalledFunction {
    /// The number of the call in the reply, from 0.
    pub index: usize,
    /// The name of the function.
    pub name: String,
    /// The arguments.
    pub arguments: Map<String, Value>,
}

impl ToolCall {
    pub(super) fn new(index: usize, call: Call) -> Self {
        // A call that `num_predict` cut off has incomplete arguments.
        let arguments = serde_json::from_str(&call.arguments).unwrap_or_default();
        Self { id: call.id, function: CalledFunction { index, name: call.name, arguments } }
    }
}

/// The counts of a complete answer, and its times in nanoseconds. Other pieces have none.
#[derive(Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaCounts)]
pub struct Counts {
    /// The time from the request's arrival to its last token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// The time from the request's arrival to its first step, in which it may have waited for a place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// The number of prompt tokens, cached ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<u32>,
    /// The time from the first step to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// The number of generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<u32>,
    /// The time from the first token to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

impl Counts {
    /// Returns the counts of an answer that ends now.
    pub(super) fn new(usage: Usage, arrived: Instant, started: Option<Instant>) -> Self {
        Self {
            total_duration: Some(nanos(arrived.elapsed())),
            load_duration: Some(nanos(started.unwrap_or(arrived).duration_since(arrived))),
            prompt_eval_count: Some(usage.prompt_tokens),
            prompt_eval_duration: Some(nanos(usage.prompt_time)),
            eval_count: Some(usage.output_tokens),
            eval_duration: Some(nanos(usage.output_time)),
        }
    }
}

/// Returns a duration in Ollama's unit.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The route of an answer, which decides its form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Chat,
    Generate,
}

/// An answer of either route.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer<'a> {
    Chat(ChatAnswer<'a>),
    Generate(GenerateAnswer<'a>),
}

/// What a reply, or a part of it, consists of.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub text: String,
    pub thinking: String,
    /// Prompts without a chat have none.
    pub tool_calls: Vec<ToolCall>,
    pub common: Common,
}

impl<'a> Answer<'a> {
    pub(super) fn new(form: Form, model: &'a str, part: Part) -> Self {
        let created_at = humantime::format_rfc3339_nanos(SystemTime::now()).to_string();
        let Part { text, thinking, tool_calls, common } = part;
        match form {
            Form::Chat => {
                let message = AnswerMessage { role: "assistant", content: text, thinking, tool_calls };
                Self::Chat(ChatAnswer { model, created_at, message, common })
            }
            Form::Generate => {
                Self::Generate(GenerateAnswer { model, created_at, response: text, thinking, common })
            }
        }
    }

    /// Returns the answer to a request without a prompt, which loads the model, or lets it leave the memory if it stays
    /// for no time after it.
    pub(super) fn without_output(form: Form, scope: &'a Scope, keep_alive: Option<KeepAlive>) -> Self {
        let leaves = scope.app.models.gate().is_some() && keep_alive.is_some_and(KeepAlive::is_zero);
        let done_reason = Some(if leaves { "unload" } else { "load" });
        let common = Common { done: true, done_reason, ..Common::default() };
        Self::new(form, &scope.app.served.model.served_name, Part { common, ..Part::default() })
    }
}

/// Returns Ollama's name of a finish reason.
pub(super) fn done_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopToken { .. } | FinishReason::StopString { .. } => "stop",
        FinishReason::Length => "length",
    }
}
