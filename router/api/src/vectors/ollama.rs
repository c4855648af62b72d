//! The handlers of `/api/embed` and `/api/embeddings`, which are Ollama's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::embeddings::dimensions;
use super::scoring::normalize;
use super::{Answered, Call, Cut, Inputs};
use crate::app::App;
use crate::ollama::answer::nanos;
use crate::ollama::keep_alive::KeepAlive;
use crate::ollama::options::Options;
use crate::ollama::{ErrorResponse, untagged};
use crate::openai::{Prompt, Prompts};
use crate::respond;
use trunkline_base::error::ApiError;

/// The body of a request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub struct EmbedBody {
    /// A text or a list of token ids, or a list of at most 2048 of either. Texts get the control tokens that the
    /// model's tokenizer puts around them, token ids none.
    pub input: Prompts,
    /// The name of the served model, with or without `:latest`; may be omitted.
    pub model: Option<String>,
    /// If true, a longer input is cut to what the model takes. Ollama does so by default.
    #[schema(default = false)]
    pub truncate: Option<bool>,
    /// The number of leading elements to keep, at most the size of the model's vectors, which is the default.
    #[schema(minimum = 1)]
    pub dimensions: Option<i64>,
    /// Options, which do not change a vector.
    #[expect(dead_code, reason = "only its type is checked")]
    pub options: Option<Options>,
    /// The time for which the model stays in memory after this request, in seconds or as a duration such as `"5m"` or
    /// `"1h30m"`; negative for ever. It counts on a server of several models or with `--idle-unload`, which is the
    /// default, not five minutes. On others it is checked, and the model stays.
    pub keep_alive: Option<KeepAlive>,
}

/// The embeddings of all inputs.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbedResponse)]
pub struct EmbedAnswer<'a> {
    /// The name of the model.
    pub model: &'a str,
    /// The vectors, in the order of the inputs.
    pub embeddings: Vec<Vec<f32>>,
    /// The time since the request's arrival, in nanoseconds.
    pub total_duration: u64,
    /// Always 0, because a loaded model computes the request.
    pub load_duration: u64,
    /// The number of tokens of all inputs.
    pub prompt_eval_count: u32,
}

/// Returns the embedding of each input, in Ollama's form.
#[utoipa::path(
    post, path = "/api/embed", request_body = EmbedBody,
    responses(
        (status = 200, description = "The embeddings", body = EmbedAnswer<'_>),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(answer(&app, request).await)
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: EmbedBody = call.parse(body, &[]).await?;
    call.choose(body.model.as_deref().map(untagged))?;
    call.keep(body.keep_alive.map(Into::into));
    call.expect_embeddings()?;
    let num_elements = dimensions(body.dimensions, call.shard().vector_size())?;
    let (model, arrived) = (call.model().to_owned(), call.scope.arrival.at);
    let cut = Cut::of_flag(body.truncate);
    let Answered { vectors, reply, .. } = call.vectors(Inputs::each(body.input), "input", cut).await?;
    let write = move || {
        let shortened = |mut values: Vec<f32>| {
            values.truncate(num_elements);
            normalize(&mut values);
            values
        };
        axum::Json(EmbedAnswer {
            model: &model,
            embeddings: vectors.vectors.into_iter().map(shortened).collect(),
            total_duration: nanos(arrived.elapsed()),
            load_duration: 0,
            prompt_eval_count: vectors.prompt_tokens,
        })
        .into_response()
    };
    reply.send(write).await
}

/// The body of a request for one embedding.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = OllamaEmbeddingRequest)]
pub struct EmbeddingBody {
    /// The text, not empty.
    pub prompt: String,
    /// The name of the served model, with or without `:latest`; may be omitted.
    pub model: Option<String>,
    /// Options, which do not change a vector.
    #[expect(dead_code, reason = "only its type is checked")]
    pub options: Option<Options>,
    /// The time for which the model stays in memory after this request, in seconds or as a duration such as `"5m"` or
    /// `"1h30m"`; negative for ever. It counts on a server of several models or with `--idle-unload`, which is the
    /// default, not five minutes. On others it is checked, and the model stays.
    pub keep_alive: Option<KeepAlive>,
}

/// The embedding of a text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddingResponse)]
pub struct EmbeddingAnswer {
    /// The vector, which is not scaled to length 1.
    pub embedding: Vec<f32>,
}

/// Returns the embedding of a text, in the older of Ollama's forms.
#[utoipa::path(
    post, path = "/api/embeddings", request_body = EmbeddingBody,
    responses(
        (status = 200, description = "The embedding", body = EmbeddingAnswer),
        (status = 400, description = "The request is invalid", body = ErrorResponse),
    )
)]
pub async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<ErrorResponse>(answer_one(&app, request).await)
}

async fn answer_one(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: EmbeddingBody = call.parse(body, &[]).await?;
    call.choose(body.model.as_deref().map(untagged))?;
    call.keep(body.keep_alive.map(Into::into));
    call.expect_embeddings()?;
    let inputs = Inputs::each(Prompts(vec![Prompt::Text(body.prompt)]));
    let Answered { vectors, reply, .. } = call.vectors(inputs, "prompt", Cut::Never).await?;
    let embedding = vectors.vectors.into_iter().next().unwrap_or_default();
    reply.send(move || axum::Json(EmbeddingAnswer { embedding }).into_response()).await
}
