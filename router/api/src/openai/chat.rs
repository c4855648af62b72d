//! The handler of `/v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use trunkline_text::{ChatPrompt, ChatRequest, Tokenizer};

use super::chat_stream::{ChatStream, Head, Shown, chat_logprobs};
use super::chat_types::{Answer, AssistantMessage, Body, Choice};
use super::messages::{Message, last_mark, to_chat};
use super::prompt_logprobs::PromptLogprobs;
use super::reasoning::budget;
use super::tools::{ToolCall, tools};
use super::{ErrorResponse, StreamUsage, foreign, system_fingerprint};
use crate::app::App;
use crate::chat::conversation::{Conversation, Unencoded, fit_system_messages, reasoning_kwargs};
use crate::chat::prompt as chat_prompt;
use crate::chat::reply::Reply;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::Named;
use trunkline_generation::answer_memory::repeated_ids_bytes;
use trunkline_generation::fold::{Folded, KeepTokens};
use trunkline_generation::generate::Usage;
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::ready::GenerationRequest;
use trunkline_generation::request::service_tier::openai_name;
use trunkline_generation::request::tokens::PromptLogprobsField;
use trunkline_http::{IgnoredFields, OtherFields, Refused, parse_noting};

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "best_of", neutral: &["1"], hint: "use `n`" },
    Refused { field: "functions", neutral: &["[]"], hint: "use `tools`" },
    Refused { field: "function_call", neutral: &["\"none\"", "\"auto\""], hint: "use `tools`" },
    Refused { field: "modalities", neutral: &["[\"text\"]", "[]"], hint: "this server generates only text" },
    Refused { field: "audio", neutral: &[], hint: "this server generates only text" },
    Refused { field: "verbosity", neutral: &["\"medium\""], hint: "ask for it in the prompt" },
    Refused { field: "web_search_options", neutral: &[], hint: "leave it out" },
    Refused {
        field: "chat_template",
        neutral: &[],
        hint: "the server uses one template; its operator can choose it with `--chat-template`",
    },
    Refused {
        field: "add_special_tokens",
        neutral: &["false"],
        hint: "the template has them; send token ids to /v1/completions for full control",
    },
    Refused { field: "documents", neutral: &["[]"], hint: "put them into the messages" },
    Refused { field: "echo", neutral: &["false"], hint: "leave it out" },
    Refused {
        field: "tool_prompt",
        neutral: &[],
        hint: "the chat template describes tools; add your own words as a message",
    },
];

/// Generates the next messages of a chat, whole or as events.
#[utoipa::path(
    post, path = "/v1/chat/completions", request_body = Body,
    responses(
        (
            status = 200, body = Answer,
            description = "The replies; a stream of ChatCompletionChunk events if `stream` is true",
        ),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(
        pipeline::answer::<_, ErrorResponse>(&app, request, |body, ignored| parse_body(body, "", ignored))
            .await,
    )
}

/// Parses the body of a chat. Errors put `prefix` before field names, such as `instances[0].`; it is empty for a
/// whole body.
pub(crate) fn parse_body(body: &[u8], prefix: &str, ignored: &mut IgnoredFields) -> Result<Body, ApiError> {
    let refused = [REFUSED, foreign::REFUSED].concat();
    parse_noting(body, OtherFields { refused: &refused, harmless: foreign::HARMLESS }, prefix, ignored)
}

impl Call for Body {
    type Prompts = Chat;

    fn named(&self) -> Named<'_> {
        self.names()
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Chat>, ApiError> {
        let app = &scope.app;
        app.limits.check_messages("messages", self.messages.iter().map(Message::num_parts))?;
        let params = raw_params(&mut self)?;
        let choice = self.tool_choice.as_ref();
        let tools = tools(self.tools.take(), choice, self.parallel_tool_calls, &app.limits)?;
        // If the reply must consist of calls, `response_format` does not apply to it.
        let format = self.structured().grammar()?;
        let grammar = tools.constrain(app.served.model.reply, format);
        let mark = last_mark(&self.messages)?;
        let num_choices = scope.validator.num_choices(self.n, None, 1)?;
        let reasoning = self.reasoning.as_ref();
        let reasoning_budget = budget(self.thinking_token_budget, self.reasoning_budget_tokens, reasoning)?;
        let is_excluded = reasoning.is_some_and(|reasoning| reasoning.exclude == Some(true));
        let chat = chat_request(&mut self)?;
        let conversation = Conversation {
            chat: Unencoded { chat, mark, tools },
            hides_reasoning: self.include_reasoning.map_or(is_excluded, |include| !include),
            reasoning_budget,
        };
        Ok(Asked {
            params,
            grammar,
            num_choices,
            is_stream: self.stream == Some(true),
            prompts: Chat {
                conversation,
                usage: StreamUsage::of(self.stream_options),
                shows_tier: self.service_tier.is_some(),
                predicted: self.prediction.is_some(),
                shows_timings: self.timings_per_token == Some(true),
                shows_token_ids: self.return_token_ids == Some(true),
                is_tgi_client: self.model.as_deref() == Some("tgi"),
            },
        })
    }
}

pub(crate) struct Chat {
    conversation: Conversation,
    usage: StreamUsage,
    shows_tier: bool,
    predicted: bool,
    shows_timings: bool,
    shows_token_ids: bool,
    is_tgi_client: bool,
}

impl Prompts for Chat {
    type Answer = ChatAnswer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        num_choices: NumChoices,
    ) -> Result<Completed<ChatAnswer>, ApiError> {
        let names_tool = self.conversation.chat.tools.is_named();
        let (request, reply) = self.conversation.complete(scope, params, grammar).await?;
        let model = &scope.app.served.model;
        let head = Head {
            id: format!("chatcmpl-{}", trunkline_base::random::id()),
            created: unix_s(),
            model: params.model().to_owned(),
            system_fingerprint: system_fingerprint(&scope.shard),
            service_tier: self.shows_tier.then(|| openai_name(request.sequence.priority)),
        };
        let shown = Shown {
            reply,
            names_tool,
            stops: request.delivery.stops.clone(),
            logprobs: request.sequence.sampling.logprobs,
            usage: self.usage,
            predicted: self.predicted,
            timings: self.shows_timings,
            prompt_token_ids: self.shows_token_ids.then(|| request.sequence.token_ids.clone()),
            is_tgi_client: self.is_tgi_client,
        };
        let answer = ChatAnswer {
            head,
            shown,
            tokenizer: model.text.tokenizer.clone(),
            num_choices: num_choices.computed,
            prompt_top_logprobs: request.sequence.sampling.prompt_logprobs.map(|num_top| num_top as usize),
        };
        Ok(Completed { requests: vec![request], answer })
    }
}

pub(crate) struct ChatAnswer {
    head: Head,
    shown: Shown,
    tokenizer: Arc<Tokenizer>,
    num_choices: usize,
    prompt_top_logprobs: Option<usize>,
}

impl pipeline::Answer for ChatAnswer {
    type Render = ChatStream;

    fn keeps_tokens(&self) -> KeepTokens {
        let is_needed = self.shown.logprobs || self.shown.prompt_token_ids.is_some();
        if is_needed { KeepTokens::Yes } else { KeepTokens::No }
    }

    fn prompt_bytes(&self, _requests: &[GenerationRequest]) -> usize {
        self.shown.prompt_token_ids.as_ref().map_or(0, |ids| repeated_ids_bytes(ids.len(), 1))
    }

    fn render(self) -> ChatStream {
        ChatStream::new(self.head, self.tokenizer, self.num_choices, self.shown)
    }

    fn whole(self, mut outputs: Vec<Folded>, usage: Usage) -> Response {
        let Self { head, shown, tokenizer, .. } = self;
        let scored = outputs[0].prompt.take().zip(self.prompt_top_logprobs);
        let prompt_logprobs =
            scored.map(|(scored, num_top)| PromptLogprobs::new(scored, tokenizer.clone(), num_top));
        let outputs = outputs.into_iter().enumerate();
        axum::Json(Answer {
            id: head.id,
            object: "chat.completion",
            created: head.created,
            model: head.model,
            system_fingerprint: head.system_fingerprint,
            service_tier: head.service_tier,
            choices: outputs.map(|(index, output)| choice(index, output, &shown, &tokenizer)).collect(),
            usage: shown.usage(usage),
            timings: shown.timings.then(|| usage.into()),
            prompt_logprobs,
            prompt_token_ids: shown.prompt_token_ids,
        })
        .into_response()
    }
}

fn choice(index: usize, folded: Folded, shown: &Shown, tokenizer: &Tokenizer) -> Choice {
    let reply = Reply::of(&shown.reply, folded.text, folded.reason);
    let reasoning = (!reply.reasoning.is_empty()).then_some(reply.reasoning);
    let (finish_reason, stop_reason) = shown.end(folded.reason, reply.calls.len());
    Choice {
        index: index as u32,
        logprobs: shown.logprobs.then(|| chat_logprobs(tokenizer, &folded.tokens)),
        finish_reason,
        stop_reason,
        token_ids: shown.token_ids(&folded.tokens),
        message: AssistantMessage {
            role: "assistant",
            content: (reply.calls.is_empty() || !reply.text.is_empty()).then_some(reply.text),
            reasoning_content: reasoning.clone(),
            reasoning,
            tool_calls: reply.calls.into_iter().map(ToolCall::from).collect(),
        },
    }
}

/// Reads a chat whose prompt is shown without generating a reply.
pub(crate) fn read_template(app: &App, caller: &Caller, body: &[u8]) -> Result<ChatRequest, ApiError> {
    let mut body = parse_body(body, "", &mut IgnoredFields::default())?;
    app.served.check_name(caller, body.model.as_deref())?;
    app.limits.check_messages("messages", body.messages.iter().map(Message::num_parts))?;
    let tools = tools(body.tools.take(), body.tool_choice.as_ref(), body.parallel_tool_calls, &app.limits)?;
    let mut chat = chat_request(&mut body)?;
    fit_system_messages(&app.served.model.text, &mut chat, &mut None);
    tools.describe(&mut chat, app.served.model.reply.knows_tools(), &mut None);
    Ok(chat)
}

/// Returns the prompt of a chat.
pub(crate) async fn template(app: &App, caller: &Caller, chat: ChatRequest) -> Result<ChatPrompt, ApiError> {
    app.served.tokenize(caller, chat_prompt::num_bytes(&chat), move |text| text.encode_chat(&chat)).await
}

/// Converts the body to the input of the chat template, without the tools.
fn chat_request(body: &mut Body) -> Result<ChatRequest, ApiError> {
    let is_continued = body.continue_final_message.unwrap_or(false);
    let opens_reply = body.add_generation_prompt.unwrap_or(!is_continued);
    if is_continued && opens_reply {
        let problem = "and `continue_final_message` are both true; hint: send only one of them";
        return Err(ApiError::value("add_generation_prompt", problem));
    }
    Ok(ChatRequest {
        messages: to_chat(std::mem::take(&mut body.messages))?,
        add_generation_prompt: opens_reply,
        continue_final_message: is_continued,
        kwargs: kwargs(body),
        now_unix_s: unix_s().cast_signed(),
        ..ChatRequest::default()
    })
}

/// Returns the template variables. `chat_template_kwargs` overrides those of the fields for reasoning.
fn kwargs(body: &mut Body) -> Map<String, Value> {
    let reasoning = body.reasoning.take().unwrap_or_default();
    let mut kwargs = reasoning_kwargs(body.reasoning_effort.as_deref().or(reasoning.effort.as_deref()));
    if let Some(enabled) = reasoning.enabled {
        kwargs.insert("enable_thinking".into(), enabled.into());
    }
    kwargs.extend(body.chat_template_kwargs.take().unwrap_or_default());
    kwargs
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    if let (Some(old), Some(new)) = (body.max_tokens, body.max_completion_tokens)
        && old != new
    {
        let problem = format!("is {new}, but `max_tokens` is {old}; hint: send only one of them");
        return Err(ApiError::value("max_completion_tokens", problem));
    }
    let asked = body.logprobs.unwrap_or(false);
    if body.top_logprobs.is_some_and(|top| top != 0) && !asked {
        return Err(ApiError::value("top_logprobs", "needs `logprobs`; hint: set `logprobs` to true"));
    }
    let prompt_logprobs = body.prompt_logprobs.and_then(|count| count.0);
    if prompt_logprobs.is_some() && body.stream == Some(true) {
        let problem = "cannot be streamed; hint: do not stream";
        return Err(ApiError::value("prompt_logprobs", problem));
    }
    let prediction = body.prediction.as_ref().map(|prediction| prediction.text()).transpose()?;
    let mut raw = body.shared_params()?;
    raw.names.max_new_tokens = match (body.max_completion_tokens, body.max_tokens, body.n_predict) {
        (Some(_), ..) => "max_completion_tokens",
        (None, None, Some(_)) => "n_predict",
        _ => "max_tokens",
    };
    raw.prediction = prediction;
    let n_predict = body.n_predict.filter(|asked| *asked != -1);
    raw.max_new_tokens = body.max_completion_tokens.or(body.max_tokens).or(n_predict);
    raw.logprobs = asked.then(|| body.top_logprobs.unwrap_or(0));
    raw.tokens.prompt_logprobs =
        prompt_logprobs.map(|num_top| PromptLogprobsField { field: "prompt_logprobs", num_top });
    Ok(raw)
}
