//! The handlers of `/v1/chat/completions/render` and `/v1/completions/render`, which are vLLM's. Routers of several
//! servers ask them for a request's tokens, to find the server that has its prefix in the cache.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::{ErrorResponse, chat, chat_types, completion_types, completions};
use crate::app::App;
use crate::pipeline::{self, Call, Scope};
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_http::IgnoredFields;

/// A prompt as the model reads it. These are the fields of vLLM's answer that describe the prompt.
#[derive(Debug, Serialize, ToSchema)]
pub struct RenderedPrompt {
    /// The id of this request, which the log repeats.
    pub request_id: String,
    /// The name of the model whose tokenizer made the tokens.
    pub model: String,
    /// The tokens of the prompt.
    pub token_ids: Vec<u32>,
}

/// The memory of a token: its id, and its JSON text, whose buffer is briefly in memory twice.
const TOKEN_BYTES: usize = 32;

/// Renders the prompt of a chat and tokenizes it, without generating a reply.
#[utoipa::path(
    post, path = "/v1/chat/completions/render", request_body = chat_types::Body,
    responses(
        (status = 200, description = "The prompt's tokens", body = RenderedPrompt),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn render_chat(State(app): State<Arc<App>>, request: Request) -> Response {
    let rendered = render(
        &app,
        request,
        |body| chat::parse_body(body, "", &mut IgnoredFields::default()),
        |mut prompts| {
            // A chat is one prompt.
            axum::Json(prompts.pop()).into_response()
        },
    );
    respond::answer::<ErrorResponse>(rendered.await)
}

/// Tokenizes the prompts of a completion without continuing them. The answer has one element for each prompt.
#[utoipa::path(
    post, path = "/v1/completions/render", request_body = completion_types::Body,
    responses(
        (status = 200, description = "The tokens of each prompt", body = Vec<RenderedPrompt>),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn render_completion(State(app): State<Arc<App>>, request: Request) -> Response {
    let parse = |body: &[u8]| completions::parse_body(body, &mut IgnoredFields::default());
    let rendered = render(&app, request, parse, |prompts| axum::Json(prompts).into_response());
    respond::answer::<ErrorResponse>(rendered.await)
}

async fn render<C: Call>(
    app: &Arc<App>,
    request: Request,
    parse: impl FnOnce(&[u8]) -> Result<C, ApiError> + Send + 'static,
    write: impl FnOnce(Vec<RenderedPrompt>) -> Response,
) -> Result<Response, ApiError> {
    let received = app.admission.receive_without_steps(&app.models, &app.served, request).await?;
    let (app, admitted, body) = app.enter(received).await?;
    let scope = Scope::new(&app, admitted.arrival, admitted.shard);
    let read = move |scope: &Scope, body: &[u8]| pipeline::check(scope, parse(body)?);
    let (scope, checked) = pipeline::read_body(scope, body, read).await?;
    let checked = checked.choose_scaled(&scope).await?;
    let model = checked.params.model().to_owned();
    let requests = pipeline::tokenize(&scope, checked).await?;
    let mut memory = app.admission.answer_memory(&scope.arrival.caller);
    let num_tokens: usize = requests.iter().map(|request| request.sequence.token_ids.len()).sum();
    memory.grow_to(num_tokens * TOKEN_BYTES)?;
    let prompt = |token_ids| RenderedPrompt {
        request_id: scope.arrival.id.to_string(),
        model: model.clone(),
        token_ids,
    };
    let prompts = requests.into_iter().map(|request| prompt(request.sequence.token_ids));
    let answer = memory.hold(write(prompts.collect())).await;
    drop(admitted.permit);
    answer
}
