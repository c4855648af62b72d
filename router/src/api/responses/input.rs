//! The input of a request, and its conversion to messages for a template.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use super::unknown;
use crate::api::chat::arguments::{Arguments, ArgumentsReader};
use crate::api::lists::{Listed, TextOrList};
use crate::error::ApiError;
use crate::limits::{MAX_MESSAGE_PARTS, MAX_MESSAGES, ServerLimits};

/// A user message as a string, or a list of messages, calls and results, oldest first.
pub type Input = TextOrList<Item>;
/// A string, or a list of text parts.
type Texts = TextOrList<TextPart>;

/// An item of the input. Its type decides which fields it has.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesItem)]
pub struct Item {
    /// `message`, `function_call`, `function_call_output`, `reasoning` or `item_reference`. The default is
    /// `item_reference` for an item that has only an `id`, otherwise `message`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// For a reference, the id of an item in a stored response. Ignored for other items.
    pub id: Option<String>,
    /// The role of a message: `user`, `assistant`, `system` or `developer`.
    pub role: Option<String>,
    /// The content of a message or of reasoning: a string, or a list of text parts.
    pub content: Option<Texts>,
    /// The id of a call, repeated by its result.
    pub call_id: Option<String>,
    /// The name of the called function.
    pub name: Option<String>,
    /// The arguments of a call, as JSON text or as an object.
    pub arguments: Option<Arguments>,
    /// The output of a call: a string, or a list of text parts.
    pub output: Option<Texts>,
}

impl Item {
    fn is_reference(&self) -> bool {
        match self.kind.as_deref() {
            Some(kind) => kind == "item_reference",
            None => self.id.is_some() && self.role.is_none() && self.content.is_none(),
        }
    }

    /// Returns the number of content parts; a string counts as none.
    fn num_parts(&self) -> usize {
        self.content.as_ref().map_or(0, TextOrList::num_listed)
    }
}

/// A text part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesPart)]
pub struct TextPart {
    /// `input_text`, `output_text`, `text`, `reasoning_text`, `summary_text` or `refusal`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of the part.
    pub text: Option<String>,
    /// The text of a `refusal` part.
    pub refusal: Option<String>,
}

impl Listed for Item {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "items";
}

impl Listed for TextPart {
    const LIMIT: usize = MAX_MESSAGE_PARTS;
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
            return Err(ApiError::part_type(
                format!("{field}[{idx}].type"),
                &part.kind,
                "is not a text part",
            ));
        }
        let missing = || ApiError::MissingField { field: format!("{field}[{idx}].text") };
        joined.push_str(&part.text.or(part.refusal).ok_or_else(missing)?);
    }
    Ok(joined)
}

/// Converts an input to messages. `stored_item` looks up an item of a stored response by its id. The input may be
/// empty if the request continues a stored response.
pub fn messages(
    input: Input,
    continues_response: bool,
    limits: &ServerLimits,
    stored_item: impl Fn(&str) -> Option<Value>,
) -> Result<Vec<ChatMessage>, ApiError> {
    let items = match input {
        TextOrList::Text(text) => return Ok(vec![ChatMessage::new("user", text)]),
        TextOrList::List(items) => items,
    };
    if items.is_empty() && !continues_response {
        return Err(ApiError::value("input", "is empty; hint: send at least one item"));
    }
    limits.check_messages("input", items.iter().map(Item::num_parts))?;
    let (mut messages, mut reader) = (Vec::new(), ArgumentsReader::default());
    for (idx, item) in items.into_iter().enumerate() {
        let field = format!("input[{idx}]");
        let item = if item.is_reference() { referred(item, &field, &stored_item)? } else { item };
        push(&mut messages, &mut reader, item, &field)?;
    }
    Ok(messages)
}

/// Returns the stored item that a reference names.
fn referred(item: Item, field: &str, stored_item: impl Fn(&str) -> Option<Value>) -> Result<Item, ApiError> {
    let id = item.id.ok_or_else(|| ApiError::MissingField { field: format!("{field}.id") })?;
    let found = stored_item(&id).and_then(|item| serde_json::from_value(item).ok());
    found.ok_or_else(|| unknown(&id))
}

fn push(
    messages: &mut Vec<ChatMessage>,
    reader: &mut ArgumentsReader,
    item: Item,
    field: &str,
) -> Result<(), ApiError> {
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
                // This is the text of a reply whose reasoning or calls came first.
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
                    "arguments": reader.to_json(arguments),
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

/// Returns the last message if it is the assistant's, or else a new assistant message.
fn assistant(messages: &mut Vec<ChatMessage>) -> &mut ChatMessage {
    if messages.last().is_none_or(|last| last.role != "assistant") {
        messages.push(ChatMessage { role: "assistant".into(), content: None, extra: Map::new() });
    }
    let last = messages.len() - 1;
    &mut messages[last]
}
