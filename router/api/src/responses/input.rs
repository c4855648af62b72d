//! The input of a request, and its conversion to messages for a template.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use trunkline_text::ChatMessage;
use utoipa::ToSchema;

use crate::chat::arguments::{Arguments, ArgumentsReader};
use crate::chat::conversation::add_reasoning;
use crate::lists::{Listed, TextOrList};
use crate::message_size::MIN_RENDERED_BYTES;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{MAX_MESSAGE_PARTS, MAX_MESSAGES, ServerLimits};

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
    /// The summary of reasoning, which stands for a missing or empty content.
    pub summary: Option<Texts>,
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
    /// Returns the id of the item that this one refers to, if it is a reference.
    pub fn referred(&self) -> Option<&str> {
        let is_reference = match self.kind.as_deref() {
            Some(kind) => kind == "item_reference",
            None => self.role.is_none() && self.content.is_none(),
        };
        self.id.as_deref().filter(|_| is_reference)
    }

    /// Returns the number of content parts; a string counts as none.
    fn num_parts(&self) -> usize {
        self.content.as_ref().map_or(0, TextOrList::num_listed)
    }

    /// Returns the approximate size in bytes of the text that a template renders.
    fn num_bytes(&self) -> usize {
        let texts = [&self.content, &self.summary, &self.output].into_iter().flatten().map(text_bytes);
        let names = [&self.call_id, &self.name].into_iter().flatten().map(String::len);
        let arguments = self.arguments.as_ref().map_or(0, Arguments::num_bytes);
        MIN_RENDERED_BYTES + arguments + texts.chain(names).sum::<usize>()
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

fn text_bytes(texts: &Texts) -> usize {
    match texts {
        TextOrList::Text(text) => text.len(),
        TextOrList::List(parts) => {
            let texts = parts.iter().flat_map(|part| [&part.text, &part.refusal]).flatten();
            texts.map(String::len).sum()
        }
    }
}

/// Returns the approximate size in bytes of the text that a template renders for an input.
pub fn num_bytes(input: &Input) -> usize {
    match input {
        TextOrList::Text(text) => text.len(),
        TextOrList::List(items) => items.iter().map(Item::num_bytes).sum(),
    }
}

/// Checks what can be checked of an input without reading stored items.
pub fn check(input: &Input, continues_response: bool, limits: &ServerLimits) -> Result<(), ApiError> {
    let TextOrList::List(items) = input else { return Ok(()) };
    if items.is_empty() && !continues_response {
        return Err(ApiError::value("input", "is empty; hint: send at least one item"));
    }
    limits.check_messages("input", items.iter().map(Item::num_parts))
}

impl Listed for Item {
    const LIMIT: usize = MAX_MESSAGES;
    const NAMES: &'static str = "items";
}

impl Listed for TextPart {
    const LIMIT: usize = MAX_MESSAGE_PARTS;
    const NAMES: &'static str = "parts";
}

/// Joins the texts of parts, with `separator` between those that are not empty.
fn join(texts: Texts, separator: &str, field: &str) -> Result<String, ApiError> {
    let parts = match texts {
        TextOrList::Text(text) => return Ok(text),
        TextOrList::List(parts) => parts,
    };
    let mut joined = String::new();
    for (idx, part) in parts.into_iter().enumerate() {
        let (name, text) = match part.kind.as_str() {
            "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => ("text", part.text),
            "refusal" => ("refusal", part.refusal),
            kind => {
                return Err(ApiError::part_type(format!("{field}[{idx}].type"), kind, "is not a text part"));
            }
        };
        let missing = || ApiError::MissingField { field: format!("{field}[{idx}].{name}") };
        let text = text.ok_or_else(missing)?;
        joined.push_str(if joined.is_empty() || text.is_empty() { "" } else { separator });
        joined.push_str(&text);
    }
    Ok(joined)
}

/// Converts the items of an input to messages. `stored_item` returns the item of a stored response with an id.
pub fn messages(
    input: Input,
    stored_item: impl Fn(&str) -> Result<Item, ApiError>,
) -> Result<Vec<ChatMessage>, ApiError> {
    let items = match input {
        TextOrList::Text(text) => return Ok(vec![ChatMessage::new("user", text)]),
        TextOrList::List(items) => items,
    };
    let mut conversion = Conversion::default();
    for (idx, item) in items.into_iter().enumerate() {
        let item = match item.referred() {
            Some(id) => stored_item(id)?,
            None => item,
        };
        conversion.push(item, &format!("input[{idx}]"))?;
    }
    Ok(conversion.messages)
}

/// Reads an output item of a stored response.
#[expect(clippy::expect_used, reason = "the server has written the item")]
pub fn stored_item(json: &[u8]) -> Item {
    serde_json::from_slice(json).expect("an output item can be an input item")
}

/// Converts the items of a reply to messages, as they are converted when a client sends them.
#[expect(clippy::expect_used, reason = "the server has written the items")]
pub fn reply_messages(output: &[Value]) -> Vec<ChatMessage> {
    let mut conversion = Conversion::default();
    for item in output {
        let item = Item::deserialize(item).expect("an output item can be an input item");
        conversion.push(item, "output").expect("an output item has all fields");
    }
    conversion.messages
}

/// The messages that items have made so far.
#[derive(Default)]
struct Conversion {
    messages: Vec<ChatMessage>,
    reader: ArgumentsReader,
}

impl Conversion {
    fn push(&mut self, item: Item, field: &str) -> Result<(), ApiError> {
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
                let text = join(content, "", &format!("{field}.content"))?;
                match role {
                    "assistant" => self.unfinished().content.get_or_insert_default().push_str(&text),
                    role => self.messages.push(ChatMessage::new(role, text)),
                }
            }
            "function_call" => {
                let arguments = item.arguments.ok_or_else(|| missing("arguments"))?;
                let call = json!({
                    "id": item.call_id.ok_or_else(|| missing("call_id"))?,
                    "type": "function",
                    "function": {
                        "name": item.name.ok_or_else(|| missing("name"))?,
                        "arguments": self.reader.to_json(arguments),
                    },
                });
                let last = self.last_if(|last| last.role == "assistant");
                let calls = last.extra.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(calls) = calls {
                    calls.push(call);
                }
            }
            "function_call_output" => {
                let id = item.call_id.ok_or_else(|| missing("call_id"))?;
                let output = item.output.ok_or_else(|| missing("output"))?;
                let output = join(output, "", &format!("{field}.output"))?;
                let extra = Map::from_iter([("tool_call_id".to_owned(), Value::String(id))]);
                self.messages.push(ChatMessage { role: "tool".into(), content: Some(output), extra });
            }
            "reasoning" => {
                let content = item.content.map(|texts| join(texts, "", &format!("{field}.content")));
                let summary = item.summary.map(|texts| join(texts, "\n", &format!("{field}.summary")));
                let texts = [content.transpose()?, summary.transpose()?];
                // A client may have no more of the reasoning than its encrypted form, which only its maker can read.
                if let Some(text) = texts.into_iter().flatten().find(|text| !text.is_empty()) {
                    add_reasoning(self.unfinished(), &text);
                }
            }
            "item_reference" => return Err(missing("id")),
            _ => {
                let problem = "must be `message`, `function_call`, `function_call_output`, `reasoning` or \
                               `item_reference`";
                return Err(ApiError::value(format!("{field}.type"), problem));
            }
        }
        Ok(())
    }

    /// Returns the assistant's message to which more text or reasoning belongs: the last message if it has no text yet,
    /// or if its calls have no results yet. Templates refuse other messages before the results.
    fn unfinished(&mut self) -> &mut ChatMessage {
        self.last_if(|last| {
            last.role == "assistant" && (last.content.is_none() || last.extra.contains_key("tool_calls"))
        })
    }

    /// Returns the last message if it `fits`, or else a new message of the assistant.
    fn last_if(&mut self, fits: impl Fn(&ChatMessage) -> bool) -> &mut ChatMessage {
        if !self.messages.last().is_some_and(fits) {
            self.messages.push(ChatMessage { role: "assistant".into(), content: None, extra: Map::new() });
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}
