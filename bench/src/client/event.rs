//! The events of `/v1/completions` and `/v1/chat/completions`, as far as a measurement needs them.

use serde::Deserialize;
use serde_json::Value;

/// Numbers of tokens as the server counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Usage {
    #[serde(default)]
    pub prompt_tokens: u64,
    #[serde(default)]
    pub completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Usage {
    /// Returns the tokens of the prompt that were in the server's cache, if it says so.
    pub fn cached_tokens(&self) -> Option<u64> {
        self.prompt_tokens_details?.cached_tokens
    }
}

/// An event of a stream.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Output, which may have no text: of a special token, or at the end.
    Output { text: String, is_last: bool },
    /// Something else, such as the role of a message that follows.
    Other,
    /// The end of the stream.
    Done,
    /// The server failed after it had begun to answer.
    Error(String),
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    role: Option<String>,
    content: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
    tool_calls: Option<Value>,
}

/// Parses the data of an event; usage may come with any of them.
pub fn parse(data: &[u8]) -> Result<(Event, Option<Usage>), serde_json::Error> {
    if data == b"[DONE]" {
        return Ok((Event::Done, None));
    }
    let mut chunk: Chunk = serde_json::from_slice(data)?;
    if let Some(error) = chunk.error {
        return Ok((Event::Error(message(&error)), chunk.usage));
    }
    if chunk.choices.is_empty() {
        return Ok((Event::Other, chunk.usage));
    }
    let choice = chunk.choices.swap_remove(0);
    let is_last = choice.finish_reason.is_some();
    let event = match choice.delta {
        Some(delta) if delta.only_has_role() && !is_last => Event::Other,
        Some(delta) => Event::Output { text: delta.content.unwrap_or_default(), is_last },
        None => Event::Output { text: choice.text.unwrap_or_default(), is_last },
    };
    Ok((event, chunk.usage))
}

impl Delta {
    fn only_has_role(&self) -> bool {
        let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        self.role.is_some()
            && empty(&self.content)
            && empty(&self.reasoning_content)
            && self.tool_calls.is_none()
    }
}

/// Returns the text of an error of any server: a string, or an object with a `message`.
pub fn message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner
        .get("message")
        .or_else(|| error.get("message"))
        .or_else(|| error.get("detail"))
        .unwrap_or(inner);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}
