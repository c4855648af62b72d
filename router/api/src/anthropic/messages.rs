//! The handlers of `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, json};
use trunkline_text::ChatRequest;

use super::blocks::{Chat, Message};
use super::stream::{Head, MessageStream};
use super::tools::{budget, thinks, tools};
use super::types::{Answer, Body, ContentBlock, CountAnswer, CountBody};
use super::{ErrorResponse, stop_reason, stop_sequence};
use crate::app::App;
use crate::chat::conversation::{Conversation, Unencoded, encode};
use crate::chat::prompt::Mark;
use crate::chat::reply::{Reply, ReplyPlan};
use crate::chat::structured::{Relaxed, request_grammar};
use crate::chat::tools::Tools;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::Named;
use trunkline_generation::fold::Folded;
use trunkline_generation::generate::Usage;
use trunkline_generation::grammars::{AskedGrammar, CompiledGrammar};
use trunkline_generation::model::ReplyStyle;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::{FieldNames, RawParams};
use trunkline_generation::request::service_tier::{Wanted, anthropic_name};
use trunkline_http::{OtherFields, Refused, parse, parse_noting};

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "mcp_servers", neutral: &["[]"], hint: "leave it out" },
    Refused { field: "container", neutral: &[], hint: "leave it out" },
];
/// The known fields that [`Body`] does not have.
const OTHERS: OtherFields<'_> = OtherFields { refused: REFUSED, harmless: &["metadata"] };

/// Generates the next message of a conversation, whole or as events.
#[utoipa::path(
    post, path = "/v1/messages", request_body = Body,
    responses(
        (status = 200, description = "The reply; a stream of events if `stream` is true", body = Answer),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn create(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(
        pipeline::answer::<_, ErrorResponse>(&app, request, |body, ignored| {
            parse_noting::<Body>(body, OTHERS, "", ignored)
        })
        .await,
    )
}

/// Counts the prompt tokens of a conversation without generating a reply.
#[utoipa::path(
    post, path = "/v1/messages/count_tokens", request_body = CountBody,
    responses(
        (status = 200, description = "The number of prompt tokens", body = CountAnswer),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(count(&app, request).await.map(axum::Json))
}

impl Call for Body {
    type Prompts = Conversing;

    fn named(&self) -> Named<'_> {
        Named::model(self.model.as_deref())
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Conversing>, ApiError> {
        let (limits, model) = (&scope.app.limits, &scope.app.served.model);
        if self.max_tokens.is_none() {
            return Err(ApiError::MissingField { field: "max_tokens".into() });
        }
        limits.check_messages("messages", self.messages.iter().map(Message::num_blocks))?;
        let params = raw_params(&mut self)?;
        if let Some(management) = &self.context_management {
            management.check()?;
        }
        let format = grammar(&mut self)?;
        let effort = self.output_config.take().and_then(|config| config.effort);
        let fields = self.tools.take();
        let tools_control = fields.iter().flatten().rev().find_map(|tool| tool.cache_control.clone());
        let tools = tools(fields, self.tool_choice.take(), limits)?;
        let thinks = thinks(self.thinking.as_ref())?;
        let reasoning_budget = budget(self.thinking.as_ref())?;
        let mut chat =
            Chat::new(self.system.take(), std::mem::take(&mut self.messages), self.cache_control.as_ref())?;
        if let (Some(control), None) = (tools_control, chat.mark) {
            let ttl_s = control.ttl_s("tools.cache_control")?;
            // Templates render tools before all messages.
            chat.mark = Some(Mark { message_idx: 0, num_bytes: 0, ttl_s });
        }
        let grammar = tools.constrain(model.reply, format);
        let (chat, mark) = chat_request(chat, model.reply, thinks, effort);
        Ok(Asked {
            params,
            grammar,
            num_choices: NumChoices::ONE,
            is_stream: self.stream == Some(true),
            prompts: Conversing {
                conversation: Conversation {
                    chat: Unencoded { chat, mark, tools },
                    hides_reasoning: !thinks,
                    reasoning_budget,
                },
                shows_tier: self.service_tier.is_some(),
            },
        })
    }
}

pub(crate) struct Conversing {
    conversation: Conversation,
    shows_tier: bool,
}

impl Prompts for Conversing {
    type Answer = MessageAnswer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        _num_choices: NumChoices,
    ) -> Result<Completed<MessageAnswer>, ApiError> {
        let (request, reply) = self.conversation.complete(scope, params, grammar).await?;
        let head = Head {
            id: format!("msg_{}", trunkline_base::random::id()),
            model: params.model().to_owned(),
            service_tier: self.shows_tier.then(|| anthropic_name(request.sequence.priority)),
        };
        let answer = MessageAnswer { head, reply, stops: request.delivery.stops.clone() };
        Ok(Completed { requests: vec![request], answer })
    }
}

pub(crate) struct MessageAnswer {
    head: Head,
    reply: ReplyPlan,
    stops: Vec<String>,
}

impl pipeline::Answer for MessageAnswer {
    type Render = MessageStream;

    fn render(self) -> MessageStream {
        MessageStream::new(self.head, self.stops, &self.reply)
    }

    fn whole(self, mut outputs: Vec<Folded>, usage: Usage) -> Response {
        let output = outputs.swap_remove(0);
        let reply = Reply::of(&self.reply, output.text, output.reason);
        let has_calls = !reply.calls.is_empty();
        axum::Json(Answer {
            content: blocks(reply),
            stop_reason: Some(stop_reason(output.reason, has_calls)),
            stop_sequence: stop_sequence(output.reason, &self.stops),
            usage: self.head.usage(usage),
            ..self.head.empty_answer()
        })
        .into_response()
    }
}

/// Returns the blocks of a reply that are not empty.
fn blocks(reply: Reply) -> Vec<ContentBlock> {
    let mut blocks = Vec::new();
    if !reply.reasoning.is_empty() {
        blocks.push(ContentBlock::Thinking { thinking: reply.reasoning, signature: String::new() });
    }
    if !reply.text.is_empty() {
        blocks.push(ContentBlock::Text { text: reply.text });
    }
    blocks.extend(reply.calls.into_iter().map(|call| ContentBlock::ToolUse {
        id: call.id,
        name: call.name,
        // A call that `max_tokens` cut off has incomplete arguments.
        input: serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({})),
    }));
    blocks
}

async fn count(app: &Arc<App>, request: Request) -> Result<CountAnswer, ApiError> {
    let (app, caller, _place, (chat, tools)) = app.read(request, counted).await?;
    let chat = Unencoded { chat, mark: None, tools };
    let (prompt, ..) = encode(&app.served, &caller, chat, 0, |_| Ok(())).await?;
    Ok(CountAnswer { input_tokens: u32::try_from(prompt.token_ids.len()).unwrap_or(u32::MAX) })
}

/// Parses the body of a request to count tokens.
fn counted(app: &App, caller: &Caller, body: &[u8]) -> Result<(ChatRequest, Tools), ApiError> {
    let body: CountBody = parse(body, &[], "")?;
    app.served.check_name(caller, body.model.as_deref())?;
    app.limits.check_messages("messages", body.messages.iter().map(Message::num_blocks))?;
    let tools = tools(body.tools, body.tool_choice, &app.limits)?;
    let chat = Chat::new(body.system, body.messages, None)?;
    let effort = body.output_config.and_then(|config| config.effort);
    let (chat, _) = chat_request(chat, app.served.model.reply, thinks(body.thinking.as_ref())?, effort);
    Ok((chat, tools))
}

fn chat_request(
    chat: Chat,
    style: ReplyStyle,
    thinks: bool,
    effort: Option<String>,
) -> (ChatRequest, Option<Mark>) {
    let is_prefilled = chat.is_prefilled();
    let mut kwargs = Map::new();
    if style.reasons {
        kwargs.insert("enable_thinking".into(), thinks.into());
    }
    if let Some(effort) = effort {
        kwargs.insert("reasoning_effort".into(), effort.into());
    }
    let request = ChatRequest {
        messages: chat.messages,
        add_generation_prompt: !is_prefilled,
        continue_final_message: is_prefilled,
        kwargs,
        now_unix_s: unix_s().cast_signed(),
        ..ChatRequest::default()
    };
    (request, chat.mark)
}

/// Returns the grammar of `output_format` or of `output_config.format`, which newer clients send instead.
fn grammar(body: &mut Body) -> Result<Option<AskedGrammar>, ApiError> {
    let new = body.output_config.as_mut().and_then(|config| config.format.take());
    let old = body.output_format.take();
    if old.is_some() && new.is_some() {
        let problem = "and `output_config.format` both constrain the output; hint: send only one of them";
        return Err(ApiError::value("output_format", problem));
    }
    match new {
        Some(format) => request_grammar("output_config.format", Some(format), Relaxed::IfAsked),
        None => request_grammar("output_format", old, Relaxed::IfAsked),
    }
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    Ok(RawParams {
        names: FieldNames { stop: "stop_sequences", ..FieldNames::default() },
        takes_defaults: true,
        class: Wanted::from_anthropic(body.service_tier.as_deref())?,
        timeout: body.timeout,
        max_new_tokens: body.max_tokens,
        numbers: body.numbers(),
        seed: body.seed.map(|seed| seed.0),
        stops: body.stop_sequences.take().unwrap_or_default(),
        cache_salt: body.cache_salt.take(),
        ..RawParams::default()
    })
}
