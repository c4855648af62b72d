//! The input of a request: text or items, as messages for a template.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use super::store::unknown;
use crate::api::chat::arguments::Arguments;
use crate::api::lists::{Listed, TextOrList};
use crate::error::ApiError;
use crate::limits::{Limits, MAX_MESSAGES, MAX_PARTS};

/// A user's message, or messages, calls and results, oldest first.
pub type Input = TextOrList<Item>;
/// A string, or parts of text.
type Texts = TextOrList<TextPart>;

/// An item; which fields it has depends on its type.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesItem)]
pub struct Item {
    /// `message`, the default, `function_call`, `function_call_output`, `reasoning`, or `item_reference`, also the
    /// default of what has an `id` alone.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Of a reference: which item of an answer that is kept. Of others it says nothing.
    pub id: Option<String>,
    /// Of a message: `user`, `assistant`, `system` or `developer`.
    pub role: Option<String>,
    /// Of a message: a string, or parts of text.
    pub content: Option<Texts>,
    /// Of a call and its result.
    pub call_id: Option<String>,
    /// Of a call.
    pub name: Option<String>,
    /// Of a call: JSON text, or what it says.
    pub arguments: Option<Arguments>,
    /// Of a result: a string, or parts of text.
    pub output: Option<Texts>,
}

impl Item {
    fn is_reference(&self) -> bool {
        match self.kind.as_deref() {
            Some(kind) => kind == "item_reference",
            None => self.id.is_some() && self.role.is_none() && self.content.is_none(),
        }
    }

    /// Parts of its content.
    fn num_parts(&self) -> usize {
        self.content.as_ref().map_or(0, TextOrList::num_listed)
    }
}

/// A part.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesPart)]
pub struct TextPart {
    /// `input_text`, `output_text`, `text`, `reasoning_text`, `summary_text` or `refusal`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its text.
    pub text: Option<String>,
    /// Of `refusal`: its text.
    pub refusal: Option<String>,
}

impl Listed for Item {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "items";
}

impl Listed for TextPart {
    const LIMIT: usize = MAX_PARTS;
    const NAMES: &'static str = "parts";
}

fn join(texts: Texts, field: &str) -> Result<String, ApiError> {
    let parts = match texts {
        TextOrList::Text(text) => return Ok(text),
        TextOrList::List(parts) => parts,
    };
    let mut joined = String::new();
    for (idx, part) in parts.into_iter().enumerate() {
        let is_text = matches!(
            part.kind.as_str(),
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" | "refusal"
        );
        if !is_text {
            let problem = "is no text; this server takes text alone";
            return Err(ApiError::value(format!("{field}[{idx}].type"), problem));
        }
        let missing = || ApiError::MissingField { field: format!("{field}[{idx}].text") };
        joined.push_str(&part.text.or(part.refusal).ok_or_else(missing)?);
    }
    Ok(joined)
}

/// The messages of an input. `kept` finds an item of an answer by its id. A conversation that goes on may add nothing.
pub fn messages(
    input: Input,
    goes_on: bool,
    limits: &Limits,
    kept: impl Fn(&str) -> Option<Value>,
) -> Result<Vec<ChatMessage>, ApiError> {
    let items = match input {
        TextOrList::Text(text) => return Ok(vec![ChatMessage::new("user", text)]),
        TextOrList::List(items) => items,
    };
    if items.is_empty() && !goes_on {
        return Err(ApiError::value("input", "is empty; hint: send at least one item"));
    }
    limits.check_messages("input", items.iter().map(Item::num_parts))?;
    let mut messages = Vec::new();
    for (idx, item) in items.into_iter().enumerate() {
        let field = format!("input[{idx}]");
        let item = if item.is_reference() { referred(item, &field, &kept)? } else { item };
        push(&mut messages, item, &field)?;
    }
    Ok(messages)
}

/// The item that a reference names.
fn referred(item: Item, field: &str, kept: impl Fn(&str) -> Option<Value>) -> Result<Item, ApiError> {
    let id = item.id.ok_or_else(|| ApiError::MissingField { field: format!("{field}.id") })?;
    let found = kept(&id).and_then(|item| serde_json::from_value(item).ok());
    found.ok_or_else(|| unknown(&id))
}

fn push(messages: &mut Vec<ChatMessage>, item: Item, field: &str) -> Result<(), ApiError> {
    let missing = |name: &str| ApiError::MissingField { field: format!("{field}.{name}") };
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = match item.role.as_deref() {
                Some("system" | "developer") => "system",
                Some("user") => "user",
                Some("assistant") => "assistant",
                Some(_) => {
                    let problem = "must be `user`, `assistant`, `system` or `developer`";
                    return Err(ApiError::value(format!("{field}.role"), problem));
                }
                None => return Err(missing("role")),
            };
            let content = item.content.ok_or_else(|| missing("content"))?;
            let text = join(content, &format!("{field}.content"))?;
            match messages.last_mut() {
                // The text of a reply whose reasoning or calls came before.
                Some(last) if role == "assistant" && last.role == role && last.content.is_none() => {
                    last.content = Some(text);
                }
                _ => messages.push(ChatMessage::new(role, text)),
            }
        }
        "function_call" => {
            let arguments = item.arguments.ok_or_else(|| missing("arguments"))?;
            let call = json!({
                "id": item.call_id.ok_or_else(|| missing("call_id"))?,
                "type": "function",
                "function": {
                    "name": item.name.ok_or_else(|| missing("name"))?,
                    "arguments": arguments.into_json(),
                },
            });
            let calls =
                assistant(messages).extra.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(calls) = calls {
                calls.push(call);
            }
        }
        "function_call_output" => {
            let id = item.call_id.ok_or_else(|| missing("call_id"))?;
            let output = join(item.output.ok_or_else(|| missing("output"))?, &format!("{field}.output"))?;
            let extra = Map::from_iter([("tool_call_id".to_owned(), Value::String(id))]);
            messages.push(ChatMessage { role: "tool".into(), content: Some(output), extra });
        }
        "reasoning" => {
            let text = item.content.map(|content| join(content, &format!("{field}.content"))).transpose()?;
            let extra = text.map(|text| ("reasoning_content".to_owned(), Value::String(text)));
            let extra = extra.into_iter().collect();
            messages.push(ChatMessage { role: "assistant".into(), content: None, extra });
        }
        _ => {
            let problem = "must be `message`, `function_call`, `function_call_output`, `reasoning` or \
                           `item_reference`";
            return Err(ApiError::value(format!("{field}.type"), problem));
        }
    }
    Ok(())
}

/// The assistant's message at the end; a new one if another's is there.
fn assistant(messages: &mut Vec<ChatMessage>) -> &mut ChatMessage {
    if messages.last().is_none_or(|last| last.role != "assistant") {
        messages.push(ChatMessage { role: "assistant".into(), content: None, extra: Map::new() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}
