//! The handlers of `/v1/responses`, `/v1/responses/input_tokens`, `/v1/responses/{id}` and its `/cancel`.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use trunkline_text::ChatRequest;

use super::continued::Continued;
use super::types::{
    Body, CountBody, Deleted, Echo, InputTokens, ReasoningField, ResponseObject, ToolField, plain, plain_text,
};
use super::unknown;
use super::writer::ResponseWriter;
use crate::app::App;
use crate::chat::conversation::{Conversation, Unencoded, encode, reasoning_kwargs};
use crate::chat::structured::{Relaxed, request_grammar};
use crate::chat::tools::{Tool, ToolChoice, Tools, no_parameters};
use crate::openai::ErrorResponse;
use crate::pipeline::{self, Asked, Call, Completed, Prompts, Scope};
use crate::respond;
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_base::limits::Limits;
use trunkline_base::tenants::Caller;
use trunkline_generation::adapters::Named;
use trunkline_generation::fold::Folded;
use trunkline_generation::generate::Usage;
use trunkline_generation::grammars::{AskedGrammar, CompiledGrammar};
use trunkline_generation::request::checked::{CheckedParams, NumChoices};
use trunkline_generation::request::raw::{FieldNames, RawParams};
use trunkline_generation::request::retention::RawRetention;
use trunkline_generation::request::service_tier::{Wanted, openai_name};
use trunkline_http::{OtherFields, Refused, parse, parse_noting};

/// The value of `include` that is refused, because this route has no logprobs.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Fields that are refused, because they stand for a part of the prompt that is stored elsewhere.
const ELSEWHERE: &[Refused] = &[
    Refused { field: "conversation", neutral: &[], hint: "use `previous_response_id`" },
    Refused { field: "prompt", neutral: &[], hint: "put it into `input`" },
];
/// Fields that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    ELSEWHERE[0],
    ELSEWHERE[1],
    Refused { field: "background", neutral: &["false"], hint: "use `stream`" },
    Refused { field: "top_logprobs", neutral: &["0"], hint: "use /v1/chat/completions" },
    Refused { field: "truncation", neutral: &["\"disabled\""], hint: "shorten the input yourself" },
    Refused { field: "max_tool_calls", neutral: &[], hint: "this server runs no tools of its own" },
    Refused { field: "context_management", neutral: &["[]"], hint: "leave it out" },
];
/// The known fields that [`Body`] does not have.
const OTHERS: OtherFields<'_> =
    OtherFields { refused: REFUSED, harmless: &["user", "safety_identifier", "stream_options"] };

/// Generates a response to the input, or continues a stored response, whole or as events.
#[utoipa::path(
    post, path = "/v1/responses", request_body = Body,
    responses(
        (status = 200, description = "The response; a stream of events if `stream` is true", body = ResponseObject),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 404, description = "The response to continue is not stored", body = ErrorResponse),
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

/// Returns a stored response; 404 `response_not_found`.
#[utoipa::path(
    get, path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "The id of the response")),
    responses(
        (status = 200, description = "The stored response", body = ResponseObject),
        (status = 404, description = "The response is not stored", body = ErrorResponse),
    )
)]
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(stored(&app, &id, request).await)
}

async fn stored(app: &App, id: &str, request: Request) -> Result<Response, ApiError> {
    let caller = Caller::of_request(&request)?;
    if request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair == "stream=true")) {
        let hint = "only `POST /v1/responses` can stream events";
        return Err(ApiError::UnsupportedField { field: "stream".into(), hint });
    }
    drop(request);
    let (_, json) = app.responses.get(caller.name(), id).ok_or_else(|| unknown(id))?;
    app.admission.answer_memory(&caller).hold(json_response(json)).await
}

fn json_response(json: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

/// Deletes a stored response.
#[utoipa::path(
    delete, path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "The id of the response")),
    responses(
        (status = 200, description = "The response was deleted", body = Deleted),
        (status = 404, description = "The response is not stored", body = ErrorResponse),
    )
)]
pub async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    let removed = Caller::of_request(&request)
        .and_then(|caller| if app.responses.remove(caller.name(), &id) { Ok(()) } else { Err(unknown(&id)) });
    let answer = |()| axum::Json(Deleted { id, object: "response", deleted: true });
    respond::answer::<ErrorResponse>(removed.map(answer))
}

/// Refuses to cancel a response with 400 `response_not_in_background`: only one in the background can be cancelled, and
/// this server has none.
#[utoipa::path(
    post, path = "/v1/responses/{id}/cancel",
    params(("id" = String, Path, description = "The id of the response")),
    responses(
        (status = 400, description = "The response is not in the background", body = ErrorResponse),
        (status = 404, description = "The response is not stored", body = ErrorResponse),
    )
)]
pub async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>, request: Request) -> Response {
    let refused = Caller::of_request(&request).and_then(|caller| {
        app.responses.get(caller.name(), &id).ok_or_else(|| unknown(&id))?;
        Err::<(), _>(ApiError::NotInBackground { id })
    });
    respond::answer::<ErrorResponse>(refused)
}

/// Counts the prompt tokens of a response without generating it.
#[utoipa::path(
    post, path = "/v1/responses/input_tokens", request_body = CountBody,
    responses(
        (status = 200, description = "The number of prompt tokens", body = InputTokens),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
        (status = 404, description = "The response to continue is not stored", body = ErrorResponse),
    )
)]
pub async fn input_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(count(&app, request).await.map(axum::Json))
}

async fn count(app: &Arc<App>, request: Request) -> Result<InputTokens, ApiError> {
    let read = |app: &App, caller: &Caller, body: &[u8]| {
        let body: CountBody = parse(body, ELSEWHERE, "")?;
        app.served.check_name(caller, body.model.as_deref())?;
        let tools = tools(body.tools.as_deref(), body.tool_choice.as_ref(), None, &app.limits)?;
        let previous = body.previous_response_id.as_deref();
        let continued = Continued::find(body.input, body.instructions, previous, app, caller)?;
        Ok((continued, Unencoded { chat: chat_request(body.reasoning.as_ref()), mark: None, tools }))
    };
    let (app, caller, _place, (continued, chat)) = app.read(request, read).await?;
    let num_bytes = continued.num_bytes();
    let add = move |chat: &mut ChatRequest| continued.add_to(chat);
    let (prompt, ..) = encode(&app.served, &caller, chat, num_bytes, add).await?;
    let input_tokens = u32::try_from(prompt.token_ids.len()).unwrap_or(u32::MAX);
    Ok(InputTokens { object: "response.input_tokens", input_tokens })
}

impl Call for Body {
    type Prompts = Continuing;

    fn named(&self) -> Named<'_> {
        Named::model(self.model.as_deref())
    }

    fn asked(mut self, scope: &Scope) -> Result<Asked<Continuing>, ApiError> {
        let app = &scope.app;
        let included = self.include.as_ref().and_then(Value::as_array);
        if included.into_iter().flatten().any(|name| name == LOGPROBS) {
            let hint = "leave out `message.output_text.logprobs`, or use /v1/chat/completions";
            return Err(ApiError::UnsupportedField { field: "include".into(), hint });
        }
        let params = raw_params(&mut self)?;
        let choice = self.tool_choice.as_ref();
        let tools = tools(self.tools.as_deref(), choice, self.parallel_tool_calls, &app.limits)?;
        let format = grammar(&self)?;
        let (input, instructions) = (std::mem::take(&mut self.input), self.instructions.clone());
        let previous = self.previous_response_id.as_deref();
        let continued = Continued::find(input, instructions, previous, app, &scope.arrival.caller)?;
        let grammar = tools.constrain(app.served.model.reply, format);
        Ok(Asked {
            params,
            grammar,
            num_choices: NumChoices::ONE,
            is_stream: self.stream == Some(true),
            prompts: Continuing {
                conversation: Conversation {
                    chat: Unencoded { chat: chat_request(self.reasoning.as_ref()), mark: None, tools },
                    hides_reasoning: false,
                    reasoning_budget: None,
                },
                continued,
                is_stored: self.store.unwrap_or(true) && app.responses.is_on(),
                shows_tier: self.service_tier.is_some(),
                top_p: self.top_p,
                response: response(self),
            },
        })
    }
}

pub(crate) struct Continuing {
    /// The conversation without its messages.
    conversation: Conversation,
    continued: Continued,
    is_stored: bool,
    shows_tier: bool,
    top_p: Option<f64>,
    response: ResponseObject,
}

impl Prompts for Continuing {
    type Answer = ResponseAnswer;

    async fn complete(
        self,
        scope: &Scope,
        params: &CheckedParams,
        grammar: Option<CompiledGrammar>,
        _num_choices: NumChoices,
    ) -> Result<Completed<ResponseAnswer>, ApiError> {
        let Self { conversation, continued, is_stored, shows_tier, top_p, response } = self;
        let num_bytes = continued.num_bytes();
        let add = move |chat: &mut ChatRequest| continued.add_to(chat);
        let (request, reply, mut added) =
            conversation.complete_with(scope, params, grammar, num_bytes, add).await?;
        added.shrink();
        let keeping = is_stored.then_some(added);
        let response = ResponseObject {
            model: params.model().to_owned(),
            service_tier: shows_tier.then(|| openai_name(request.sequence.priority)),
            store: is_stored,
            temperature: f64::from(request.sequence.sampling.temperature),
            top_p: top_p.unwrap_or(f64::from(request.sequence.sampling.top_p)),
            ..response
        };
        let answer = ResponseAnswer { writer: ResponseWriter::new(response, &reply, keeping) };
        Ok(Completed { requests: vec![request], answer })
    }
}

pub(crate) struct ResponseAnswer {
    writer: ResponseWriter,
}

impl pipeline::Answer for ResponseAnswer {
    type Render = ResponseWriter;

    fn render(self) -> ResponseWriter {
        self.writer
    }

    fn whole(self, outputs: Vec<Folded>, usage: Usage) -> Response {
        let output = &outputs[0];
        json_response(self.writer.whole(&output.text, output.reason, usage))
    }
}

/// Returns the response before its first token, without what is not known yet.
fn response(body: Body) -> ResponseObject {
    let text = body.text.map_or_else(plain_text, |text| json!({"format": text.format.unwrap_or_else(plain)}));
    ResponseObject {
        id: format!("resp_{}", trunkline_base::random::id()),
        object: "response",
        created_at: unix_s(),
        status: "in_progress",
        instructions: Echo::new(&body.instructions),
        max_output_tokens: body.max_output_tokens,
        parallel_tool_calls: body.parallel_tool_calls.unwrap_or(true),
        previous_response_id: body.previous_response_id,
        reasoning: Echo::new(&body.reasoning.unwrap_or_default()),
        text: Echo::new(&text),
        tool_choice: Echo::new(&body.tool_choice.unwrap_or_else(|| "auto".into())),
        tools: Echo::new(&body.tools.unwrap_or_default()),
        truncation: "disabled",
        metadata: Echo::new(&body.metadata.unwrap_or_default()),
        ..ResponseObject::default()
    }
}

/// Returns the chat without its messages.
fn chat_request(reasoning: Option<&ReasoningField>) -> ChatRequest {
    ChatRequest {
        add_generation_prompt: true,
        kwargs: reasoning_kwargs(reasoning.and_then(|reasoning| reasoning.effort.as_deref())),
        now_unix_s: unix_s().cast_signed(),
        ..ChatRequest::default()
    }
}

/// Returns the grammar of the output text, if its format is constrained.
fn grammar(body: &Body) -> Result<Option<AskedGrammar>, ApiError> {
    let Some(text) = &body.text else { return Ok(None) };
    if text.verbosity.as_ref().is_some_and(|verbosity| verbosity != "medium") {
        let hint = "ask for it in the prompt";
        return Err(ApiError::UnsupportedField { field: "text.verbosity".into(), hint });
    }
    request_grammar("text.format", text.format.clone(), Relaxed::ByDefault)
}

fn tools(
    fields: Option<&[ToolField]>,
    choice: Option<&Value>,
    is_parallel: Option<bool>,
    limits: &Limits,
) -> Result<Tools, ApiError> {
    let choice = ToolChoice::from_openai(choice, "/name")?;
    let fields = fields.unwrap_or_default().iter().enumerate();
    let tools: Result<Vec<Tool>, ApiError> = fields.map(|(idx, field)| tool(idx, field)).collect();
    Tools::new(tools?, choice, is_parallel.unwrap_or(true), limits)
}

fn tool(idx: usize, field: &ToolField) -> Result<Tool, ApiError> {
    if field.kind != "function" {
        let problem = "must be `function`; this server runs no tools of its own";
        return Err(ApiError::value(format!("tools[{idx}].type"), problem));
    }
    let missing = || ApiError::MissingField { field: format!("tools[{idx}].name") };
    Ok(Tool {
        name: field.name.clone().ok_or_else(missing)?,
        description: field.description.clone(),
        parameters: field.parameters.clone().filter(|schema| !schema.is_null()).unwrap_or_else(no_parameters),
        is_strict: field.strict == Some(true),
    })
}

fn raw_params(body: &mut Body) -> Result<RawParams, ApiError> {
    Ok(RawParams {
        names: FieldNames { max_new_tokens: "max_output_tokens", prompt: "input", ..FieldNames::default() },
        takes_defaults: true,
        class: Wanted::from_openai(body.service_tier.as_deref(), None)?,
        timeout: body.timeout,
        max_new_tokens: body.max_output_tokens,
        numbers: body.numbers(),
        seed: body.seed.map(|seed| seed.0),
        cache_salt: body.cache_salt.take(),
        retention: RawRetention {
            prompt_cache_key: body.prompt_cache_key.take(),
            prompt_cache_retention: body.prompt_cache_retention.take(),
            ..RawRetention::default()
        },
        ..RawParams::default()
    })
}
