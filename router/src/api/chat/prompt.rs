//! The prompt of a chat, for the dialects that have chats.

use trunkline_reply::{ReasoningMarks, ReasoningStart};
use trunkline_text::{ChatRequest, ModelText, TextError};

use crate::model::ReplyStyle;

/// The end of a part with a `cache_control`: what stands before it is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Its message.
    pub message_idx: usize,
    /// Bytes of the message's text up to it.
    pub num_bytes: usize,
    /// Seconds to keep what stands before it.
    pub ttl_s: i64,
}

/// Bytes of text that become the prompt, but for the template's own.
pub fn num_bytes(chat: &ChatRequest) -> usize {
    chat.messages.iter().map(|message| message.content.as_ref().map_or(0, String::len)).sum()
}

/// A tokenized chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedChat {
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// How many of them stand before the mark; none if that cannot be said.
    pub num_marked: Option<u32>,
    /// It ends inside of the reply's reasoning.
    pub opens_reasoning: bool,
    /// It ends right behind the reply's reasoning: there is none.
    pub closes_reasoning: bool,
}

impl EncodedChat {
    /// Returns where the reasoning of a reply begins, if there may be any.
    pub fn reasoning(&self, style: ReplyStyle) -> Option<ReasoningStart> {
        if self.opens_reasoning {
            return style.reasons.then_some(ReasoningStart::InPrompt);
        }
        (style.reasons && !self.closes_reasoning).then_some(ReasoningStart::InReply)
    }
}

/// The prompt, for a model that reasons between these marks.
pub fn encode(
    text: &ModelText,
    chat: &ChatRequest,
    mark: Option<Mark>,
    reasoning: ReasoningMarks,
) -> Result<EncodedChat, TextError> {
    let whole = text.encode_chat(chat)?;
    let opens_reasoning = whole.text.trim_end().ends_with(reasoning.open());
    let closes_reasoning = whole.text.trim_end().ends_with(reasoning.close());
    let mut prompt =
        EncodedChat { token_ids: whole.token_ids, num_marked: None, opens_reasoning, closes_reasoning };
    let Some(Mark { message_idx, num_bytes, .. }) = mark else { return Ok(prompt) };
    let mut before = chat.clone();
    before.add_generation_prompt = false;
    before.continue_final_message = false;
    before.messages.truncate(message_idx + 1);
    if let Some(content) = before.messages.last_mut().and_then(|message| message.content.as_mut()) {
        content.truncate(num_bytes);
    }
    // Where the template does not take the beginning alone, all is kept.
    let before = text.encode_chat(&before).ok();
    let all = &prompt.token_ids;
    let num_common = |before: Vec<u32>| all.iter().zip(&before).take_while(|(a, b)| a == b).count() as u32;
    prompt.num_marked = before.map(|encoded| num_common(encoded.token_ids));
    Ok(prompt)
}
