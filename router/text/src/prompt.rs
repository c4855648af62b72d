//! Renders a chat as a prompt in which no message can forge the template's control tokens.
//!
//! A template writes control tokens and messages into one text. To distinguish them afterwards, every control token
//! that a client's text spells is enclosed in two marks before rendering. The marks survive trimming, joining and
//! cutting. After rendering they are removed, and the text between them is encoded as plain text. A message that spells
//! no control token, which is the usual case, is not changed and costs one scan.
//!
//! Control tokens here are those that decoding skips. No client sees one in an output, so no client has reason to send
//! one. Added tokens that decoding shows, such as `<think>`, are recognised everywhere, so that a reply that is sent
//! back has the same tokens.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::chat_template::{ChatMessage, ChatRequest, ChatTemplates};
use crate::error::TextError;
use crate::model_files::ModelText;
use crate::tokenizer::Tokenizer;

/// Unicode's noncharacters for internal use, which occur in no interchanged text.
pub const MARKS: Range<u32> = 0xfdd0..0xfdf0;
/// The first byte of every mark in UTF-8.
const MARKS_FIRST_BYTE: u8 = 0xef;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    pub text: String,
    pub token_ids: Vec<u32>,
}

impl ModelText {
    /// Renders and encodes a chat.
    ///
    /// Control tokens are recognised where the template writes them. In messages, tools and arguments they are plain
    /// text. Only the template adds tokens such as BOS.
    pub fn encode_chat(&self, chat: &ChatRequest) -> Result<ChatPrompt, TextError> {
        let templates = match (&self.chat_templates, &self.chat_template_problem) {
            (Some(templates), _) => templates,
            (None, Some(problem)) => return Err(TextError::TemplateFailed { detail: problem.clone() }),
            (None, None) => return Err(TextError::NoChatTemplate),
        };
        self.encode_chat_with(templates, chat)
    }

    /// Like [`ModelText::encode_chat`], with other templates.
    pub(crate) fn encode_chat_with(
        &self,
        templates: &ChatTemplates,
        chat: &ChatRequest,
    ) -> Result<ChatPrompt, TextError> {
        let mut marks = Marks::of_chat(chat, templates);
        let (text, data) = match Marker::for_chat(chat, &self.tokenizer, &mut marks)? {
            None => (render(templates, chat, &mut marks)?, Vec::new()),
            Some(marker) => marker.unmark(&render(templates, &marker.mark(chat), &mut marks)?),
        };
        let token_ids = self.tokenizer.encode_with_data(&text, &data)?;
        Ok(ChatPrompt { text, token_ids })
    }
}

/// Renders the template, and cuts the text where the last message ends if the output continues that message.
fn render(templates: &ChatTemplates, chat: &ChatRequest, marks: &mut Marks) -> Result<String, TextError> {
    if !chat.continue_final_message {
        return templates.render(chat);
    }
    let end = marks.take()?;
    let mut chat = chat.clone();
    let Some(last) = chat.messages.last_mut() else { return templates.render(&chat) };
    last.content.get_or_insert_default().push(end);
    let mut text = templates.render(&chat)?;
    let at = text.find(end).ok_or_else(|| TextError::InvalidMessage {
        field: "messages".into(),
        problem: "cannot be continued, because the model's template does not write the last one unchanged"
            .into(),
    })?;
    text.truncate(at);
    Ok(text)
}

/// Marks that occur neither in a chat nor in the model's templates.
pub struct Marks {
    free: Vec<char>,
}

impl Marks {
    /// Finds all free marks.
    pub fn of_chat(chat: &ChatRequest, templates: &ChatTemplates) -> Self {
        let mut free: Vec<char> = MARKS.filter_map(char::from_u32).collect();
        each_text(chat, &mut |text| {
            // Few texts contain this byte, with which all marks begin.
            if text.as_bytes().contains(&MARKS_FIRST_BYTE) {
                free.retain(|mark| !text.contains(*mark));
            }
        });
        free.retain(|mark| !templates.contains(*mark));
        Self { free }
    }

    fn take(&mut self) -> Result<char, TextError> {
        self.free.pop().ok_or_else(|| TextError::InvalidMessage {
            field: "messages".into(),
            problem: "contain all of Unicode's noncharacters U+FDD0 to U+FDEF; hint: remove one of them"
                .into(),
        })
    }
}

/// Encloses control tokens in two marks that do not occur in the chat.
pub struct Marker<'a> {
    /// The mark before a control token.
    pub open: char,
    /// The mark after a control token.
    pub close: char,
    tokenizer: &'a Tokenizer,
}

impl<'a> Marker<'a> {
    /// Creates a marker. Returns `None` if no text of the chat spells a control token.
    pub fn for_chat(
        chat: &ChatRequest,
        tokenizer: &'a Tokenizer,
        marks: &mut Marks,
    ) -> Result<Option<Self>, TextError> {
        let mut is_needed = false;
        each_text(chat, &mut |text| is_needed |= !tokenizer.control_spellings(text).is_empty());
        if !is_needed {
            return Ok(None);
        }
        Ok(Some(Self { open: marks.take()?, close: marks.take()?, tokenizer }))
    }

    /// Returns the chat with its control tokens enclosed in marks.
    pub fn mark(&self, chat: &ChatRequest) -> ChatRequest {
        let object = |fields: &Map<String, Value>| -> Map<String, Value> {
            fields.iter().map(|(name, value)| (self.mark_text(name), self.mark_value(value))).collect()
        };
        ChatRequest {
            messages: chat
                .messages
                .iter()
                .map(|message| ChatMessage {
                    role: self.mark_text(&message.role),
                    content: message.content.as_deref().map(|text| self.mark_text(text)),
                    extra: object(&message.extra),
                })
                .collect(),
            tools: chat.tools.iter().map(|tool| self.mark_value(tool)).collect(),
            kwargs: object(&chat.kwargs),
            ..*chat
        }
    }

    fn mark_text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut start = 0;
        for range in self.tokenizer.control_spellings(text) {
            out.push_str(&text[start..range.start]);
            out.push(self.open);
            out.push_str(&text[range.clone()]);
            out.push(self.close);
            start = range.end;
        }
        out.push_str(&text[start..]);
        out
    }

    fn mark_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark_text(text)),
            Value::Array(items) => items.iter().map(|item| self.mark_value(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, item)| (self.mark_text(name), self.mark_value(item))).collect()
            }
            other => other.clone(),
        }
    }

    fn is_control_token(&self, text: &str) -> bool {
        matches!(self.tokenizer.control_spellings(text).as_slice(), [only] if only.len() == text.len())
    }

    /// Returns the text without marks, and the ranges of it that are data.
    ///
    /// If the template has cut off a mark's partner, the mark becomes an empty range, which no control token crosses.
    pub fn unmark(&self, marked: &str) -> (String, Vec<Range<usize>>) {
        let is_mark = |c: char| c == self.open || c == self.close;
        let mut text = String::with_capacity(marked.len());
        let mut data = Vec::new();
        let mut rest = marked;
        while let Some(at) = rest.find(is_mark) {
            text.push_str(&rest[..at]);
            let mark = rest[at..].chars().next().unwrap_or_default();
            rest = &rest[at + mark.len_utf8()..];
            let inner = rest.find(is_mark).map(|end| &rest[..end]).filter(|inner| {
                mark == self.open
                    && rest[inner.len()..].starts_with(self.close)
                    && self.is_control_token(inner)
            });
            let start = text.len();
            if let Some(inner) = inner {
                text.push_str(inner);
                rest = &rest[inner.len() + self.close.len_utf8()..];
            }
            data.push(start..text.len());
        }
        text.push_str(rest);
        (text, data)
    }
}

/// Visits every string that a client has sent, including names of fields.
fn each_text(chat: &ChatRequest, visit: &mut impl FnMut(&str)) {
    for message in &chat.messages {
        visit(&message.role);
        visit(message.content.as_deref().unwrap_or_default());
        each_text_of_object(&message.extra, visit);
    }
    chat.tools.iter().for_each(|tool| each_text_of_value(tool, visit));
    each_text_of_object(&chat.kwargs, visit);
}

fn each_text_of_object(fields: &Map<String, Value>, visit: &mut impl FnMut(&str)) {
    for (name, value) in fields {
        visit(name);
        each_text_of_value(value, visit);
    }
}

fn each_text_of_value(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_text_of_value(item, visit)),
        Value::Object(fields) => each_text_of_object(fields, visit),
        _ => {}
    }
}
