//! `/invocations` and `/vertex`: the routes that SageMaker and Vertex AI call on a container.

use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::ErrorResponse;
use super::generate::{Generate, REFUSED, root};
use super::types::{Body, GenerateAnswer, Parameters};
use crate::app::App;
use crate::forms::Either;
use crate::openai;
use crate::pipeline::{Call, Checked, Scope, check, complete, read_body};
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_generation::admission::Admitted;
use trunkline_generation::fold::{KeepTokens, fold};
use trunkline_http::{IgnoredFields, Refused, parse};

/// The fields that tell a chat and a completion from TGI's own form.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
}

/// Forwards a request of SageMaker by its body: to `/v1/chat/completions` if it has `messages`, to `/v1/completions` if
/// it has `prompt`, and otherwise to `/`.
#[utoipa::path(
    post, path = "/invocations", request_body = Body,
    responses(
        (status = 200, description = "The answer of the chosen route; here that of `/`", body = Vec<GenerateAnswer>),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn invocations(State(app): State<Arc<App>>, request: Request) -> Response {
    match forward(&app, request).await {
        Ok((Chosen::Chat, request)) => openai::chat::chat_completions(State(app), request).await,
        Ok((Chosen::Completion, request)) => openai::completions::completions(State(app), request).await,
        Ok((Chosen::Generate, request)) => root(State(app), request).await,
        Err(error) => respond::error::<ErrorResponse>(&error),
    }
}

/// Reads the body and chooses the route by it. The chosen route admits the request.
async fn forward(app: &App, request: Request) -> Result<(Chosen, Request), ApiError> {
    let (parts, body) = request.into_parts();
    // Applies the checks that precede reading the body.
    let empty = Request::from_parts(parts, HttpBody::empty());
    let (caller, _) = app.admission.look(&app.models, &app.served, &empty)?;
    let (parts, _) = empty.into_parts();
    let (bytes, _memory) = app.admission.read_body(&caller, body).await?;
    let chosen = app.served.parse(&caller, bytes.clone(), |body| Ok(Chosen::by(body))).await?;
    Ok((chosen, Request::from_parts(parts, HttpBody::from(bytes))))
}

/// The route that answers a body of `/invocations`.
enum Chosen {
    Chat,
    Completion,
    Generate,
}

impl Chosen {
    /// Chooses by the fields of the body. A body that is not JSON is refused by the chosen route.
    fn by(body: &[u8]) -> Self {
        match serde_json::from_slice::<Kind<'_>>(body) {
            Ok(Kind { messages: Some(_), .. }) => Self::Chat,
            Ok(Kind { prompt: Some(_), .. }) => Self::Completion,
            _ => Self::Generate,
        }
    }
}

/// Fields of Vertex AI that all instances would share. Here each instance has its own parameters.
const OF_INSTANCES: &[Refused] =
    &[Refused { field: "parameters", neutral: &["{}"], hint: "put them into each of `instances`" }];

/// A prompt or a chat.
type Instance = Either<VertexInstance, openai::chat_types::Body>;

/// The body of a request from Vertex AI.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VertexRequest {
    /// The prompts and chats, each of which counts as one request; as many as may be open
    /// (`--max-concurrent-requests`).
    #[schema(value_type = Vec<Instance>)]
    pub instances: Vec<Box<RawValue>>,
}

/// A prompt to continue. An instance with `messages` is a chat instead, with the fields of `/v1/chat/completions`.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VertexInstance {
    /// The text to continue, not empty, as for `/generate`.
    pub inputs: String,
    /// The parameters of the generation, as for `/generate`. `best_of` above 1, `details`, `decoder_input_details` and
    /// `top_n_tokens` are refused: a prediction is a text.
    #[schema(value_type = Option<Parameters>)]
    pub parameters: Option<Box<RawValue>>,
}

/// The response to Vertex AI.
#[derive(Debug, Serialize, ToSchema)]
pub struct VertexResponse {
    /// The outputs, in the order of the instances.
    pub predictions: Vec<String>,
}

/// Generates text for each instance of a Vertex AI request.
#[utoipa::path(
    post, path = "/vertex", request_body = VertexRequest,
    responses(
        (status = 200, description = "The generated texts", body = VertexResponse),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn vertex(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(predict(&app, request).await)
}

async fn predict(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (app, Admitted { permit, shard, arrival, .. }, bytes) = app.admit(request).await?;
    let scope = Scope::new(&app, arrival, shard);
    let (scope, instances) = read_body(scope, bytes, read_instances).await?;
    let (mut requests, mut prefixes) = (Vec::new(), Vec::new());
    for instance in instances {
        match instance {
            CheckedInstance::Chat(chat) => {
                requests.extend(complete(&scope, *chat).await?.requests);
                prefixes.push(String::new());
            }
            CheckedInstance::Prompt(prompt) => {
                let prompt = complete(&scope, *prompt).await?;
                requests.extend(prompt.requests);
                prefixes.push(prompt.answer.prefix().to_owned());
            }
        }
    }
    let choices = app.admission.generate(&app.served, requests, 1, permit).await?;
    let mut memory = app.admission.answer_memory(&scope.arrival.caller);
    let (outputs, _) = fold(choices, KeepTokens::No, &mut memory).await?;
    let texts = prefixes.into_iter().zip(outputs).map(|(prefix, output)| prefix + &output.text);
    let answer = VertexResponse { predictions: texts.collect() };
    let mut response = memory.hold(axum::Json(answer).into_response()).await?;
    scope.report_relaxed("/vertex", &mut response);
    Ok(response)
}

enum CheckedInstance {
    Chat(Box<Checked<<openai::ChatBody as Call>::Prompts>>),
    Prompt(Box<Checked<<Generate as Call>::Prompts>>),
}

fn read_instances(scope: &Scope, body: &[u8]) -> Result<Vec<CheckedInstance>, ApiError> {
    let body: VertexRequest = parse(body, OF_INSTANCES, "")?;
    if body.instances.is_empty() {
        return Err(ApiError::value("instances", "is empty; hint: send at least one"));
    }
    let most = scope.app.limits.max_open;
    if body.instances.len() > most {
        let num_instances = body.instances.len();
        let problem = format!(
            "has {num_instances}, the limit is {most}; hint: send several requests or raise \
             `--max-concurrent-requests`"
        );
        return Err(ApiError::value("instances", problem));
    }
    let read = |(idx, instance): (usize, &RawValue)| {
        let instance = instance.get().as_bytes();
        // An instance that is not an object is refused as a prompt.
        let is_chat = serde_json::from_slice::<Kind<'_>>(instance).is_ok_and(|kind| kind.messages.is_some());
        Ok(match is_chat {
            true => CheckedInstance::Chat(Box::new(check(scope, chat(idx, instance)?)?)),
            false => CheckedInstance::Prompt(Box::new(check(scope, prompt(idx, instance)?)?)),
        })
    };
    body.instances.iter().map(AsRef::as_ref).enumerate().map(read).collect()
}

fn prompt(idx: usize, instance: &[u8]) -> Result<Generate, ApiError> {
    let instance: VertexInstance = parse(instance, &[], &format!("instances[{idx}]."))?;
    let parameters = parameters(idx, instance.parameters.as_deref())?;
    if instance.inputs.is_empty() {
        let problem = "is empty; hint: send at least one character";
        return Err(ApiError::value(format!("instances[{idx}].inputs"), problem));
    }
    Ok(Generate::text_only(instance.inputs, parameters))
}

/// Parses an instance that is a chat. Its prediction is the text that the model generated.
fn chat(idx: usize, instance: &[u8]) -> Result<openai::ChatBody, ApiError> {
    let prefix = format!("instances[{idx}].");
    let body = openai::chat::parse_body(instance, &prefix, &mut IgnoredFields::default())?;
    let hint = "a prediction is only a text; use `/v1/chat/completions`";
    let shown = [
        ("n", body.n.is_some_and(|n| n != 1)),
        ("stream", body.stream == Some(true)),
        ("logprobs", body.logprobs == Some(true)),
        ("prompt_logprobs", body.prompt_logprobs.is_some_and(|count| count.0.is_some())),
        ("tools", body.tools.as_ref().is_some_and(|tools| !tools.is_empty())),
    ];
    match shown.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::UnsupportedField { field: format!("{prefix}{field}"), hint }),
        None => Ok(body),
    }
}

/// Parses the parameters of an instance. Refuses those that add more to the answer than its text, because a prediction
/// is a string.
fn parameters(idx: usize, raw: Option<&RawValue>) -> Result<Parameters, ApiError> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(Parameters::default()) };
    let prefix = format!("instances[{idx}].parameters.");
    let parameters: Parameters = parse(raw.get().as_bytes(), REFUSED, &prefix)?;
    let hint = "a prediction is only a text; use `/generate`";
    let shown = [
        ("best_of", parameters.best_of.is_some_and(|best_of| best_of != 1)),
        ("details", parameters.details == Some(true)),
        ("decoder_input_details", parameters.decoder_input_details == Some(true)),
        ("top_n_tokens", parameters.top_n_tokens.is_some_and(|top| top > 0)),
    ];
    match shown.iter().find(|(_, is_asked)| *is_asked) {
        Some((field, _)) => Err(ApiError::UnsupportedField { field: format!("{prefix}{field}"), hint }),
        None => Ok(parameters),
    }
}
