//! The handlers of `/rerank`, `/v1/rerank` and `/v2/rerank`, which are TEI's, Jina's and Cohere's, and of `/v1/score`
//! and `/score`, which are vLLM's.
//!
//! A model with one class reads each pair at once, and its score is the probability of that class. Of a model of
//! embeddings it is the cosine of the two vectors.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::scoring::{cosine, probabilities};
use super::{Answered, Call, Cut, Inputs, Reply, VectorUsage, check_count};
use crate::app::App;
use crate::openai::{self, Prompt, Prompts};
use crate::{respond, tgi};
use trunkline_base::clock::unix_s;
use trunkline_base::error::ApiError;
use trunkline_generation::vectors::Vectors;
use trunkline_http::Refused;

/// The scores of pairs, in their order.
struct Scores {
    vectors: Vectors,
    kind: Kind,
    /// The texts of the documents, if the answer repeats them.
    documents: Vec<Prompt>,
    reply: Reply,
}

/// The way to the score of a pair.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A vector of each pair has the logit of one class.
    Logit,
    /// The same; the score is the probability.
    Probability,
    /// There is a vector of each text. Those of so many queries come first.
    Cosine { num_queries: usize },
}

/// The two sides of the pairs: one text for all, or one for each.
struct Sides {
    queries: Vec<String>,
    documents: Vec<String>,
    /// The name of the documents in errors.
    field: &'static str,
    /// True if the answer repeats the documents.
    shows_documents: bool,
}

impl Sides {
    /// Computes the vectors that score each document with its query. `raw` asks for a class's logit instead of its
    /// probability.
    async fn scores(self, call: Call, cut: Cut, raw: bool) -> Result<Scores, ApiError> {
        let Self { queries, documents, field, shows_documents } = self;
        let num_queries = queries.len();
        let kind = match (call.info.labels.len(), raw) {
            (0, _) => Kind::Cosine { num_queries },
            (1, true) => Kind::Logit,
            (1, false) => Kind::Probability,
            (num_labels, _) => return Err(ApiError::NoScores { num_labels }),
        };
        let pairs = Inputs { shows_texts: shows_documents, ..Inputs::pairs(queries, documents) };
        let inputs = match kind {
            Kind::Logit | Kind::Probability => pairs,
            Kind::Cosine { .. } => {
                Inputs { shows_texts: shows_documents, ..Inputs::each(Prompts(pairs.texts)) }
            }
        };
        let Answered { vectors, reply, texts } = call.vectors(inputs, field, cut).await?;
        let documents = texts.into_iter().skip(num_queries).collect();
        Ok(Scores { vectors, kind, documents, reply })
    }
}

/// Returns the score of each pair.
fn scores(vectors: &[Vec<f32>], kind: Kind) -> Vec<f64> {
    match kind {
        Kind::Logit => vectors.iter().map(|logits| f64::from(logits[0])).collect(),
        Kind::Probability => vectors.iter().map(|logits| probabilities(logits)[0]).collect(),
        Kind::Cosine { num_queries } => {
            let (queries, documents) = vectors.split_at(num_queries);
            let query = |index: usize| &queries[if num_queries == 1 { 0 } else { index }];
            documents.iter().enumerate().map(|(index, document)| cosine(query(index), document)).collect()
        }
    }
}

/// The body of a request to rank documents. `/rerank` takes TEI's fields, too.
#[derive(Debug, Deserialize, ToSchema)]
pub struct RerankRequest {
    /// The text to which documents are compared.
    pub query: String,
    /// At most 2048 texts, or objects with `text`. The answer has Jina's and Cohere's form.
    pub documents: Option<Vec<Document>>,
    /// At most 2048 texts: TEI's name of `documents`, on `/rerank` only. The answer has TEI's form.
    pub texts: Option<Vec<String>>,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// The number of documents to return; all by default.
    #[schema(minimum = 1)]
    pub top_n: Option<i64>,
    /// If true, the answer repeats the documents, in Jina's form.
    #[schema(default = false)]
    pub return_documents: Option<bool>,
    /// If true, the answer repeats the documents, in TEI's form.
    #[schema(default = false)]
    pub return_text: Option<bool>,
    /// If true, scores are the logits of the class instead of its probability. Part of TEI's API.
    #[schema(default = false)]
    pub raw_scores: Option<bool>,
    /// If true, longer pairs are cut to what the model takes. Of a pair, the longer text is cut first. Part of TEI's
    /// API.
    #[schema(default = false)]
    pub truncate: Option<bool>,
    /// The number of leading tokens to keep of each pair, from 1 to the model's limit; -1 keeps as many as fit. The
    /// control tokens at the end stay. By default, longer texts are refused. Part of vLLM's API.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// Fields of Cohere's API that would change the scores.
const REFUSED_FOR_RANKS: &[Refused] = &[
    Refused { field: "max_tokens_per_doc", neutral: &[], hint: "use `truncate_prompt_tokens`" },
    Refused { field: "max_chunks_per_doc", neutral: &["1"], hint: "use `truncate_prompt_tokens`" },
    Refused { field: "rank_fields", neutral: &["[\"text\"]"], hint: "send each document as one text" },
];

/// A document, as a text or as an object that holds one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Documents by their relevance, the highest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct RerankResponse {
    /// The id of this answer.
    pub id: String,
    /// The model that computed the scores.
    pub model: String,
    pub usage: VectorUsage,
    pub results: Vec<Ranked>,
}

/// A document with its relevance.
#[derive(Debug, Serialize, ToSchema)]
pub struct Ranked {
    /// The number of the document in the request, from 0.
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<RankedDocument>,
    pub relevance_score: f64,
}

/// A document that the answer repeats.
#[derive(Debug, Serialize, ToSchema)]
pub struct RankedDocument {
    pub text: String,
}

/// A document with its relevance, in TEI's form.
#[derive(Debug, Serialize, ToSchema)]
pub struct TeiRank {
    /// The number of the document in the request, from 0.
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    pub score: f64,
}

/// Ranks documents by their relevance to a query. Also as `/v2/rerank`.
#[utoipa::path(
    post, path = "/v1/rerank", request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents, the most relevant first", body = RerankResponse),
        (status = 400, description = "The request is invalid", body = openai::ErrorResponse),
    )
)]
pub async fn rerank(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<openai::ErrorResponse>(answer(&app, request, false).await)
}

/// Ranks documents by their relevance to a query. The answer has the form of Text Embeddings Inference if the documents
/// are in `texts`, and that of `/v1/rerank` if they are in `documents`.
#[utoipa::path(
    post, path = "/rerank", request_body = RerankRequest,
    responses(
        (status = 200, description = "The documents, the most relevant first", body = Vec<TeiRank>),
        (status = 422, description = "The request is invalid", body = tgi::ErrorResponse),
        (status = 503, description = "The server is not ready or is draining", body = tgi::ErrorResponse),
    )
)]
pub async fn rerank_tei(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<tgi::ErrorResponse>(answer(&app, request, true).await)
}

async fn answer(app: &Arc<App>, request: Request, takes_texts: bool) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: RerankRequest = call.parse(body, REFUSED_FOR_RANKS).await?;
    call.choose(body.model.as_deref())?;
    check_count("documents", body.documents.as_ref().map_or(0, Vec::len))?;
    check_count("texts", body.texts.as_ref().map_or(0, Vec::len))?;
    let (documents, is_tei) = match (body.documents, body.texts) {
        (Some(documents), None) => (documents.into_iter().map(Document::into_text).collect(), false),
        (_, Some(_)) if !takes_texts => {
            return Err(ApiError::value("texts", "belongs to `/rerank`; hint: use `documents`"));
        }
        (None, Some(texts)) => (texts, true),
        (Some(_), Some(_)) => return Err(ApiError::value("texts", "cannot be combined with `documents`")),
        (None, None) => {
            let field = if takes_texts { "texts" } else { "documents" };
            return Err(ApiError::MissingField { field: field.to_owned() });
        }
    };
    let top_n = match body.top_n {
        Some(asked) if asked < 1 => {
            return Err(ApiError::value("top_n", format!("is {asked}, must be at least 1")));
        }
        asked => asked.and_then(|asked| usize::try_from(asked).ok()).unwrap_or(usize::MAX),
    };
    let cut = match Cut::of_flag(body.truncate) {
        Cut::Never => Cut::of_field(body.truncate_prompt_tokens),
        cut => cut,
    };
    let model = call.model().to_owned();
    let shows_documents = body.return_documents == Some(true) || body.return_text == Some(true);
    let field = if is_tei { "texts" } else { "documents" };
    let sides = Sides { queries: vec![body.query], documents, field, shows_documents };
    let Scores { vectors, kind, documents, reply } =
        sides.scores(call, cut, body.raw_scores == Some(true)).await?;
    let write = move || {
        let mut texts = documents.into_iter().filter_map(Prompt::into_text);
        let scored = scores(&vectors.vectors, kind).into_iter();
        let mut ranked: Vec<(usize, (f64, Option<String>))> =
            scored.map(|score| (score, texts.next())).enumerate().collect();
        // The sort is stable, so documents with equal scores keep their order.
        ranked.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
        ranked.truncate(top_n);
        let ranked = ranked.into_iter();
        if is_tei {
            let rank = |(index, (score, text))| TeiRank { index, text, score };
            return axum::Json(ranked.map(rank).collect::<Vec<_>>()).into_response();
        }
        let rank = |(index, (relevance_score, text)): (usize, (f64, Option<String>))| Ranked {
            index,
            document: text.map(|text| RankedDocument { text }),
            relevance_score,
        };
        let id = format!("rerank-{}", trunkline_base::random::id());
        let usage = VectorUsage::of(&vectors);
        axum::Json(RerankResponse { id, model, usage, results: ranked.map(rank).collect() }).into_response()
    };
    reply.send(write).await
}

/// The body of a request to score pairs of texts.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ScoreRequest {
    /// One text, or as many as there are in `text_2`. Also called `queries` or `data_1`.
    #[serde(alias = "queries", alias = "data_1")]
    pub text_1: OneOrSeveral,
    /// A text or at most 2048, to which those of `text_1` are compared. Also called `documents`, `items` or `data_2`.
    #[serde(alias = "documents", alias = "items", alias = "data_2")]
    pub text_2: OneOrSeveral,
    /// The name of the served model; may be omitted.
    pub model: Option<String>,
    /// The number of leading tokens to keep of each pair, from 1 to the model's limit; -1 keeps as many as fit. The
    /// control tokens at the end stay. By default, longer texts are refused. Part of vLLM's API.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// A text or a list of texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OneOrSeveral {
    One(String),
    Several(Vec<String>),
}

impl OneOrSeveral {
    fn into_list(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        }
    }
}

/// The scores of all pairs.
#[derive(Debug, Serialize, ToSchema)]
pub struct ScoreResponse {
    /// The id of this answer.
    pub id: String,
    /// Always `list`.
    pub object: &'static str,
    /// The time of the answer, in seconds since 1970.
    pub created: u64,
    /// The model that computed them.
    pub model: String,
    /// One entry for each pair, in their order.
    pub data: Vec<Score>,
    pub usage: VectorUsage,
}

/// The score of one pair.
#[derive(Debug, Serialize, ToSchema)]
pub struct Score {
    /// The number of the pair, from 0.
    pub index: usize,
    /// Always `score`.
    pub object: &'static str,
    pub score: f64,
}

/// Scores pairs of texts. Also as `/score`.
#[utoipa::path(
    post, path = "/v1/score", request_body = ScoreRequest,
    responses(
        (status = 200, description = "The scores", body = ScoreResponse),
        (status = 400, description = "The request is invalid", body = openai::ErrorResponse),
    )
)]
pub async fn score(State(app): State<Arc<App>>, request: Request) -> Response {
    respond::answer::<openai::ErrorResponse>(answer_score(&app, request).await)
}

async fn answer_score(app: &Arc<App>, request: Request) -> Result<Response, ApiError> {
    let (mut call, body) = Call::admit(app, request).await?;
    let body: ScoreRequest = call.parse(body, &[]).await?;
    call.choose(body.model.as_deref())?;
    let (queries, documents) = (body.text_1.into_list(), body.text_2.into_list());
    if queries.len() != 1 && queries.len() != documents.len() {
        let problem =
            format!("has {} texts, must have one or the {} of `text_2`", queries.len(), documents.len());
        return Err(ApiError::value("text_1", problem));
    }
    check_count("text_2", documents.len())?;
    let model = call.model().to_owned();
    let cut = Cut::of_field(body.truncate_prompt_tokens);
    let sides = Sides { queries, documents, field: "text_2", shows_documents: false };
    let Scores { vectors, kind, reply, .. } = sides.scores(call, cut, false).await?;
    let write = move || {
        let usage = VectorUsage::of(&vectors);
        let score = |(index, score)| Score { index, object: "score", score };
        let data = scores(&vectors.vectors, kind).into_iter().enumerate().map(score).collect();
        let id = format!("score-{}", trunkline_base::random::id());
        axum::Json(ScoreResponse { id, object: "list", created: unix_s(), model, data, usage })
            .into_response()
    };
    reply.send(write).await
}
