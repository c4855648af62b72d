//! The handlers of `/tokenize` and `/chat_tokenize`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize, Serializer};
use trunkline_text::{
    ChatRequest, DecodeSpecial, Detokenizer, EncodeSpecial, EncodedToken, ModelText, TextError, TextStart,
};
use utoipa::ToSchema;

use super::ErrorResponse;
use crate::app::App;
use crate::openai;
use crate::respond;
use trunkline_base::error::ApiError;
use trunkline_base::tenants::Caller;
use trunkline_http::parse;

/// The body of a request to tokenize a text, or with `messages` a chat. The field that has it decides the form of the
/// answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// The text; the answer has TGI's form.
    pub inputs: Option<String>,
    /// The text; the answer has vLLM's form.
    pub prompt: Option<String>,
    /// The text; the answer has llama.cpp's form.
    pub content: Option<String>,
    /// A chat, with other fields of `/v1/chat/completions`; the answer has vLLM's form.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<IgnoredAny>>,
    /// If true, the BOS token comes first if the model asks for it. The default is true, and false with `content`.
    pub add_special_tokens: Option<bool>,
    /// llama.cpp's name for `add_special_tokens`.
    pub add_special: Option<bool>,
    /// If true, the text of each token is added, where the form has a place for it.
    #[schema(default = false)]
    pub with_pieces: Option<bool>,
    /// vLLM's name for `with_pieces`.
    #[schema(default = false)]
    pub return_token_strs: Option<bool>,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
}

/// The tokens of a prompt, in vLLM's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// The number of tokens.
    pub count: usize,
    /// The most tokens of prompt and output together; null while the model loads.
    pub max_model_len: Option<u32>,
    /// The ids of the tokens.
    pub tokens: Vec<u32>,
    /// The text of each token, if it was asked for.
    pub token_strs: Option<Vec<String>>,
}

/// The tokens of a text, in llama.cpp's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenPieces {
    /// The ids of the tokens, or objects of `id` and `piece`.
    pub tokens: Vec<TokenPiece>,
}

/// A token in llama.cpp's form.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenPiece {
    /// Only the id of the token.
    Id(u32),
    /// The id and the text.
    Piece { id: u32, piece: String },
}

/// The answer to a request to tokenize.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum TokenizeResponse<'a> {
    /// The answer to `inputs`.
    #[schema(value_type = Vec<SimpleToken>)]
    Tokens(Tokens<'a>),
    /// The answer to `prompt` and `messages`.
    Count(TokenCount),
    /// The answer to `content`.
    Pieces(TokenPieces),
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

/// Tokenizes a text or a chat with the model's tokenizer, in the form of TGI, vLLM or llama.cpp.
#[utoipa::path(
    post, path = "/tokenize", request_body = TokenizeRequest,
    responses(
        (status = 200, description = "The tokens of the text", body = TokenizeResponse),
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
    post, path = "/chat_tokenize", request_body = openai::ChatBody,
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

async fn chat_answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let read = |app: &App, caller: &Caller, body: &[u8]| openai::chat::read_template(app, caller, body);
    let (app, caller, _place, chat) = app.read(request, read).await?;
    let prompt = openai::chat::template(&app, &caller, chat).await?;
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
        Ok::<_, ApiError>((axum::Json(answer).into_response(), memory))
    };
    let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
    memory.hold(response).await
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let read = |app: &App, caller: &Caller, bytes: &[u8]| {
        let mut body: TokenizeRequest = parse(bytes, &[], "")?;
        app.served.check_name(caller, body.model.as_deref())?;
        let (form, text) = body.form_and_text()?;
        let text = match text {
            Some(text) => Asked::Text(text),
            None => Asked::Chat(openai::chat::read_template(app, caller, bytes)?),
        };
        Ok((body, form, text))
    };
    let (app, caller, _place, (body, form, asked)) = app.read(request, read).await?;
    let with_texts = body.with_pieces.or(body.return_token_strs).unwrap_or(false);
    let max_model_len =
        app.served.serving().ok().map(|shard| app.served.validator(&shard).prompt.max_total_tokens);
    let count = move |model: &ModelText, tokens: Vec<u32>| TokenCount {
        count: tokens.len(),
        max_model_len,
        token_strs: with_texts.then(|| tokens.iter().map(|id| text_of(model, *id)).collect()),
        tokens,
    };
    let mut memory = app.admission.answer_memory(&caller);
    let text = match asked {
        Asked::Text(text) => text,
        Asked::Chat(chat) => {
            let prompt = openai::chat::template(&app, &caller, chat).await?;
            memory.grow_to(prompt.token_ids.len() * TOKEN_BYTES)?;
            let num_bytes = prompt.text.len();
            let write = move |model: &ModelText| {
                let answer = TokenizeResponse::Count(count(model, prompt.token_ids));
                Ok::<_, ApiError>((axum::Json(answer).into_response(), memory))
            };
            let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
            return memory.hold(response).await;
        }
    };
    let add_special = body.add_special_tokens.or(body.add_special).unwrap_or(form != Form::LlamaCpp);
    let num_bytes = text.len();
    let write = move |model: &ModelText| {
        let tokens = Tokens::new(model, &text, add_special)?;
        memory.grow_to(tokens.encoded.len() * TOKEN_BYTES)?;
        let piece = |id| match with_texts {
            true => TokenPiece::Piece { id, piece: text_of(model, id) },
            false => TokenPiece::Id(id),
        };
        let answer = match form {
            Form::Tgi => TokenizeResponse::Tokens(tokens),
            Form::Vllm => TokenizeResponse::Count(count(model, tokens.ids().collect())),
            Form::LlamaCpp => {
                TokenizeResponse::Pieces(TokenPieces { tokens: tokens.ids().map(piece).collect() })
            }
        };
        Ok::<_, ApiError>((axum::Json(answer).into_response(), memory))
    };
    let (response, memory) = app.served.tokenize(&caller, num_bytes, write).await?;
    memory.hold(response).await
}

/// The text or the chat that a request asks to tokenize.
enum Asked {
    Text(String),
    Chat(ChatRequest),
}

/// The server whose form an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Tgi,
    Vllm,
    LlamaCpp,
}

impl TokenizeRequest {
    /// Returns the form of the answer, and the text unless it is a chat.
    fn form_and_text(&mut self) -> Result<(Form, Option<String>), ApiError> {
        match (self.inputs.take(), self.prompt.take(), self.content.take(), &self.messages) {
            (Some(text), None, None, None) => Ok((Form::Tgi, Some(text))),
            (None, Some(text), None, None) => Ok((Form::Vllm, Some(text))),
            (None, None, Some(text), None) => Ok((Form::LlamaCpp, Some(text))),
            (None, None, None, Some(_)) => Ok((Form::Vllm, None)),
            (None, None, None, None) => Err(ApiError::MissingField { field: "inputs".into() }),
            (inputs, prompt, ..) => {
                let field = if inputs.is_some() { "inputs" } else { prompt.map_or("content", |_| "prompt") };
                let problem =
                    "is not the only text; hint: send one of `inputs`, `prompt`, `content` and `messages`";
                Err(ApiError::value(field, problem))
            }
        }
    }
}

/// Returns the text of a token; bytes that are no text on their own are U+FFFD.
fn text_of(model: &ModelText, id: u32) -> String {
    String::from_utf8_lossy(model.tokenizer.token_bytes(id).unwrap_or_default()).into_owned()
}

/// The tokens of a text, which become [`SimpleToken`]s while they are written.
#[derive(Debug)]
pub struct Tokens<'a> {
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

    fn ids(&self) -> impl Iterator<Item = u32> {
        let prefix = self.model.prefix_ids.iter().copied().filter(|_| self.adds_prefix);
        prefix.chain(self.encoded.iter().map(|token| token.id))
    }
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let prefix = self.model.prefix_ids.iter().filter(|_| self.adds_prefix).map(|&id| {
            // These tokens represent no part of the text, so their names are shown.
            SimpleToken { id, text: text_of(self.model, id), start: 0, stop: 0 }
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
