//! The steps from a checked chat to a complete request, shared by all dialects that have chats.

use serde_json::{Map, Value};
use trunkline_text::{ChatMessage, ChatRequest, EncodeSpecial, ModelText};

use super::prompt::{self, EncodedChat, Mark};
use super::reply::ReplyPlan;
use super::tools::Tools;
use super::{call_ids, system_messages};
use crate::pipeline::Scope;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::grammars::{AskedBudget, CompiledGrammar};
use trunkline_generation::request::checked::CheckedParams;
use trunkline_generation::request::ready::{GenerationRequest, Prompt};
use trunkline_generation::request::retention::Breakpoint;
use trunkline_generation::served::ServedModel;

/// A chat and the way to read its reply.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub chat: Unencoded,
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
        let (request, reply, ()) = self.complete_with(scope, params, grammar, 0, |_| Ok(())).await?;
        Ok((request, reply))
    }

    /// Like [`Self::complete`], of a chat that `add` completes, as [`encode`] does.
    pub async fn complete_with<T: Send + 'static>(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        num_added_bytes: usize,
        add: impl FnOnce(&mut ChatRequest) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(GenerationRequest, ReplyPlan, T), ApiError> {
        let served = &scope.app.served;
        let style = served.model.reply;
        let Self { chat, hides_reasoning, reasoning_budget } = self;
        let mark = chat.mark;
        let (prompt, tools, added) =
            encode(served, &scope.arrival.caller, chat, num_added_bytes, add).await?;
        let is_constrained = grammar.is_some();
        let reasoning = if is_constrained { prompt.reasoning_before_grammar() } else { prompt.reasoning };
        let plan = if is_constrained { ReplyPlan::constrained } else { ReplyPlan::new };
        let reply = plan(style, &tools, reasoning, hides_reasoning);
        let prediction_token_ids = match params.prediction() {
            Some(text) => {
                let (num_bytes, text) = (text.len(), text.to_owned());
                let encode = move |model: &ModelText| model.tokenizer.encode(&text, EncodeSpecial::Plain);
                served.tokenize(&scope.arrival.caller, num_bytes, encode).await?
            }
            None => Vec::new(),
        };
        let grammar = match (grammar, reasoning_budget, reasoning) {
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
            breakpoint: mark.map(|mark| Breakpoint { ttl_s: mark.ttl_s, num_tokens }),
            ..Prompt::default()
        })?;
        Ok((request, reply, added))
    }
}

/// A chat that is not tokenized yet, without its tools.
#[derive(Debug, Clone)]
pub struct Unencoded {
    /// The messages and the variables for the chat template.
    pub chat: ChatRequest,
    /// The position of the last `cache_control`.
    pub mark: Option<Mark>,
    pub tools: Tools,
}

/// Completes a chat with `add`, which adds text of `num_added_bytes`, writes the tools into it, and tokenizes it. If
/// the text is long, all of this runs on the blocking pool. Also returns the tools and the result of `add`.
pub async fn encode<T: Send + 'static>(
    served: &ServedModel,
    caller: &Caller,
    unencoded: Unencoded,
    num_added_bytes: usize,
    add: impl FnOnce(&mut ChatRequest) -> Result<T, ApiError> + Send + 'static,
) -> Result<(EncodedChat, Tools, T), ApiError> {
    let Unencoded { mut chat, mut mark, tools } = unencoded;
    let style = served.model.reply;
    let num_bytes = prompt::num_bytes(&chat) + tools.num_bytes() + num_added_bytes;
    let encode = move |text: &ModelText| {
        let added = add(&mut chat)?;
        call_ids::fit(&mut chat.messages, style.call_ids);
        fit_system_messages(text, &mut chat, &mut mark);
        tools.describe(&mut chat, style.knows_tools(), &mut mark);
        Ok::<_, ApiError>((prompt::encode(text, &chat, mark, style)?, tools, added))
    };
    served.tokenize(caller, num_bytes, encode).await
}

/// Adds reasoning to a message of the assistant, on a new line if it has some already.
pub fn add_reasoning(message: &mut ChatMessage, text: &str) {
    let reasoning = message.extra.entry("reasoning_content").or_insert_with(|| "".into());
    if let Value::String(reasoning) = reasoning {
        reasoning.push_str(if reasoning.is_empty() || text.is_empty() { "" } else { "\n" });
        reasoning.push_str(text);
    }
}

/// Merges system messages if the template takes only a first one.
pub fn fit_system_messages(text: &ModelText, chat: &mut ChatRequest, mark: &mut Option<Mark>) {
    if text.chat_templates.as_ref().is_some_and(|templates| !templates.takes_later_system_messages()) {
        system_messages::merge(&mut chat.messages, mark);
    }
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
