//! Logprobs in the two shapes of OpenAI's API.

use serde::{Serialize, Serializer};
use trunkline_text::Tokenizer;
use utoipa::ToSchema;

use crate::generation::generate::OutputToken;

/// Stands for probabilities that f32 cannot tell from 0, as JSON has no infinity.
const LOWEST_LOGPROB: f32 = -9999.0;

/// `logprobs` of a chat choice.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<ChatTokenLogprob>,
}

/// A generated token of a chat.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    /// Its text; U+FFFD where it is not whole characters.
    pub token: String,
    /// Natural logarithm of its probability in the model's own distribution.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The likeliest tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its text; U+FFFD where it is not whole characters.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// `logprobs` of a completion choice: parallel lists, one entry per token.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    /// Texts; `bytes:\xNN...` where one is not whole characters.
    pub tokens: Vec<String>,
    /// Natural logarithms; null for the first token of a prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// Text to logprob, the sampled token included.
    #[schema(value_type = Vec<Option<HashMap<String, f32>>>)]
    pub top_logprobs: Vec<Option<TextLogprobs>>,
    /// Where each token begins in the choice's text, in characters.
    pub text_offset: Vec<usize>,
}

/// Text to logprob, likeliest first, each text once.
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

/// A token in the chat shape.
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

impl CompletionLogprobs {
    /// Appends what comes behind.
    pub fn append(&mut self, mut more: Self) {
        self.tokens.append(&mut more.tokens);
        self.token_logprobs.append(&mut more.token_logprobs);
        self.top_logprobs.append(&mut more.top_logprobs);
        self.text_offset.append(&mut more.text_offset);
    }
}

/// Appends a token in the completion shape. `offset` is where its text begins; it moves on by the token's text.
pub fn push_completion_token(
    list: &mut CompletionLogprobs,
    tokenizer: &Tokenizer,
    token: &OutputToken,
    offset: &mut usize,
) {
    let text = completion_text(tokenizer, token.id);
    let mut top = TextLogprobs::default();
    for other in &token.top_logprobs {
        // Two ids may have one text; the likelier comes first and stays.
        top.insert(completion_text(tokenizer, other.token_id), other.logprob);
    }
    top.insert(text.clone(), token.logprob);
    list.tokens.push(text);
    list.token_logprobs.push(Some(finite(token.logprob)));
    list.top_logprobs.push(Some(top));
    list.text_offset.push(*offset);
    *offset += token.text.chars().count();
}
