//! The handler of `/detokenize`, a route of vLLM and llama.cpp.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use trunkline_text::{DecodeSpecial, ModelText, TextStart};
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::app::App;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_http::parse;

/// The body of a request for the text of tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// The ids of the tokens.
    pub tokens: Vec<u32>,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
}

/// The text of tokens, under the names of both servers.
#[derive(Debug, Serialize, ToSchema)]
pub struct DetokenizeResponse<'a> {
    /// The text, under vLLM's name.
    pub prompt: &'a str,
    /// The same, under llama.cpp's name.
    pub content: &'a str,
}

/// The memory of a byte of the text: the text, and two JSON strings that may escape it, in a buffer that grows.
const MEMORY_OF_BYTE: usize = 16;

/// Returns the text of tokens, in the forms of vLLM and llama.cpp. Control tokens appear as their names.
#[utoipa::path(
    post, path = "/detokenize", request_body = DetokenizeRequest,
    responses(
        (status = 200, description = "The text of the tokens", body = DetokenizeResponse),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(answer(&app, request).await)
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (app, caller, _place, body) = app.read(request, read).await?;
    let mut memory = app.admission.answer_memory(&caller);
    let num_bytes = body.tokens.len() * size_of::<u32>();
    let write = move |model: &ModelText| {
        // The text is as long as all names, or shorter, unless it has bytes that are no text.
        let names = body.tokens.iter().map(|id| model.tokenizer.token_bytes(*id).map_or(0, <[u8]>::len));
        memory.grow_to(names.sum::<usize>() * MEMORY_OF_BYTE)?;
        let text = model.tokenizer.decode(&body.tokens, DecodeSpecial::Keep, TextStart::Beginning);
        memory.grow_to(text.len() * MEMORY_OF_BYTE)?;
        let answer = axum::Json(DetokenizeResponse { prompt: &text, content: &text }).into_response();
        Ok::<_, ApiError>((answer, memory))
    };
    let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
    memory.hold(response).await
}

fn read(app: &App, caller: &Caller, body: &[u8]) -> Result<DetokenizeRequest, ApiError> {
    let body: DetokenizeRequest = parse(body, &[], "")?;
    app.served.check_name(caller, body.model.as_deref())?;
    let vocab_size = app.served.model.text.tokenizer.vocab_size();
    if let Some((idx, id)) = body.tokens.iter().enumerate().find(|(_, id)| **id >= vocab_size) {
        let problem = format!("is {id}, but token ids are from 0 to {}", vocab_size.saturating_sub(1));
        return Err(ApiError::value(format!("tokens[{idx}]"), problem));
    }
    Ok(body)
}
