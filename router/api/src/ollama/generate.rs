//! The handler of `/api/generate`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;
use trunkline_text::{ChatMessage, ChatRequest, Infill, ModelText};
use utoipa::ToSchema;

use super::answer::{Answer, Form, GenerateAnswer};
use super::body::body;
use super::chat::conversation;
use super::keep_alive::KeepAlive;
use super::messages::READS_TEXT;
use super::options::{Options, parse, raw_params};
use super::think::Think;
use super::writer::ReplyWriter;
use super::{ErrorResponse, untagged};
use crate::app::App;
use crate::chat::conversation::Conversation;
use crate::chat::reply::ReplyPlan;
use crate::chat::structured::json_format;
use crate::chat::tools::Tools;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_generation::adapters::Named;
use trunkline_generation::grammars::CompiledGrammar;
use trunkline_generation::models;
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::RawParams;
use trunkline_generation::request::ready;
use trunkline_http::Refused;

/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "images", neutral: &["[]"], hint: READS_TEXT },
    Refused {
        field: "template",
        neutral: &["\"\""],
        hint: "the model has its own; send `raw` with a prompt that is already rendered",
    },
    Refused { field: "context", neutral: &["[]"], hint: "send the conversation to `/api/chat`" },
    Refused { field: "truncate", neutral: &["false"], hint: "prompts are never cut; shorten the prompt" },
    Refused { field: "shift", neutral: &["false"], hint: "the context is never shifted; leave it out" },
    Refused { field: "_debug_render_only", neutral: &["false"], hint: "use `/v1/chat/completions/render`" },
];

body! {
    /// The body of a request to answer a prompt.
    #[derive(Debug, Deserialize, ToSchema)]
    #[schema(as = OllamaGenerateRequest)]
    pub struct GenerateBody {
        /// The prompt, which becomes the message of a user. If it is empty, `done_reason` is `load` or `unload`, as for
        /// chats without messages.
        #[schema(default = "")]
        pub prompt: Option<String>,
        /// A text that follows the output, which then fills the gap after the prompt, without the chat template. The
        /// model must have fill-in-the-middle tokens. Not with `system` and `think`.
        #[schema(default = "")]
        pub suffix: Option<String>,
        /// The system message before the prompt.
        #[schema(default = "")]
        pub system: Option<String>,
        /// If true, the prompt is continued as it is, as happens with models without a chat template. Not with `system`
        /// and `think`.
        #[schema(default = false)]
        pub raw: Option<bool>,
        /// The format of the reply: `"json"`, or a JSON schema; `""` for none. Keywords that no grammar can hold are
        /// left out.
        #[schema(value_type = Option<Object>)]
        pub format: Option<Value>,
    }
}

/// Answers a prompt, as lines of JSON or whole.
#[utoipa::path(
    post, path = "/api/generate", request_body = GenerateBody,
    responses(
        (
            status = 200, body = GenerateAnswer<'_>,
            description = "The output; a stream of lines unless `stream` is false",
        ),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn generate(State(app): State<Arc<App>>, request: Request) -> Response {
    let parse = |body: &[u8], ignored: &mut _| parse::<GenerateBody>(body, REFUSED, ignored);
    respond::answer::<ErrorResponse>(pipeline::answer::<_, ErrorResponse>(&app, request, parse).await)
}

impl Call for GenerateBody {
    type Prompts = Prompt;

    fn named(&self) -> Named<'_> {
        self.names()
    }

    fn keep_alive(&self) -> Option<models::KeepAlive> {
        self.keep_alive.map(Into::into)
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Prompt>, ApiError> {
        let (params, is_stream) = (self.params("prompt")?, self.is_stream());
        let grammar = json_format("format", self.format)?;
        let system = self.system.filter(|text| !text.is_empty());
        let text = self.prompt.unwrap_or_default();
        let suffix = self.suffix.filter(|text| !text.is_empty());
        // A model without a template continues texts.
        let has_template = scope.app.served.model.text.chat_templates.is_some();
        let prompts = if suffix.is_some() || self.raw == Some(true) || !has_template {
            let other = [("system", system.is_some()), ("think", self.think.is_some_and(Think::is_on))];
            if let Some((field, _)) = other.into_iter().find(|(_, is_sent)| *is_sent) {
                let problem = "needs a chat template, but the prompt is taken as it is; hint: leave it out";
                return Err(ApiError::value(field, problem));
            }
            match suffix {
                Some(suffix) => Prompt::Gap(Infill { prefix: text, suffix, ..Infill::default() }),
                None => Prompt::Raw(text),
            }
        } else {
            let system = system.map(|text| ChatMessage::new("system", text));
            let messages = system.into_iter().chain([ChatMessage::new("user", text)]).collect();
            let chat = ChatRequest { messages, ..ChatRequest::default() };
            Prompt::Chat(Box::new(conversation(chat, self.think, Tools::default(), scope)?))
        };
        Ok(Asked { params, grammar, num_choices: NumChoices::ONE, is_stream, prompts })
    }

    fn without_output(&self, scope: &Scope) -> Option<Response> {
        let answer = || Answer::without_output(Form::Generate, scope, self.keep_alive);
        let is_empty = self.prompt.as_ref().is_none_or(String::is_empty);
        is_empty.then(|| axum::Json(answer()).into_response())
    }
}

pub(crate) enum Prompt {
    /// A text that is continued.
    Raw(String),
    /// A text to fill in.
    Gap(Infill),
    Chat(Box<Conversation>),
}

impl Prompts for Prompt {
    type Answer = ReplyWriter;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        _num_choices: NumChoices,
    ) -> Result<Completed<ReplyWriter>, ApiError> {
        let (request, reply) = match self {
            Self::Chat(conversation) => conversation.complete(scope, params, grammar).await?,
            Self::Raw(text) => {
                let (served, caller) = (&scope.app.served, &scope.arrival.caller);
                let num_bytes = text.len();
                let encode = move |model: &ModelText| model.encode_prompt(&text);
                let token_ids = served.tokenize(caller, num_bytes, encode).await?;
                let prompt = ready::Prompt { token_ids, grammar, ..ready::Prompt::default() };
                (params.with_prompt(prompt)?, ReplyPlan::default())
            }
            Self::Gap(infill) => {
                let (served, caller) = (&scope.app.served, &scope.arrival.caller);
                let num_bytes = infill.num_bytes();
                let encode = move |model: &ModelText| ready::Prompt::infill(model, &infill, "suffix");
                let prompt = served.tokenize(caller, num_bytes, encode).await?;
                (params.with_prompt(ready::Prompt { grammar, ..prompt })?, ReplyPlan::default())
            }
        };
        let answer = ReplyWriter::new(Form::Generate, scope, params, &request, reply);
        Ok(Completed { requests: vec![request], answer })
    }
}
