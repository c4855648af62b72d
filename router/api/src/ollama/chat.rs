//! The handler of `/api/chat`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use trunkline_text::ChatRequest;
use utoipa::ToSchema;

use super::answer::{Answer, ChatAnswer, Form};
use super::body::body;
use super::keep_alive::KeepAlive;
use super::messages::{Message, to_chat};
use super::options::{Options, parse, raw_params};
use super::think::Think;
use super::writer::ReplyWriter;
use super::{ErrorResponse, untagged};
use crate::app::App;
use crate::chat::conversation::{Conversation, Unencoded};
use crate::chat::structured::json_format;
use crate::chat::tools::Tools;
use crate::lists::optional_list;
use crate::openai::{ToolField, tools};
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_generation::adapters::Named;
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::models;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::RawParams;
use trunkline_http::Refused;

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused {
        field: "truncate",
        neutral: &["false"],
        hint: "prompts are never cut; shorten the conversation",
    },
    Refused { field: "shift", neutral: &["false"], hint: "the context is never shifted; leave it out" },
    Refused { field: "_debug_render_only", neutral: &["false"], hint: "use `/v1/chat/completions/render`" },
];

body! {
    /// The body of a request to chat.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = OllamaChatRequest)]
    pub struct ChatBody {
        /// The conversation, oldest first; empty by default. Without messages the answer is `done_reason` `load` as
        /// soon as the model can be used, or `unload` with `keep_alive` 0 where models are unloaded.
        #[serde(default, deserialize_with = "optional_list")]
        #[schema(required = false)]
        pub messages: Vec<Message>,
        /// The functions that the model may call, as for `/v1/chat/completions`.
        pub tools: Option<Vec<ToolField>>,
        /// The format of the reply: `"json"`, or a JSON schema; `""` for none. Keywords that no grammar can hold are
        /// left out.
        #[schema(value_type = Option<Object>)]
        pub format: Option<Value>,
    }
}

/// Generates the next message of a chat, as lines of JSON or whole.
#[utoipa::path(
    post, path = "/api/chat", request_body = ChatBody,
    responses(
        (status = 200, description = "The reply; a stream of lines unless `stream` is false", body = ChatAnswer<'_>),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    let parse = |body: &[u8], ignored: &mut _| parse::<ChatBody>(body, REFUSED, ignored);
    respond::answer::<ErrorResponse>(pipeline::answer::<_, ErrorResponse>(&app, request, parse).await)
}

impl Call for ChatBody {
    type Prompts = Chat;

    fn named(&self) -> Named<'_> {
        self.names()
    }

    fn keep_alive(&self) -> Option<models::KeepAlive> {
        self.keep_alive.map(Into::into)
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Chat>, ApiError> {
        let (limits, style) = (&scope.app.limits, scope.app.served.model.reply);
        limits.check_messages("messages", self.messages.iter().map(|_| 0))?;
        let (params, is_stream) = (self.params("messages")?, self.is_stream());
        let tools = tools(self.tools, None, None, limits)?;
        let grammar = tools.constrain(style, json_format("format", self.format)?);
        let chat = ChatRequest { messages: to_chat(self.messages)?, ..ChatRequest::default() };
        let conversation = conversation(chat, self.think, tools, scope)?;
        let prompts = Chat { conversation };
        Ok(Asked { params, grammar, num_choices: NumChoices::ONE, is_stream, prompts })
    }

    fn without_output(&self, scope: &Scope) -> Option<Response> {
        let answer = || Answer::without_output(Form::Chat, scope, self.keep_alive);
        self.messages.is_empty().then(|| axum::Json(answer()).into_response())
    }
}

/// Returns the conversation of a chat's messages. The reply continues a last message of the assistant.
pub(super) fn conversation(
    chat: ChatRequest,
    think: Option<Think>,
    tools: Tools,
    scope: &Scope,
) -> Result<Conversation, ApiError> {
    let style = scope.app.served.model.reply;
    Think::check(think, style)?;
    let is_begun = chat
        .messages
        .last()
        .is_some_and(|last| last.role == "assistant" && !last.extra.contains_key("tool_calls"));
    let chat = ChatRequest {
        add_generation_prompt: !is_begun,
        continue_final_message: is_begun,
        kwargs: Think::kwargs(think, style),
        now_unix_s: unix_s().cast_signed(),
        ..chat
    };
    Ok(Conversation {
        chat: Unencoded { chat, mark: None, tools },
        hides_reasoning: think == Some(Think::Switch(false)),
        reasoning_budget: None,
    })
}

pub(crate) struct Chat {
    conversation: Conversation,
}

impl Prompts for Chat {
    type Answer = ReplyWriter;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        _num_choices: NumChoices,
    ) -> Result<Completed<ReplyWriter>, ApiError> {
        let (request, reply) = self.conversation.complete(scope, params, grammar).await?;
        let answer = ReplyWriter::new(Form::Chat, scope, params, &request, reply);
        Ok(Completed { requests: vec![request], answer })
    }
}
