//! `/invocations` and `/vertex`: what SageMaker and Vertex AI send to a container.

use std::sync::Arc;

use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::ErrorResponse;
use super::generate::{Generate, REFUSED, root};
use super::types::{Body, GenerateAnswer, Parameters};
use crate::api::app::App;
use crate::api::forms::Either;
use crate::api::openai;
use crate::api::pipeline::{Scope, complete};
use crate::api::respond;
use crate::error::ApiError;
use crate::generation::admission::Admitted;
use crate::generation::fold::{KeepTokens, fold};
use crate::http::{Refused, parse};

/// Which of a chat, a completion and TGI's own form a body has.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
}

/// As `/v1/chat/completions` if the body has `messages`, as `/v1/completions` if it has `prompt`, else as `/`.
#[utoipa::path(
    post, path = "/invocations", tag = "TGI", request_body = Body,
    responses(
        (status = 200, description = "As of the route that the body is for; here of `/`", body = Vec<GenerateAnswer>),
        (status = 422, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn invocations(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let empty = Request::from_parts(parts.clone(), HttpBody::empty());
    // Looked at as any other before the body is read; whoever answers it lets it in.
    let bytes = match app.admission.look(&app.served, &empty) {
        Ok(_) => app.admission.read_body(body).await,
        Err(error) => Err(error),
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => return respond::error::<ErrorResponse>(&error),
    };
    // What is not JSON is refused by the route that it falls to.
    let kind = serde_json::from_slice::<Kind<'_>>(&bytes).ok();
    let (is_chat, is_completion) =
        kind.map_or((false, false), |kind| (kind.messages.is_some(), kind.prompt.is_some()));
    let request = Request::from_parts(parts, HttpBody::from(bytes));
    if is_chat {
        openai::chat::chat_completions(State(app), request).await
    } else if is_completion {
        openai::completions::completions(State(app), request).await
    } else {
        root(State(app), request).await
    }
}

/// Vertex AI has a place for what all instances share; each has its own here.
const OF_INSTANCES: &[Refused] =
    &[Refused { field: "parameters", neutral: &["{}"], hint: "put them into each of `instances`" }];

/// A prompt or a chat.
type Instance = Either<VertexInstance, openai::chat_types::Body>;

/// Body of a request of Vertex AI.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VertexRequest {
    /// Prompts and chats, each continued on its own.
    #[schema(value_type = Vec<Instance>)]
    pub instances: Vec<Box<RawValue>>,
}

/// One prompt. A chat in its place has `messages`, and what else `/v1/chat/completions` takes.
#[derive(Debug, Deserialize, ToSchema)]
pub struct VertexInstance {
    /// The prompt.
    pub inputs: String,
    /// How to continue it.
    #[schema(value_type = Option<Parameters>)]
    pub parameters: Option<Box<RawValue>>,
}

/// An answer to Vertex AI.
#[derive(Debug, Serialize, ToSchema)]
pub struct VertexResponse {
    /// The outputs, in the order of the instances.
    pub predictions: Vec<String>,
}

/// Continues prompts.
#[utoipa::path(
    post, path = "/vertex", tag = "TGI", request_body = VertexRequest,
    responses(
        (status = 200, description = "The outputs", body = VertexResponse),
        (status = 422, description = "The request is wrong", body = ErrorResponse),
        (status = 429, description = "Too many requests", body = ErrorResponse),
        (status = 503, description = "Not ready, or draining", body = ErrorResponse),
    )
)]
pub async fn vertex(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(predict(&app, request).await.map(axum::Json))
}

async fn predict(app: &Arc<App>, request: Request) -> Result<VertexResponse, ApiError> {
    let (Admitted { permit, shard, arrival }, body) = app.admit(request).await?;
    let body: VertexRequest = parse(&body, OF_INSTANCES, "")?;
    if body.instances.is_empty() {
        return Err(ApiError::value("instances", "is empty; hint: send at least one"));
    }
    let most = app.limits.max_concurrent_requests;
    if body.instances.len() > most {
        let num_instances = body.instances.len();
        let problem = format!(
            "has {num_instances}, the limit is {most}; hint: send several requests or raise \
             `--max-concurrent-requests`"
        );
        return Err(ApiError::value("instances", problem));
    }
    let scope = Scope::new(app, arrival, shard);
    let (mut requests, mut prefixes) = (Vec::new(), Vec::new());
    for (idx, instance) in body.instances.iter().enumerate() {
        let instance = instance.get().as_bytes();
        // An instance that is no object is refused as a prompt.
        let is_chat = serde_json::from_slice::<Kind<'_>>(instance).is_ok_and(|kind| kind.messages.is_some());
        if is_chat {
            let (chat, _) = complete(&scope, chat(idx, instance)?).await?;
            requests.extend(chat.requests);
            prefixes.push(String::new());
        } else {
            let (prompt, _) = complete(&scope, prompt(idx, instance)?).await?;
            requests.extend(prompt.requests);
            prefixes.push(prompt.answer.prefix().to_owned());
        }
    }
    let choices = app.admission.generate(&app.served, requests, 1, permit).await?;
    let (outputs, _) = fold(choices, KeepTokens::No).await?;
    let texts = prefixes.into_iter().zip(outputs).map(|(prefix, output)| prefix + &output.text);
    Ok(VertexResponse { predictions: texts.collect() })
}

/// Parses an instance that is a prompt.
fn prompt(idx: usize, instance: &[u8]) -> Result<Generate, ApiError> {
    let instance: VertexInstance = parse(instance, &[], &format!("instances[{idx}]."))?;
    let parameters = parameters(idx, instance.parameters.as_deref())?;
    if instance.inputs.is_empty() {
        let problem = "is empty; hint: send at least one character";
        return Err(ApiError::value(format!("instances[{idx}].inputs"), problem));
    }
    Ok(Generate::text_only(instance.inputs, parameters))
}

/// Parses an instance that is a chat. Its prediction is what the model wrote.
fn chat(idx: usize, instance: &[u8]) -> Result<openai::ChatBody, ApiError> {
    let prefix = format!("instances[{idx}].");
    let body = openai::chat::parse_body(instance, &prefix)?;
    let hint = "a prediction is a text; use `/v1/chat/completions`";
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

/// The parameters of an instance, without those that would show what a prediction has no room for.
fn parameters(idx: usize, raw: Option<&RawValue>) -> Result<Parameters, ApiError> {
    let Some(raw) = raw.filter(|raw| raw.get() != "null") else { return Ok(Parameters::default()) };
    let prefix = format!("instances[{idx}].parameters.");
    let parameters: Parameters = parse(raw.get().as_bytes(), REFUSED, &prefix)?;
    let hint = "a prediction is a text; use `/generate`";
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
