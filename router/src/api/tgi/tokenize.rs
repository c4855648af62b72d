//! The handlers of `/tokenize` and `/chat_tokenize`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize, Serializer};
use trunkline_text::{
    DecodeSpecial, Detokenizer, EncodeSpecial, EncodedToken, ModelText, TextError, TextStart,
};
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::api::app::App;
use crate::api::openai;
use crate::api::respond;
use crate::error::ApiError;
use crate::http::parse;
use crate::tenants::Caller;

/// The body of a request to tokenize a text.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// The text to tokenize.
    pub inputs: String,
    /// If true, the model's prefix, such as a BOS token, comes first; the default is true.
    pub add_special_tokens: Option<bool>,
}

/// A token and its position in the text.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SimpleToken {
    /// The id of the token.
    pub id: u32,
    /// The part of the text that the token represents.
    pub text: String,
    /// The offset of the part's start, in characters.
    pub start: usize,
    /// The offset of the part's end, in characters.
    pub stop: usize,
}

/// Tokenizes a text with the model's tokenizer.
#[utoipa::path(
    post, path = "/tokenize", tag = "TGI", request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens of the text", body = Vec<SimpleToken>),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(answer(&app, request).await)
}

/// The prompt of a chat, as text and as tokens.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChatTokenizeResponse {
    /// The tokens of the prompt. If several tokens form one character, only the last of them has its text.
    pub tokenize_response: Vec<SimpleToken>,
    /// The text of the prompt.
    pub templated_text: String,
}

/// Renders a chat with the model's chat template and tokenizes it.
#[utoipa::path(
    post, path = "/chat_tokenize", tag = "TGI", request_body = openai::ChatBody,
    responses(
        (status = 200, description = "The prompt and its tokens", body = ChatTokenizeResponse),
        (status = 422, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn chat_tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(chat_answer(&app, request).await)
}

/// The memory of a token of `/tokenize`: its id and range, and its JSON text, whose buffer is briefly in memory twice.
const TOKEN_BYTES: usize = 128;
/// The memory of a token of `/chat_tokenize`, whose tokens are all in memory before they are written.
const CHAT_TOKEN_BYTES: usize = 256;

async fn chat_answer(app: &App, request: Request) -> Result<Response, ApiError> {
    let caller = Caller::of_request(&request)?;
    let body = app.admission.read_body(request.into_body()).await?;
    let _place = app.admission.place_without_shard(&app.served, &caller)?;
    let prompt = openai::chat::template(app, &caller, &body).await?;
    let mut memory = app.admission.answer_memory(&caller);
    memory.grow_to(prompt.token_ids.len() * CHAT_TOKEN_BYTES)?;
    let num_bytes = prompt.text.len();
    let write = move |model: &ModelText| {
        let tokenizer = model.tokenizer.clone();
        let mut detokenizer = Detokenizer::new(tokenizer, DecodeSpecial::Keep, TextStart::Beginning);
        let mut start = 0;
        let token = |id: &u32| {
            let text = detokenizer.push(*id);
            let stop = start + text.chars().count();
            SimpleToken { id: *id, text, start: std::mem::replace(&mut start, stop), stop }
        };
        let tokenize_response = prompt.token_ids.iter().map(token).collect();
        let answer = ChatTokenizeResponse { tokenize_response, templated_text: prompt.text };
        Ok((axum::Json(answer).into_response(), memory))
    };
    let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
    memory.hold(response).await
}

async fn answer(app: &App, request: Request) -> Result<Response, ApiError> {
    let caller = Caller::of_request(&request)?;
    let body = app.admission.read_body(request.into_body()).await?;
    let _place = app.admission.place_without_shard(&app.served, &caller)?;
    let body: TokenizeRequest = parse(&body, &[], "")?;
    let add_special = body.add_special_tokens.unwrap_or(true);
    let num_bytes = body.inputs.len();
    let mut memory = app.admission.answer_memory(&caller);
    let write = move |model: &ModelText| {
        let tokens = Tokens::new(model, &body.inputs, add_special)?;
        let held = memory.grow_to(tokens.encoded.len() * TOKEN_BYTES);
        Ok(held.map(|()| (axum::Json(tokens).into_response(), memory)))
    };
    let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await??;
    memory.hold(response).await
}

/// The tokens of a text, which become [`SimpleToken`]s while they are written.
struct Tokens<'a> {
    model: &'a ModelText,
    text: &'a str,
    /// True if the answer begins with the model's prefix, which the text does not contain.
    adds_prefix: bool,
    encoded: Vec<EncodedToken>,
}

impl<'a> Tokens<'a> {
    fn new(model: &'a ModelText, text: &'a str, add_special: bool) -> Result<Self, TextError> {
        let encoded = model.tokenizer.encode_with_ranges(text, EncodeSpecial::Allow)?;
        let begin = encoded.iter().map(|token| token.id).take(model.prefix_ids.len());
        let adds_prefix = add_special && !begin.eq(model.prefix_ids.iter().copied());
        Ok(Self { model, text, adds_prefix, encoded })
    }
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let prefix = self.model.prefix_ids.iter().filter(|_| self.adds_prefix).map(|&id| {
            // These tokens represent no part of the text, so their names are shown.
            let name = self.model.tokenizer.token_bytes(id).unwrap_or_default();
            SimpleToken { id, text: String::from_utf8_lossy(name).into_owned(), start: 0, stop: 0 }
        });
        // Converts byte offsets to character offsets. Ranges start in ascending order, so one pass is enough.
        let mut at = (0, 0);
        let tokens = self.encoded.iter().map(|token| {
            let range = token.range.clone();
            if range.start < at.0 {
                at = (0, 0);
            }
            let start = at.1 + self.text[at.0..range.start].chars().count();
            at = (range.start, start);
            let part = &self.text[range];
            SimpleToken { id: token.id, text: part.to_owned(), start, stop: start + part.chars().count() }
        });
        serializer.collect_seq(prefix.chain(tokens))
    }
}
