//! Routes that read a vector of each text: embeddings, scores of pairs, and classes.
//!
//! OpenAI, Cohere, Jina, vLLM and Text Embeddings Inference (TEI) have them. They share the way to the vectors, which
//! is here; the routes differ in the forms of requests and answers.

pub mod classify;
pub mod embeddings;
pub mod rerank;
mod scoring;

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use trunkline_scheduler::{PooledPrompt, Pooling};
use trunkline_text::{Framed, GenerationDefaults, ModelText, Question, TextError};
use utoipa::ToSchema;

use super::app::App;
use super::openai::Prompt;
use super::pipeline::Scope;
use crate::engine::shard::{ShardInfo, Vectors as VectorInfo};
use crate::error::ApiError;
use crate::generation::admission::Admitted;
use crate::generation::answer_memory::AnswerMemory;
use crate::generation::place::Place;
use crate::generation::vectors::Vectors;
use crate::http::{IgnoredFields, OtherFields, Refused, parse_noting};
use crate::limits::MAX_VECTOR_INPUTS;
use crate::request::raw::{FieldNames, RawParams};
use crate::request::ready;

/// Fields of all these routes that are refused, because ignoring them would change the answer.
const REFUSED: &[Refused] = &[
    Refused { field: "add_special_tokens", neutral: &["true"], hint: "send token ids for full control" },
    Refused {
        field: "truncation_direction",
        neutral: &["\"right\"", "\"Right\""],
        hint: "texts are cut at their end",
    },
    Refused { field: "prompt_name", neutral: &[], hint: "put the prompt into the text" },
    Refused { field: "messages", neutral: &[], hint: "send the text of the messages" },
    Refused { field: "softmax", neutral: &["true"], hint: "use `raw_scores` of `/predict` or `/rerank`" },
    Refused { field: "activation", neutral: &["true"], hint: "use `raw_scores` of `/predict` or `/rerank`" },
    Refused {
        field: "use_activation",
        neutral: &["true"],
        hint: "use `raw_scores` of `/predict` or `/rerank`",
    },
];

/// Fields of all these routes that change no answer.
const HARMLESS: &[&str] = &["user", "priority"];

/// The most memory of an element of a vector in an answer: its number, and its JSON text, whose buffer is briefly in
/// memory twice.
const ELEMENT_BYTES: usize = 32;
const INPUT_BYTES: usize = 256;

/// A text or a pair of texts whose vector is asked for.
pub(crate) enum Input {
    Prompt(Prompt),
    Pair(String, String),
}

impl Input {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Prompt(prompt) => prompt.num_bytes(),
            Self::Pair(first, second) => first.len() + second.len(),
        }
    }

    /// With `question`, a pair is put into that prompt.
    fn encode(
        self,
        model: &ModelText,
        question: Option<&Question<'_>>,
        max_tokens: Option<usize>,
    ) -> Result<Framed, TextError> {
        match self {
            Self::Prompt(Prompt::Text(text)) => model.encode_framed(&text, None, max_tokens),
            Self::Prompt(Prompt::TokenIds(mut ids)) => {
                ids.truncate(max_tokens.unwrap_or(usize::MAX));
                Ok(Framed { token_ids: ids, second_text: 0 })
            }
            Self::Pair(first, second) if let Some(question) = question => {
                question.encode(&first, &second, max_tokens)
            }
            Self::Pair(first, second) => model.encode_framed(&first, Some(&second), max_tokens),
        }
    }
}

/// The token counts of a request for vectors, in OpenAI's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct VectorUsage {
    /// The number of tokens of all inputs.
    pub prompt_tokens: u32,
    /// The same number, because nothing is generated.
    pub total_tokens: u32,
}

impl VectorUsage {
    fn of(vectors: &Vectors) -> Self {
        Self { prompt_tokens: vectors.prompt_tokens, total_tokens: vectors.prompt_tokens }
    }
}

/// The way in which texts are cut that are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// They are refused as too long.
    Never,
    /// They are cut to what the model takes.
    ToContext,
    /// They are cut to so many tokens.
    To(i64),
}

impl Cut {
    /// Reads vLLM's field. -1 is the model's limit.
    fn of_field(truncate_prompt_tokens: Option<i64>) -> Self {
        match truncate_prompt_tokens {
            None => Self::Never,
            Some(-1) => Self::ToContext,
            Some(most) => Self::To(most),
        }
    }

    /// Reads TEI's field.
    fn of_flag(truncate: Option<bool>) -> Self {
        if truncate == Some(true) { Self::ToContext } else { Self::Never }
    }

    fn max_tokens(self, limit: u32) -> Result<Option<usize>, ApiError> {
        match self {
            Self::Never => Ok(None),
            Self::ToContext => Ok(Some(limit as usize)),
            Self::To(most) if (1..=i64::from(limit)).contains(&most) => Ok(Some(most as usize)),
            Self::To(most) => {
                let problem = format!("is {most}, must be from 1 to {limit}, or -1 for {limit}");
                Err(ApiError::value("truncate_prompt_tokens", problem))
            }
        }
    }
}

/// An admitted request for vectors.
pub(crate) struct Call {
    scope: Scope,
    permit: Place,
    info: VectorInfo,
    path: String,
    ignored: IgnoredFields,
}

/// The way to answer a call: the memory of the answer, and the fields that the answer names as ignored.
pub(crate) struct Reply {
    memory: AnswerMemory,
    path: String,
    ignored: IgnoredFields,
}

impl Reply {
    /// Writes an answer whose memory is accounted for until it is sent.
    async fn send(self, answer: impl Serialize) -> Result<Response, ApiError> {
        let mut response = self.memory.hold(axum::Json(answer).into_response()).await?;
        self.ignored.report(&self.path, &mut response);
        Ok(response)
    }
}

impl Call {
    /// Admits a request and returns it with its body. Refuses models that make no vectors.
    async fn admit(app: &Arc<App>, request: axum::extract::Request) -> Result<(Self, Bytes), ApiError> {
        let path = request.uri().path().to_owned();
        let (Admitted { permit, shard, arrival }, body) = app.admit(request).await?;
        let info = shard.vectors.clone().ok_or(ApiError::NoVectors)?;
        let mut scope = Scope::new(app, arrival, shard);
        let most = match info.pooling {
            Pooling::Whole => scope.shard.max_step_tokens,
            _ => u32::MAX,
        };
        scope.validator.allow_whole_context(most);
        Ok((Self { scope, permit, info, path, ignored: IgnoredFields::default() }, body))
    }

    /// Parses the body. `refused` are fields of the route besides those of all routes.
    fn parse<T: DeserializeOwned>(&mut self, body: &[u8], refused: &[Refused]) -> Result<T, ApiError> {
        let refused = &[REFUSED, refused].concat();
        parse_noting(body, OtherFields { refused, harmless: HARMLESS }, "", &mut self.ignored)
    }

    /// Refuses a model with classes, whose vectors mean something else.
    fn expect_embeddings(&self) -> Result<(), ApiError> {
        if self.info.labels.is_empty() { Ok(()) } else { Err(ApiError::NoEmbeddings) }
    }

    /// Returns the names of the model's classes. Refuses a model without any.
    fn labels(&self) -> Result<&[String], ApiError> {
        if self.info.labels.is_empty() { Err(ApiError::NoClasses) } else { Ok(&self.info.labels) }
    }

    fn model(&self) -> &str {
        &self.scope.app.served.model.served_name
    }

    fn shard(&self) -> &ShardInfo {
        &self.scope.shard
    }

    /// Computes the vectors of inputs. `field` names them in errors.
    async fn vectors(
        self,
        inputs: Vec<Input>,
        field: &'static str,
        cut: Cut,
    ) -> Result<(Vectors, Reply), ApiError> {
        let Self { scope, permit, info, path, ignored } = self;
        let served = &scope.app.served;
        if inputs.is_empty() {
            return Err(ApiError::value(field, "is empty; hint: send at least one text"));
        }
        if inputs.len() > MAX_VECTOR_INPUTS {
            let problem = format!(
                "has {} entries, the limit is {MAX_VECTOR_INPUTS}; hint: send several requests",
                inputs.len()
            );
            return Err(ApiError::value(field, problem));
        }
        let mut memory = scope.app.admission.answer_memory(&scope.arrival.caller);
        memory.grow_to(inputs.len() * (INPUT_BYTES + info.size as usize * ELEMENT_BYTES))?;
        let names = FieldNames {
            max_new_tokens: "max_tokens",
            min_tokens: "min_tokens",
            top_logprobs: "logprobs",
            prompt: field,
            stop: "stop",
        };
        let raw = RawParams::default();
        let params =
            scope.validator.check(&scope.arrival, raw, None, &GenerationDefaults::default(), names)?;
        let max_tokens = cut.max_tokens(scope.validator.max_input_tokens)?;
        let num_bytes = inputs.iter().map(Input::num_bytes).sum();
        let encode = move |model: &ModelText| {
            let question = info.asks_about_pairs.then(|| model.question()).transpose()?;
            let encode = |input: Input| input.encode(model, question.as_ref(), max_tokens);
            inputs.into_iter().map(encode).collect::<Result<Vec<_>, _>>()
        };
        let encoded = served.tokenize(&scope.arrival.caller, num_bytes, encode).await?;
        let pooling = info.pooling;
        let prompt = |Framed { token_ids, second_text }| {
            let request = params.with_prompt(ready::Prompt { token_ids, ..ready::Prompt::default() })?;
            Ok((request, PooledPrompt { pooling, second_text }))
        };
        let requests = encoded.into_iter().map(prompt).collect::<Result<Vec<_>, ApiError>>()?;
        let vectors = scope.app.admission.vectors(served, requests, permit).await?;
        if vectors.vectors.iter().any(|vector| vector.len() != info.size as usize) {
            return Err(ApiError::SequenceFailed { detail: "router and shard disagree".to_owned() });
        }
        Ok((vectors, Reply { memory, path, ignored }))
    }
}
