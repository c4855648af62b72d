//! What the dialects that have chats do alike: from a checked chat to a request for the device.

use serde_json::{Map, Value};
use trunkline_text::ChatRequest;

use super::call_ids;
use super::prompt::{self as chat_prompt, Mark, Prompt};
use super::reply::ReplyPlan;
use super::tools::Tools;
use crate::api::app::App;
use crate::error::ApiError;
use crate::generation::admission::Admitted;
use crate::request::ready::GenerationRequest;
use crate::request::retention::Breakpoint;
use crate::request::validate::{FieldNames, RawParams, Validator};

/// A chat, and how its reply is to be read.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The messages and what the template is told.
    pub chat: ChatRequest,
    /// The last `cache_control`.
    pub mark: Option<Mark>,
    /// What the model may call.
    pub tools: Tools,
    /// Reasoning is left out of the answer.
    pub hides_reasoning: bool,
}

impl Conversation {
    /// The request for the device. `raw` was checked.
    pub async fn request(
        self,
        app: &App,
        admitted: &Admitted,
        validator: &Validator,
        mut raw: RawParams,
        names: FieldNames,
    ) -> Result<(GenerationRequest, ReplyPlan), ApiError> {
        app.compile(&mut raw, &admitted.caller).await?;
        let prompt = prompt(app, self.chat, self.mark, &self.tools).await?;
        let num_tokens = prompt.num_marked;
        raw.retention.breakpoint = self.mark.map(|mark| Breakpoint { ttl_s: mark.ttl_s, num_tokens });
        let reasoning = app.model.reply.reasoning(&prompt);
        let reply = if let Some(grammar) = &mut raw.grammar {
            grammar.begin_after(reasoning);
            ReplyPlan::constrained(app.model.reply, &self.tools, reasoning, self.hides_reasoning)
        } else {
            ReplyPlan::new(app.model.reply, &self.tools, reasoning, self.hides_reasoning)
        };
        let defaults = &app.model.text.generation_defaults;
        let arrived = (admitted.arrived, &admitted.caller);
        let mut request = validator.validate(arrived, prompt.token_ids, raw, defaults, names)?;
        request.shown_token_ids = reply.shown_token_ids(&app.model.text.tokenizer);
        request.sections = reasoning.map(|_| reply.sections());
        Ok((request, reply))
    }
}

/// A chat's prompt, with the tools in it.
pub async fn prompt(
    app: &App,
    mut chat: ChatRequest,
    mut mark: Option<Mark>,
    tools: &Tools,
) -> Result<Prompt, ApiError> {
    call_ids::fit(&mut chat.messages, &app.model.text);
    tools.describe(&mut chat, app.model.reply.knows_tools(), &mut mark);
    let (num_bytes, marks) = (chat_prompt::num_bytes(&chat), app.model.reply.marks);
    app.tokenize(num_bytes, move |text| chat_prompt::encode(text, &chat, mark, marks)).await
}

/// What OpenAI's `reasoning_effort` means for a template.
pub fn reasoning_kwargs(effort: Option<&str>) -> Map<String, Value> {
    let mut kwargs = Map::new();
    if let Some(effort) = effort {
        kwargs.insert("enable_thinking".into(), (effort != "none").into());
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    kwargs
}
