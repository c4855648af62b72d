//! Logprobs in the two forms of OpenAI's API.

use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use trunkline_text::Tokenizer;
use utoipa::ToSchema;

use trunkline_generation::generate::OutputToken;

/// Replaces lower logprobs, including that of probability 0, because JSON has no infinity.
const LOWEST_LOGPROB: f32 = -9999.0;

/// The logprobs of a chat choice.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry for each generated token.
    pub content: Vec<ChatTokenLogprob>,
}

/// A generated token of a chat with its logprob.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// The text of the token. Bytes that are not a whole character are replaced by U+FFFD.
    pub token: String,
    /// The natural logarithm of the token's probability in the model's unmodified distribution.
    pub logprob: f32,
    /// The bytes of the token.
    pub bytes: Vec<u8>,
    /// The likeliest tokens at this position.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens at a position.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TopLogprob {
    /// The text of the token. Bytes that are not a whole character are replaced by U+FFFD.
    pub token: String,
    /// The natural logarithm of the token's probability in the model's unmodified distribution.
    pub logprob: f32,
    /// The bytes of the token.
    pub bytes: Vec<u8>,
}

/// The logprobs of a completion choice: parallel lists with one entry for each token.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// The text of each token, or `bytes:\xNN...` if it is not whole characters.
    pub tokens: Vec<String>,
    /// The natural logarithm of each token's probability; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The logprobs of the likeliest tokens and the sampled token, by their text.
    #[schema(value_type = Vec<Option<HashMap<String, f32>>>)]
    pub top_logprobs: Vec<Option<TextLogprobs>>,
    /// The offset of each token in the choice's text, in characters.
    pub text_offset: Vec<usize>,
}

/// The logprobs of a completion choice: those of its prompt, which all of its choices share, and its own.
#[derive(Debug, Clone, Default)]
pub struct ChoiceLogprobs {
    pub prompt: Option<Arc<CompletionLogprobs>>,
    pub own: CompletionLogprobs,
}

impl Serialize for ChoiceLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(prompt) = &self.prompt else { return self.own.serialize(serializer) };
        let own = &self.own;
        let mut lists = serializer.serialize_struct("CompletionLogprobs", 4)?;
        lists.serialize_field("tokens", &Chain(&prompt.tokens, &own.tokens))?;
        lists.serialize_field("token_logprobs", &Chain(&prompt.token_logprobs, &own.token_logprobs))?;
        lists.serialize_field("top_logprobs", &Chain(&prompt.top_logprobs, &own.top_logprobs))?;
        lists.serialize_field("text_offset", &Chain(&prompt.text_offset, &own.text_offset))?;
        lists.end()
    }
}

/// Two lists that are written as one.
struct Chain<'a, T>(&'a [T], &'a [T]);

impl<T: Serialize> Serialize for Chain<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().chain(self.1))
    }
}

/// A map from distinct texts to logprobs, the likeliest first.
#[derive(Debug, Clone, Default)]
pub struct TextLogprobs(Vec<(String, f32)>);

impl TextLogprobs {
    fn insert(&mut self, text: String, logprob: f32) {
        if !self.0.iter().any(|(known, _)| *known == text) {
            self.0.push((text, finite(logprob)));
        }
    }
}

impl Serialize for TextLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(text, logprob)| (text, logprob)))
    }
}

pub(super) fn finite(logprob: f32) -> f32 {
    logprob.max(LOWEST_LOGPROB)
}

fn bytes_of(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    tokenizer.token_bytes(id).unwrap_or_default()
}

pub fn chat_token(tokenizer: &Tokenizer, token: &OutputToken) -> ChatTokenLogprob {
    let text = |id| {
        let bytes = bytes_of(tokenizer, id);
        (String::from_utf8_lossy(bytes).into_owned(), bytes.to_vec())
    };
    let (own, bytes) = text(token.id);
    let top = token.top_logprobs.iter().map(|top| {
        let (token, bytes) = text(top.token_id);
        TopLogprob { token, logprob: finite(top.logprob), bytes }
    });
    ChatTokenLogprob { token: own, logprob: finite(token.logprob), bytes, top_logprobs: top.collect() }
}

fn completion_text(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = bytes_of(tokenizer, id);
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

/// Appends a token in the completion form. `offset` is the start of the token's text and is advanced past it.
pub fn push_completion_token(
    list: &mut CompletionLogprobs,
    tokenizer: &Tokenizer,
    token: &OutputToken,
    offset: &mut usize,
) {
    let text = completion_text(tokenizer, token.id);
    let mut top = TextLogprobs::default();
    for other in &token.top_logprobs {
        // Two ids may have the same text. The likelier one comes first and is kept.
        top.insert(completion_text(tokenizer, other.token_id), other.logprob);
    }
    top.insert(text.clone(), token.logprob);
    list.tokens.push(text);
    list.token_logprobs.push(Some(finite(token.logprob)));
    list.top_logprobs.push(Some(top));
    list.text_offset.push(*offset);
    *offset += token.text.chars().count();
}
