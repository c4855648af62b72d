//! The messages of a request, and their conversion to the chat that a template renders.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use super::block::{Block, Content, required};
use super::texts::Place;
use crate::chat::conversation::add_reasoning;
use crate::chat::prompt::Mark;
use crate::chat::system_messages;
use crate::lists::{Listed, TextOrList};
use trunkline_base::error::ApiError;
use trunkline_base::limits::MAX_MESSAGES;
use trunkline_generation::request::retention::CacheControl;

/// A message of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub struct Message {
    /// `user`, `assistant`, or `system` for instructions in the middle of a conversation.
    pub role: String,
    /// A string, or a list of content blocks.
    pub content: Content,
}

impl Message {
    /// Returns the number of content blocks; a string counts as none.
    pub fn num_blocks(&self) -> usize {
        self.content.num_listed()
    }
}

impl Listed for Message {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "messages";
}

/// A conversation in the form that chat templates render.
#[derive(Debug, Default)]
pub struct Chat {
    /// The messages, starting with the system prompt if there is one.
    pub messages: Vec<ChatMessage>,
    /// The position of the last `cache_control`.
    pub mark: Option<Mark>,
    /// True until the first text of the current message was appended.
    is_first_text: bool,
}

impl Chat {
    /// Converts the system prompt and the messages.
    ///
    /// `whole` is the request's own `cache_control`. It acts like one on the last block if no block has one.
    pub fn new(
        system: Option<Content>,
        messages: Vec<Message>,
        whole: Option<&CacheControl>,
    ) -> Result<Self, ApiError> {
        let mut chat = Self::default();
        if let Some(mut system) = system {
            drop_billing_header(&mut system);
            chat.messages.push(ChatMessage::new("system", ""));
            chat.push_texts("system", system, Place::System, "system")?;
        }
        if messages.is_empty() {
            return Err(ApiError::value("messages", "is empty; hint: send at least one message"));
        }
        for (idx, message) in messages.into_iter().enumerate() {
            chat.push_message(message, &format!("messages[{idx}]"))?;
        }
        if let (Some(control), None) = (whole, chat.mark) {
            chat.set_mark(control, "cache_control")?;
        }
        // Whatever the template takes, so that a conversation has one prompt with all models.
        system_messages::merge(&mut chat.messages, &mut chat.mark);
        Ok(chat)
    }

    /// Returns true if the reply continues the last message, which is then the assistant's.
    pub fn is_prefilled(&self) -> bool {
        self.messages.last().is_some_and(|message| message.role == "assistant")
    }

    fn push_message(&mut self, message: Message, field: &str) -> Result<(), ApiError> {
        self.is_first_text = true;
        let role = match message.role.as_str() {
            "user" => "user",
            "assistant" => "assistant",
            "system" => {
                return self.push_texts(
                    "system",
                    message.content,
                    Place::System,
                    &format!("{field}.content"),
                );
            }
            _ => {
                let problem = "must be `user`, `assistant` or `system`";
                return Err(ApiError::value(format!("{field}.role"), problem));
            }
        };
        let field = format!("{field}.content");
        let blocks = match message.content {
            TextOrList::Text(text) => {
                self.push_text(role, &text);
                return Ok(());
            }
            TextOrList::List(blocks) => blocks,
        };
        if blocks.is_empty() {
            return Err(ApiError::value(field, "is empty; hint: send at least one block"));
        }
        for (idx, block) in blocks.into_iter().enumerate() {
            self.push_block(role, block, &format!("{field}[{idx}]"))?;
        }
        Ok(())
    }

    fn push_block(&mut self, role: &'static str, block: Block, field: &str) -> Result<(), ApiError> {
        let control = block.cache_control.clone();
        match (block.kind.as_str(), role) {
            ("text", "assistant") | ("text" | "document" | "search_result", "user") => {
                let text = block.into_text(Place::User, field)?;
                self.push_text(role, &text);
            }
            ("tool_use", "assistant") => {
                let call = json!({
                    "id": required(block.id, field, "id")?,
                    "type": "function",
                    "function": {
                        "name": required(block.name, field, "name")?,
                        "arguments": required(block.input, field, "input")?,
                    },
                });
                self.text_of(role);
                self.extra_list("tool_calls").push(call);
            }
            ("tool_result", "user") => {
                let id = required(block.tool_use_id, field, "tool_use_id")?;
                let extra = Map::from_iter([("tool_call_id".to_owned(), Value::String(id))]);
                self.messages.push(ChatMessage { role: "tool".into(), content: Some(String::new()), extra });
                if let Some(content) = block.content {
                    self.push_texts("tool", content, Place::ToolResult, &format!("{field}.content"))?;
                }
            }
            ("thinking", "assistant") => {
                let thinking = required(block.thinking, field, "thinking")?;
                self.text_of(role);
                if let Some(last) = self.messages.last_mut() {
                    add_reasoning(last, &thinking);
                }
            }
            // The block is encrypted, and only its maker can read it.
            ("redacted_thinking", "assistant") => {}
            (kind, role) => {
                let problem = format!("is not allowed in a message of role `{role}`");
                return Err(ApiError::part_type(format!("{field}.type"), kind, &problem));
            }
        }
        match control {
            Some(control) => self.set_mark(&control, &format!("{field}.cache_control")),
            None => Ok(()),
        }
    }

    /// Appends the text of every block to the turn of `role`.
    fn push_texts(
        &mut self,
        role: &'static str,
        content: Content,
        place: Place,
        field: &str,
    ) -> Result<(), ApiError> {
        let blocks = match content {
            TextOrList::Text(text) => {
                self.push_text(role, &text);
                return Ok(());
            }
            TextOrList::List(blocks) => blocks,
        };
        for (idx, block) in blocks.into_iter().enumerate() {
            let field = format!("{field}[{idx}]");
            let control = block.cache_control.clone();
            self.push_text(role, &block.into_text(place, &field)?);
            if let Some(control) = &control {
                self.set_mark(control, &format!("{field}.cache_control"))?;
            }
        }
        Ok(())
    }

    /// Appends text to the turn of `role`. A message that continues a turn starts on a new line.
    fn push_text(&mut self, role: &'static str, text: &str) {
        if text.is_empty() {
            self.text_of(role);
            return;
        }
        let is_first = std::mem::take(&mut self.is_first_text);
        let turn = self.text_of(role);
        if is_first && !turn.is_empty() && !turn.ends_with('\n') {
            turn.push('\n');
        }
        turn.push_str(text);
    }

    /// Returns the text of the last message if it has this role, or else of a new message. Successive messages of one
    /// role are merged.
    fn text_of(&mut self, role: &'static str) -> &mut String {
        if self.messages.last().is_none_or(|last| last.role != role) {
            self.messages.push(ChatMessage::new(role, ""));
        }
        self.last_text()
    }

    fn last_text(&mut self) -> &mut String {
        if self.messages.is_empty() {
            self.messages.push(ChatMessage::new("user", ""));
        }
        let last = self.messages.len() - 1;
        self.messages[last].content.get_or_insert_default()
    }

    /// Returns the list with this name in the last message's extra fields, creating it if necessary.
    fn extra_list(&mut self, name: &str) -> &mut Vec<Value> {
        self.last_text();
        let last = self.messages.len() - 1;
        let list = self.messages[last].extra.entry(name).or_insert_with(|| Value::Array(Vec::new()));
        if !list.is_array() {
            *list = Value::Array(Vec::new());
        }
        match list {
            Value::Array(list) => list,
            _ => unreachable!("the list was inserted above"),
        }
    }

    fn set_mark(&mut self, control: &CacheControl, field: &str) -> Result<(), ApiError> {
        let ttl_s = control.ttl_s(field)?;
        let num_bytes = self.last_text().len();
        self.mark = Some(Mark { message_idx: self.messages.len() - 1, num_bytes, ttl_s });
        Ok(())
    }
}

/// Empties the billing header that Claude Code sends as the first system block. It means nothing to a model, and it
/// differs in each request, which would prevent every prefix hit.
fn drop_billing_header(system: &mut Content) {
    let TextOrList::List(blocks) = system else { return };
    let Some(text) = blocks.first_mut().and_then(|block| block.text.as_mut()) else { return };
    if text.starts_with("x-anthropic-billing-header:") {
        text.clear();
    }
}
