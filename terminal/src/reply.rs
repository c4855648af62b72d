//! A reply while it streams, and what it cost.

use std::time::Duration;

use serde::Deserialize;

use crate::conversation::{Function, ToolCall};

/// Largest number of calls in a reply.
const MAX_CALLS: usize = 1024;

/// A part of a reply, as an event of the stream tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    /// A tool is called by this name.
    Call(String),
    /// The arguments of the last call go on.
    Arguments(String),
    /// The server gave up.
    Failed(String),
    Done,
}

/// The reply so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    pub text: String,
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    pub finish_reason: Option<String>,
    pub stats: Stats,
}

/// What a reply cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    /// From the request to the first token, and to the last.
    pub first: Option<Duration>,
    pub last: Duration,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<ErrorBody>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    /// The same in other servers.
    reasoning: Option<String>,
    #[serde(default)]
    tool_calls: Vec<CallDelta>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: usize,
    id: Option<String>,
    #[serde(default)]
    function: FunctionDelta,
}

#[derive(Deserialize, Default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

impl Reply {
    /// Adds the data of an event that came this long after the request, and returns what it says. The error is what is
    /// wrong with it.
    pub fn add(&mut self, data: &str, now: Duration) -> Result<Vec<Piece>, String> {
        if data == "[DONE]" {
            return Ok(vec![Piece::Done]);
        }
        let chunk: Chunk = serde_json::from_str(data).map_err(|error| error.to_string())?;
        if let Some(error) = chunk.error {
            return Ok(vec![Piece::Failed(error.message)]);
        }
        let mut pieces = Vec::new();
        for Choice { delta, finish_reason } in chunk.choices {
            let reasoning = delta.reasoning_content.or(delta.reasoning).filter(|text| !text.is_empty());
            if let Some(text) = reasoning {
                self.reasoning += &text;
                pieces.push(Piece::Reasoning(text));
            }
            if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
                self.text += &text;
                pieces.push(Piece::Text(text));
            }
            for call in delta.tool_calls {
                self.add_call(call, &mut pieces)?;
            }
            self.finish_reason = finish_reason.or(self.finish_reason.take());
        }
        if !pieces.is_empty() {
            self.stats.first.get_or_insert(now);
            self.stats.last = now;
        }
        if let Some(usage) = chunk.usage {
            self.stats.prompt_tokens = usage.prompt_tokens;
            self.stats.output_tokens = usage.completion_tokens;
            let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.stats.cached_tokens = cached.unwrap_or(0);
        }
        Ok(pieces)
    }

    fn add_call(&mut self, delta: CallDelta, pieces: &mut Vec<Piece>) -> Result<(), String> {
        if delta.index > self.calls.len() || delta.index >= MAX_CALLS {
            return Err(format!("call {} of a tool follows {} others", delta.index, self.calls.len()));
        }
        if delta.index == self.calls.len() {
            let name = delta.function.name.unwrap_or_default();
            pieces.push(Piece::Call(name.clone()));
            self.calls.push(ToolCall {
                id: delta.id.unwrap_or_default(),
                kind: "function".to_owned(),
                function: Function { name, arguments: String::new() },
            });
        }
        if let Some(text) = delta.function.arguments.filter(|text| !text.is_empty()) {
            self.calls[delta.index].function.arguments += &text;
            pieces.push(Piece::Arguments(text));
        }
        Ok(())
    }

    /// Returns true if nothing has come.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

impl Stats {
    /// Returns the statistics in a line; the counts are missing if the reply was stopped.
    pub fn line(&self) -> String {
        let Some(first) = self.first else { return "no token came".to_owned() };
        let first_ms = first.as_millis();
        if self.output_tokens == 0 {
            let whole = self.last.as_secs_f64();
            return format!("first token after {first_ms} ms, stopped after {whole:.1} s");
        }
        let seconds = self.last.saturating_sub(first).as_secs_f64();
        let speed = if self.output_tokens > 1 && seconds > 0.0 {
            format!(" at {:.1} tokens/s", (self.output_tokens - 1) as f64 / seconds)
        } else {
            String::new()
        };
        let tokens = if self.output_tokens == 1 { "token" } else { "tokens" };
        format!(
            "{} {tokens}{speed}, first after {first_ms} ms; prompt of {}, {} of them cached",
            self.output_tokens, self.prompt_tokens, self.cached_tokens
        )
    }
}
