//! Writes a chat's replies as events.

use std::sync::Arc;

use trunkline_reply::Piece;
use trunkline_text::Tokenizer;

use super::chat_types::{Chunk, ChunkChoice, Delta};
use super::tools::{FunctionDelta, ToolCallDelta};
use super::{
    ChatLogprobs, CompletionTokensDetails, ErrorResponse, StopReason, StreamUsage, Usage, finish_reason,
    logprobs,
};
use crate::chat::reply::{ReplyPlan, ReplyReader};
use crate::respond::ErrorForm;
use crate::stream::Render;
use trunkline_base::error::ApiError;
use trunkline_generation::generate::{self, FinishReason, Output, OutputToken};
use trunkline_http::{EventFrame, Events};

/// The fields that are equal in all chunks of an answer.
pub struct Head {
    pub id: String,
    /// The time of creation in Unix seconds.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// The priority class that was used, if the request named one.
    pub service_tier: Option<&'static str>,
}

impl Head {
    /// Returns a chunk. `usage` is `None` if the request did not ask for it, and `Some(None)`, which is written as
    /// null, before the last chunk.
    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>, usage: Option<Option<Usage>>) -> Chunk<'a> {
        Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            system_fingerprint: &self.system_fingerprint,
            service_tier: self.service_tier,
            choices,
            usage,
            timings: None,
            prompt_token_ids: None,
        }
    }
}

/// The settings of an answer: how to read replies, and the optional fields.
#[derive(Debug, Clone)]
pub struct Shown {
    pub reply: ReplyPlan,
    /// True if the request names the tool to call. OpenAI's API then reports `stop` instead of `tool_calls`.
    pub names_tool: bool,
    /// The stop strings, for `stop_reason`.
    pub stops: Vec<String>,
    pub logprobs: bool,
    pub usage: StreamUsage,
    /// True if the request has a `prediction`. The usage then has `completion_tokens_details`.
    pub predicted: bool,
    /// True if chunks have `timings`.
    pub timings: bool,
    /// The prompt, if the answer has token ids.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// True if the client is the Python package `text-generation`, which requires all members in each event.
    pub is_tgi_client: bool,
}

impl Shown {
    fn delta<'a>(&self, delta: Delta<'a>) -> Delta<'a> {
        if !self.is_tgi_client {
            return delta;
        }
        Delta { role: Some("assistant"), tool_calls: delta.tool_calls.or(Some(None)), ..delta }
    }

    pub fn end(&self, reason: FinishReason, num_calls: usize) -> (&'static str, Option<StopReason>) {
        let finish_reason = finish_reason_with_calls(reason, num_calls, self.names_tool);
        (finish_reason, StopReason::new(reason, &self.stops))
    }

    /// Returns true if each chunk has its tokens or the counts up to it.
    fn details_each_chunk(&self) -> bool {
        self.timings || self.usage == StreamUsage::Each || self.prompt_token_ids.is_some()
    }

    /// Returns the ids of tokens, if the answer has them.
    pub fn token_ids(&self, tokens: &[OutputToken]) -> Option<Vec<u32>> {
        self.prompt_token_ids.as_ref().map(|_| tokens.iter().map(|token| token.id).collect())
    }

    pub fn usage(&self, usage: generate::Usage) -> Usage {
        Usage {
            completion_tokens_details: self.predicted.then_some(CompletionTokensDetails {
                accepted_prediction_tokens: usage.accepted_drafts,
                rejected_prediction_tokens: usage.rejected_drafts,
            }),
            ..usage.into()
        }
    }
}

pub struct ChatStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    shown: Shown,
    choices: Vec<ChoiceStream>,
    /// The counts and times up to here, of the reply that comes next.
    so_far: generate::Usage,
}

struct ChoiceStream {
    /// The frame of chunks that have only text.
    piece: EventFrame,
    reader: ReplyReader,
    num_calls: u32,
    /// Tokens whose text is still held back; only with logprobs or token ids.
    pending: Vec<OutputToken>,
}

impl ChatStream {
    pub fn new(head: Head, tokenizer: Arc<Tokenizer>, num_choices: usize, shown: Shown) -> Self {
        let choice = |index| {
            let piece = EventFrame::new(|text| {
                let delta = shown.delta(Delta { content: Some(text), ..Delta::default() });
                // Where chunks have counts, they have no frame.
                let usage = (shown.usage != StreamUsage::None).then_some(None);
                head.chunk(chunk_choice(index, delta, None, None), usage)
            });
            ChoiceStream { piece, reader: shown.reply.reader(), num_calls: 0, pending: Vec::new() }
        };
        let choices = (0..num_choices).map(choice).collect();
        Self { head, tokenizer, shown, choices, so_far: generate::Usage::default() }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        let usage = self.shown.usage.of_chunk(|| self.shown.usage(self.so_far));
        let timings = self.shown.timings.then(|| self.so_far.into());
        Chunk { timings, ..self.head.chunk(choices, usage) }
    }

    /// Writes one piece of a reply. Logprobs and token ids are sent with the first piece after their tokens.
    fn piece(&mut self, index: usize, piece: &Piece, events: &mut Events) {
        let choice = &mut self.choices[index];
        let pending = std::mem::take(&mut choice.pending);
        let has_logprobs = self.shown.logprobs && pending.iter().any(|token| !token.is_end);
        let logprobs = has_logprobs.then(|| chat_logprobs(&self.tokenizer, &pending));
        if let (Piece::Text(text), None, false) = (piece, &logprobs, self.shown.details_each_chunk()) {
            events.framed(&choice.piece, text);
            return;
        }
        let id;
        let call = |index, id, name, arguments| {
            let kind = Option::map(id, |_: &str| "function");
            Some(Some([ToolCallDelta { index, id, kind, function: FunctionDelta { name, arguments } }]))
        };
        let delta = match piece {
            Piece::Text(text) => Delta { content: Some(text), ..Delta::default() },
            Piece::Reasoning(text) => {
                Delta { reasoning_content: Some(text), reasoning: Some(text), ..Delta::default() }
            }
            Piece::CallBegin { name } => {
                choice.num_calls += 1;
                id = choice.reader.call_id();
                let tool_calls = call(choice.num_calls - 1, Some(id.as_str()), Some(name.as_str()), "");
                Delta { tool_calls, ..Delta::default() }
            }
            Piece::Arguments(text) => {
                let tool_calls = call(choice.num_calls.saturating_sub(1), None, None, text);
                Delta { tool_calls, ..Delta::default() }
            }
            // The next call or the end of the reply implies the end of this call.
            Piece::CallEnd => {
                choice.pending = pending;
                return;
            }
        };
        let mut choices = chunk_choice(index, self.shown.delta(delta), logprobs, None);
        choices[0].token_ids = self.shown.token_ids(&pending);
        events.json(&self.chunk(choices));
    }
}

fn chunk_choice<'a>(
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs>,
    end: Option<(&'static str, Option<StopReason>)>,
) -> Vec<ChunkChoice<'a>> {
    let finish_reason = end.as_ref().map(|(reason, _)| *reason);
    let stop_reason = end.map(|(_, stop_reason)| stop_reason);
    vec![ChunkChoice { index: index as u32, delta, logprobs, finish_reason, stop_reason, token_ids: None }]
}

/// Returns the `finish_reason` of a reply with `num_calls` calls.
fn finish_reason_with_calls(reason: FinishReason, num_calls: usize, names_tool: bool) -> &'static str {
    match reason {
        FinishReason::Length => finish_reason(reason),
        _ if num_calls > 0 && !names_tool => "tool_calls",
        _ => finish_reason(reason),
    }
}

/// Returns the logprobs of the tokens, without the end token, which is not part of the content.
pub fn chat_logprobs(tokenizer: &Tokenizer, tokens: &[OutputToken]) -> ChatLogprobs {
    let content = tokens.iter().filter(|token| !token.is_end);
    ChatLogprobs { content: content.map(|token| logprobs::chat_token(tokenizer, token)).collect() }
}

impl Render for ChatStream {
    fn begin(&mut self, events: &mut Events) {
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            let delta = self.shown.delta(delta);
            let chunk = self.chunk(chunk_choice(index, delta, None, None));
            events.json(&Chunk { prompt_token_ids: self.shown.prompt_token_ids.as_deref(), ..chunk });
        }
    }

    fn output(&mut self, index: usize, output: Output, events: &mut Events) {
        self.so_far = output.so_far;
        let choice = &mut self.choices[index];
        if self.shown.logprobs || self.shown.prompt_token_ids.is_some() {
            choice.pending.extend(output.token);
        }
        if choice.reader.is_plain() && !self.shown.logprobs && !self.shown.details_each_chunk() {
            if !output.text.is_empty() {
                events.framed(&choice.piece, &output.text);
            }
        } else {
            for piece in choice.reader.read(&output.text, output.finish.is_some()) {
                self.piece(index, &piece, events);
            }
        }
        let Some((reason, _)) = output.finish else { return };
        if self.shown.logprobs && self.choices[index].pending.iter().any(|token| !token.is_end) {
            self.piece(index, &Piece::Text(String::new()), events);
        }
        let num_calls = self.choices[index].num_calls as usize;
        let end = self.shown.end(reason, num_calls);
        let mut choices = chunk_choice(index, self.shown.delta(Delta::default()), None, Some(end));
        choices[0].token_ids = self.shown.token_ids(&self.choices[index].pending);
        events.json(&self.chunk(choices));
    }

    fn finished(&mut self, usage: generate::Usage, events: &mut Events) {
        if self.shown.usage != StreamUsage::None {
            let chunk = self.head.chunk(Vec::new(), Some(Some(self.shown.usage(usage))));
            events.json(&Chunk { timings: self.shown.timings.then(|| usage.into()), ..chunk });
        }
        // That client would parse `[DONE]` as JSON.
        if !self.shown.is_tgi_client {
            events.done();
        }
    }

    fn failed(&mut self, error: &ApiError, events: &mut Events) {
        events.json(&ErrorResponse::from_error(error));
    }
}
