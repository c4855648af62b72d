//! A conversation, which is also the body of a request: what `/save` writes can be sent with curl.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) const SYSTEM: &str = "system";
pub(crate) const USER: &str = "user";
pub(crate) const ASSISTANT: &str = "assistant";
const TOOL: &str = "tool";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    pub messages: Vec<Message>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    #[serde(default)]
    pub content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    pub function: Function,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub arguments: String,
}

fn function() -> String {
    "function".to_owned()
}

impl Message {
    fn new(role: &str, text: &str) -> Self {
        Self { role: role.to_owned(), content: Some(text.to_owned()), ..Self::default() }
    }
}

impl Conversation {
    /// Returns the body of the request for the next reply.
    pub fn request(&self) -> Value {
        let mut body = json!(self);
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        body
    }

    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|first| first.role == SYSTEM)?.content.as_deref()
    }

    /// Sets the system prompt, or removes it.
    pub fn set_system(&mut self, text: Option<&str>) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if let Some(text) = text {
            self.messages.insert(0, Message::new(SYSTEM, text));
        }
    }

    /// Adds what the user says, to the last message if it is the user's, too, and has no reply.
    pub fn ask(&mut self, text: &str) {
        match self.messages.last_mut() {
            Some(Message { role, content: Some(content), .. }) if role == USER => {
                *content += "\n\n";
                *content += text;
            }
            _ => self.messages.push(Message::new(USER, text)),
        }
    }

    /// Adds the result of a tool.
    pub fn tell(&mut self, call: &ToolCall, result: &str) {
        self.messages.push(Message { tool_call_id: Some(call.id.clone()), ..Message::new(TOOL, result) });
    }

    /// Adds a reply.
    pub fn add_reply(&mut self, text: &str, reasoning: &str, tool_calls: Vec<ToolCall>) {
        self.messages.push(Message {
            reasoning_content: (!reasoning.is_empty()).then(|| reasoning.to_owned()),
            tool_calls,
            ..Message::new(ASSISTANT, text)
        });
    }

    /// Removes what follows the user's last message; returns false if there is none.
    pub fn drop_reply(&mut self) -> bool {
        let Some(last) = self.messages.iter().rposition(|message| message.role == USER) else { return false };
        self.messages.truncate(last + 1);
        true
    }

    /// Removes the user's last message and what follows it, and returns its text.
    pub fn take_question(&mut self) -> Option<String> {
        if !self.drop_reply() {
            return None;
        }
        self.messages.pop()?.content
    }

    /// Removes all messages but the system prompt.
    pub fn clear(&mut self) {
        let keep = usize::from(self.system().is_some());
        self.messages.truncate(keep);
    }

    /// Returns the number of messages without the system prompt.
    pub fn len(&self) -> usize {
        self.messages.len() - usize::from(self.system().is_some())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
