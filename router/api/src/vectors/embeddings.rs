//! The handlers of `/v1/embeddings`, which is OpenAI's, and of `/embed`, which is TEI's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scoring::normalize;
use super::{Answered, Call, Cut, Inputs, VectorUsage};
use crate::app::App;
use crate::openai::{self, Prompts};
use crate::{respond, tgi};
use trunkline_base::error::ApiError;
use trunkline_http::Refused;

/// The body of a request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// A text or a list of token ids, or a list of at most 2048 of either. Texts get the control tokens that the
    /// model's tokenizer puts around them, token ids none.
    pub input: Prompts,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// The form of the vectors: `float`, the default, or `base64`.
    pub encoding_format: Option<EncodingFormat>,
    /// The number of leading elements to keep, at most the size of the model's vectors, which is the default. Only
    /// models that were trained for it keep their meaning then.
    #[schema(minimum = 1)]
    pub dimensions: Option<i64>,
    /// The number of leading tokens to keep of each input, from 1 to the model's limit; -1 keeps as many as fit. The
    /// control tokens at the end stay. By default, longer texts are refused. Part of vLLM's API.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// If false, vectors are not scaled to length 1. Part of vLLM's API.
    #[schema(default = true)]
    pub normalize: Option<bool>,
}

/// Fields of Jina's and vLLM's APIs that would change the vectors.
const REFUSED_FOR_EMBEDDINGS: &[Refused] = &[
    Refused { field: "task", neutral: &[], hint: "put the prompt of the task into the text" },
    Refused { field: "late_chunking", neutral: &["false"], hint: "leave it out" },
    Refused { field: "embed_dtype", neutral: &["\"float32\""], hint: "leave it out" },
    Refused { field: "endianness", neutral: &["\"little\"", "\"native\""], hint: "leave it out" },
];

/// The form of a vector in an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// The bytes of little-endian f32 numbers in Base64.
    Base64,
}

/// The embeddings of all inputs.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingResponse<'a> {
    /// Always `list`.
    pub object: &'static str,
    /// One embedding for each input, in the order of the inputs.
    pub data: Vec<Embedding>,
    /// The model that computed them.
    pub model: &'a str,
    pub usage: VectorUsage,
}

/// The embedding of one input.
#[derive(Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// The number of the input, from 0.
    pub index: usize,
    pub embedding: Vector,
}

/// A vector, as numbers or as Base64 text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

impl Vector {
    fn new(values: Vec<f32>, format: EncodingFormat) -> Self {
        match format {
            EncodingFormat::Float => Self::Float(values),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
                Self::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// Returns the embedding of each input.
#[utoipa::path(
    post, path = "/v1/embeddings", request_body = EmbeddingRequest,
    responses(
        (status = 200, description = "The embeddings", body = EmbeddingResponse<'_>),
        (status = 400, description = "The request is invalid", body = openai::ErrorResponse),
    )
)]
pub async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<openai::ErrorResponse>(answer(&app, request).await)
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: EmbeddingRequest = call.parse(body, REFUSED_FOR_EMBEDDINGS).await?;
    call.choose(body.model.as_deref())?;
    call.expect_embeddings()?;
    let num_elements = dimensions(body.dimensions, call.shard().vector_size())?;
    let model = call.model().to_owned();
    let cut = Cut::of_field(body.truncate_prompt_tokens);
    let Answered { vectors, reply, .. } = call.vectors(Inputs::each(body.input), "input", cut).await?;
    let format = body.encoding_format.unwrap_or_default();
    let write = move || {
        let usage = VectorUsage::of(&vectors);
        let vectors = vectors.vectors.into_iter().enumerate();
        let data = vectors.map(|(index, mut values)| {
            values.truncate(num_elements);
            if body.normalize != Some(false) {
                normalize(&mut values);
            }
            Embedding { object: "embedding", index, embedding: Vector::new(values, format) }
        });
        axum::Json(EmbeddingResponse { object: "list", data: data.collect(), model: &model, usage })
            .into_response()
    };
    reply.send(write).await
}

pub(super) fn dimensions(asked: Option<i64>, most: usize) -> Result<usize, ApiError> {
    match asked {
        None => Ok(most),
        Some(asked) if (1..=most as i64).contains(&asked) => Ok(asked as usize),
        Some(asked) => {
            Err(ApiError::value("dimensions", format!("is {asked}, this model's vectors have 1 to {most}")))
        }
    }
}

/// The body of a request to TEI's route.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// A text or a list of token ids, or a list of at most 2048 of either. Texts get the control tokens that the
    /// model's tokenizer puts around them, token ids none.
    pub inputs: Prompts,
    /// If true, a longer input is cut to what the model takes.
    #[schema(default = false)]
    pub truncate: Option<bool>,
    /// If false, vectors are not scaled to length 1.
    #[schema(default = true)]
    pub normalize: Option<bool>,
    /// The number of leading elements to keep, at most the size of the model's vectors, which is the default.
    #[schema(minimum = 1)]
    pub dimensions: Option<i64>,
}

/// Returns the embedding of each input, in the form of Text Embeddings Inference.
#[utoipa::path(
    post, path = "/embed", request_body = EmbedRequest,
    responses(
        (status = 200, description = "The embeddings", body = Vec<Vec<f32>>),
        (status = 422, description = "The request is invalid", body = tgi::ErrorResponse),
        (status = 503, description = "The server is not ready or is draining", body = tgi::ErrorResponse),
    )
)]
pub async fn embed(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<tgi::ErrorResponse>(answer_tei(&app, request).await)
}

async fn answer_tei(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: EmbedRequest = call.parse(body, &[]).await?;
    call.expect_embeddings()?;
    let num_elements = dimensions(body.dimensions, call.shard().vector_size())?;
    let cut = Cut::of_flag(body.truncate);
    let Answered { mut vectors, reply, .. } = call.vectors(Inputs::each(body.inputs), "inputs", cut).await?;
    let write = move || {
        for values in &mut vectors.vectors {
            values.truncate(num_elements);
            if body.normalize != Some(false) {
                normalize(values);
            }
        }
        axum::Json(vectors.vectors).into_response()
    };
    reply.send(write).await
}
