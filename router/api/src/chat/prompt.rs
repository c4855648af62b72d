//! The prompt of a chat, for the dialects that have chats.

use trunkline_reply::ReasoningStart;
use trunkline_text::{ChatRequest, ModelText, TextError};

use crate::message_size::{fields_bytes, json_bytes, message_bytes};
use trunkline_generation::model::ReplyStyle;

/// The end of a part with a `cache_control`. The prompt before it is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub message_idx: usize,
    /// The number of bytes of the message's text before the mark.
    pub num_bytes: usize,
    pub ttl_s: i64,
}

/// Returns the approximate size in bytes of the text that the template renders, which decides where it is tokenized.
/// Everything that a client can send counts, not only the messages' text.
pub fn num_bytes(chat: &ChatRequest) -> usize {
    let messages = chat.messages.iter().map(message_bytes);
    let tools = chat.tools.iter().map(json_bytes);
    messages.chain(tools).sum::<usize>() + fields_bytes(&chat.kwargs)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChat {
    pub token_ids: Vec<u32>,
    /// The number of tokens before the mark; `None` without a mark, or if the template cannot render the messages up to
    /// it.
    pub num_marked: Option<u32>,
    /// The place where the reply's reasoning begins, or `None` if it has none.
    pub reasoning: Option<ReasoningStart>,
    /// If true, the prompt ends where a message of the reply begins, so the reply begins with a mark.
    pub opens_message: bool,
}

impl EncodedChat {
    /// Returns where reasoning begins in a reply under a grammar. A reply that continues the content of a message has
    /// none.
    pub fn reasoning_before_grammar(&self) -> Option<ReasoningStart> {
        self.reasoning.filter(|start| self.opens_message || *start == ReasoningStart::InPrompt)
    }
}

/// Renders and tokenizes a chat, for a model with this style of replies.
pub fn encode(
    text: &ModelText,
    chat: &ChatRequest,
    mark: Option<Mark>,
    style: ReplyStyle,
) -> Result<EncodedChat, TextError> {
    let whole = text.encode_chat(chat)?;
    let ends_with = |mark: &str| whole.text.trim_end().ends_with(mark);
    let reasoning = match style.reasons {
        true if ends_with(style.marks.open()) => Some(ReasoningStart::InPrompt),
        true if !ends_with(style.marks.close()) => Some(ReasoningStart::InReply),
        _ => None,
    };
    let opens_message = ends_with(style.marks.message());
    let mut prompt = EncodedChat { token_ids: whole.token_ids, num_marked: None, reasoning, opens_message };
    let Some(Mark { message_idx, num_bytes, .. }) = mark else { return Ok(prompt) };
    let mut before = chat.clone();
    before.add_generation_prompt = false;
    before.continue_final_message = false;
    before.messages.truncate(message_idx + 1);
    if let Some(content) = before.messages.last_mut().and_then(|message| message.content.as_mut()) {
        content.truncate(num_bytes);
    }
    // Some templates refuse a chat that ends here. Then the whole prompt is pinned.
    let before = text.encode_chat(&before).ok();
    let all = &prompt.token_ids;
    let num_common = |before: Vec<u32>| all.iter().zip(&before).take_while(|(a, b)| a == b).count() as u32;
    prompt.num_marked = before.map(|encoded| num_common(encoded.token_ids));
    Ok(prompt)
}
