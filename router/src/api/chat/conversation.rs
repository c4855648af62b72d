//! The steps from a checked chat to a complete request, shared by all dialects that have chats.

use serde_json::{Map, Value};
use trunkline_text::{ChatRequest, EncodeSpecial, ModelText};

use super::call_ids;
use super::prompt::{self, EncodedChat, Mark};
use super::reply::ReplyPlan;
use super::tools::Tools;
use crate::api::pipeline::Scope;
use crate::error::ApiError;
use crate::generation::served::ServedModel;
use crate::grammars::{AskedBudget, CompiledGrammar};
use crate::request::checked::CheckedParams;
use crate::request::ready::{GenerationRequest, Prompt};
use crate::request::retention::Breakpoint;
use crate::tenants::Caller;

/// A chat and the way to read its reply.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The messages and the variables for the chat template.
    pub chat: ChatRequest,
    /// The position of the last `cache_control`.
    pub mark: Option<Mark>,
    pub tools: Tools,
    pub hides_reasoning: bool,
    /// The most tokens of reasoning.
    pub reasoning_budget: Option<AskedBudget>,
}

impl Conversation {
    /// Tokenizes the chat and completes the request with it. Also returns the plan for reading the reply.
    pub async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
    ) -> Result<(GenerationRequest, ReplyPlan), ApiError> {
        let served = &scope.app.served;
        let style = served.model.reply;
        let prompt = encode(served, &scope.arrival.caller, self.chat, self.mark, &self.tools).await?;
        let reasoning = match &grammar {
            Some(_) => prompt.reasoning_before_grammar(style),
            None => prompt.reasoning(style),
        };
        let reply = match &grammar {
            Some(_) => ReplyPlan::constrained(style, &self.tools, reasoning, self.hides_reasoning),
            None => ReplyPlan::new(style, &self.tools, reasoning, self.hides_reasoning),
        };
        let prediction_token_ids = match params.prediction() {
            Some(text) => {
                let text = text.to_owned();
                let encode = move |model: &ModelText| model.tokenizer.encode(&text, EncodeSpecial::Plain);
                served
                    .tokenize(&scope.arrival.caller, params.prediction().map_or(0, str::len), encode)
                    .await?
            }
            None => Vec::new(),
        };
        let grammar = match (grammar, self.reasoning_budget, reasoning) {
            (Some(grammar), budget, _) => Some(grammar.after(reasoning, budget)),
            (None, Some(budget), Some(start)) => Some(served.grammars.budgeted(budget, start).await?),
            (None, ..) => None,
        };
        let num_tokens = prompt.num_marked;
        let request = params.with_prompt(Prompt {
            token_ids: prompt.token_ids,
            grammar,
            shown_token_ids: reply.shown_token_ids(&served.model.text.tokenizer),
            sections: reasoning.map(|_| reply.sections()),
            prediction_token_ids,
            breakpoint: self.mark.map(|mark| Breakpoint { ttl_s: mark.ttl_s, num_tokens }),
        })?;
        Ok((request, reply))
    }
}

/// Writes the tools into the chat and tokenizes it.
pub async fn encode(
    served: &ServedModel,
    caller: &Caller,
    mut chat: ChatRequest,
    mut mark: Option<Mark>,
    tools: &Tools,
) -> Result<EncodedChat, ApiError> {
    let style = served.model.reply;
    call_ids::fit(&mut chat.messages, style.call_ids);
    tools.describe(&mut chat, style.knows_tools(), &mut mark);
    let num_bytes = prompt::num_bytes(&chat);
    served.tokenize(caller, num_bytes, move |text| prompt::encode(text, &chat, mark, style.marks)).await
}

/// Returns the template variables for OpenAI's `reasoning_effort`.
pub fn reasoning_kwargs(effort: Option<&str>) -> Map<String, Value> {
    let mut kwargs = Map::new();
    if let Some(effort) = effort {
        kwargs.insert("enable_thinking".into(), (effort != "none").into());
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    kwargs
}
