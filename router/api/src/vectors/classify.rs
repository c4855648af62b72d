//! The handlers of `/v1/classify` and `/classify`, which are vLLM's, and of `/predict`, which is TEI's.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scoring::probabilities;
use super::{Answered, Call, Cut, Inputs, VectorUsage};
use crate::app::App;
use crate::openai::{self, Prompts};
use crate::{respond, tgi};
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;

/// The body of a request to classify texts.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ClassifyRequest {
    /// A text or a list of token ids, or a list of at most 2048 of either. Texts get the control tokens that the
    /// model's tokenizer puts around them, token ids none.
    pub input: Prompts,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// The number of leading tokens to keep of each input, from 1 to the model's limit; -1 keeps as many as fit. The
    /// control tokens at the end stay. By default, longer texts are refused. Part of vLLM's API.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// The classes of all inputs.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassifyResponse {
    /// The id of this answer.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// The time of the answer, in seconds since 1970.
    pub created: u64,
    /// The model that computed them.
    pub model: String,
    /// One entry for each input, in the order of the inputs.
    pub data: Vec<Classified>,
    pub usage: VectorUsage,
}

/// The classes of one input.
#[derive(Debug, Serialize, ToSchema)]
pub struct Classified {
    /// The number of the input, from 0.
    pub index: usize,
    /// The likeliest class.
    pub label: String,
    /// The probability of each class, by its number.
    pub probs: Vec<f64>,
    /// The number of classes.
    pub num_classes: usize,
}

/// Returns the probability of each of the model's classes for each input. Also as `/classify`.
#[utoipa::path(
    post, path = "/v1/classify", request_body = ClassifyRequest,
    responses(
        (status = 200, description = "The classes", body = ClassifyResponse),
        (status = 400, description = "The request is invalid", body = openai::ErrorResponse),
    )
)]
pub async fn classify(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<openai::ErrorResponse>(answer(&app, request).await)
}

async fn answer(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: ClassifyRequest = call.parse(body, &[]).await?;
    call.choose(body.model.as_deref())?;
    let labels = call.labels()?.to_vec();
    let model = call.model().to_owned();
    let cut = Cut::of_field(body.truncate_prompt_tokens);
    let Answered { vectors, reply, .. } = call.vectors(Inputs::each(body.input), "input", cut).await?;
    let write = move || {
        let usage = VectorUsage::of(&vectors);
        let classified = |(index, logits): (usize, Vec<f32>)| {
            let probs = probabilities(&logits);
            let label = labels[likeliest(&probs)].clone();
            Classified { index, label, num_classes: probs.len(), probs }
        };
        let data = vectors.vectors.into_iter().enumerate().map(classified).collect();
        let id = format!("classify-{}", trunkline_base::random::id());
        axum::Json(ClassifyResponse { id, object: "list", created: unix_s(), model, data, usage })
            .into_response()
    };
    reply.send(write).await
}

/// The index of the largest number, the first of several.
fn likeliest(probs: &[f64]) -> usize {
    (0..probs.len()).rev().max_by(|a, b| probs[*a].total_cmp(&probs[*b])).unwrap_or_default()
}

/// The body of a request to TEI's route.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PredictRequest {
    /// A text, a pair of texts, or a list of lists of one or two texts.
    pub inputs: PredictInputs,
    /// If true, a longer input is cut to what the model takes. Of a pair, the longer text is cut first.
    #[schema(default = false)]
    pub truncate: Option<bool>,
    /// If true, the scores are the model's logits instead of probabilities.
    #[schema(default = false)]
    pub raw_scores: Option<bool>,
}

/// The inputs of TEI's route.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PredictInputs {
    Text(String),
    Pair([String; 2]),
    List(Vec<PredictInput>),
}

/// One of several inputs of TEI's route.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PredictInput {
    Text([String; 1]),
    Pair([String; 2]),
}

/// A class and its score.
#[derive(Debug, Serialize, ToSchema)]
pub struct Prediction<'a> {
    pub score: f64,
    pub label: &'a str,
}

/// The answer of TEI's route: the classes of the input, or of each input of a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Predictions<'a> {
    One(Vec<Prediction<'a>>),
    Each(Vec<Vec<Prediction<'a>>>),
}

/// Returns the score of each class, the highest first, in the form of Text Embeddings Inference.
#[utoipa::path(
    post, path = "/predict", request_body = PredictRequest,
    responses(
        (status = 200, description = "The classes", body = Predictions<'_>),
        (status = 422, description = "The request is invalid", body = tgi::ErrorResponse),
        (status = 503, description = "The server is not ready or is draining", body = tgi::ErrorResponse),
    )
)]
pub async fn predict(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<tgi::ErrorResponse>(answer_tei(&app, request).await)
}

async fn answer_tei(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: PredictRequest = call.parse(body, &[]).await?;
    let labels = call.labels()?.to_vec();
    let (mut inputs, mut is_list) = (Inputs::default(), false);
    match body.inputs {
        PredictInputs::Text(one) => inputs.push(one),
        PredictInputs::Pair([first, second]) => inputs.push_pair(first, second),
        PredictInputs::List(list) => {
            is_list = true;
            list.into_iter().for_each(|input| match input {
                PredictInput::Text([one]) => inputs.push(one),
                PredictInput::Pair([first, second]) => inputs.push_pair(first, second),
            });
        }
    }
    let Answered { vectors, reply, .. } = call.vectors(inputs, "inputs", Cut::of_flag(body.truncate)).await?;
    let write = move || {
        let predictions = |logits: Vec<f32>| {
            let scores = match body.raw_scores {
                Some(true) => logits.into_iter().map(f64::from).collect(),
                _ => probabilities(&logits),
            };
            let predictions =
                scores.into_iter().zip(&labels).map(|(score, label)| Prediction { score, label });
            let mut predictions: Vec<Prediction<'_>> = predictions.collect();
            predictions.sort_by(|a, b| b.score.total_cmp(&a.score));
            predictions
        };
        let mut each: Vec<_> = vectors.vectors.into_iter().map(predictions).collect();
        let one = |each: &mut Vec<_>| Predictions::One(each.pop().unwrap_or_default());
        axum::Json(if is_list { Predictions::Each(each) } else { one(&mut each) }).into_response()
    };
    reply.send(write).await
}
