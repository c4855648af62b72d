//! The error type of all routes. Each error has a text, an HTTP status, a class and a stable code.
//!
//! The dialects render it in their own formats. Only `ApiError::kind` maps errors to HTTP status codes.

use std::sync::Arc;

use axum::http::StatusCode;
use trunkline_grammar::GrammarError;
use trunkline_text::TextError;

use crate::request_id::RequestId;

/// The kind of an error, which decides whether the client should change the request, retry it or report a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The client can fix the request.
    Request,
    /// The server cannot serve the request now; the client should retry later.
    Overload,
    /// The request failed after it had started, at the shard or because of its deadline.
    Shard,
    /// The router has a defect.
    Bug,
}

/// An error that answers a request. Its `Display` text is shown to clients.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("body is not valid JSON: {detail}")]
    InvalidJson { detail: String },
    #[error("body {detail}")]
    InvalidBody { detail: String },
    #[error("`{field}` is missing")]
    MissingField { field: String },
    /// `field` is a path such as `messages[0].role`.
    #[error("`{field}` {detail}")]
    InvalidType { field: String, detail: String },
    /// `problem` completes a sentence that starts with the field: the value, the limit and a hint.
    #[error("`{field}` {problem}")]
    InvalidValue { field: String, problem: String },
    /// Only fields that would change the answer are refused; the dialects ignore all others.
    #[error("`{field}` is not supported; hint: {hint}")]
    UnsupportedField { field: String, hint: &'static str },
    #[error(
        "model `{model}` is not served, this server has `{served}`{}; hint: use {} or leave `model` out",
        listed(adapters),
        if adapters.is_empty() { "that name" } else { "one of these names" }
    )]
    UnknownModel {
        model: String,
        served: String,
        /// Other models, and the adapters that the caller may use, if they are few.
        adapters: Vec<Arc<str>>,
    },
    #[error("model `{model}` cannot be loaded: {problem}{}", retried(*retry_after_s))]
    ModelFailed { model: String, problem: String, retry_after_s: Option<u64> },
    /// `problem` has the numbers.
    #[error("model `{model}` does not fit into memory: {problem}")]
    ModelTooLarge { model: String, problem: String },
    #[error("model `{model}` is pinned; hint: unpin it first")]
    ModelPinned { model: String },
    #[error("model `{model}` cannot be added: {problem}")]
    ModelNotPulled { model: String, problem: String },
    #[error("model `{model}` was removed from this server; hint: `GET /v1/models` lists the models")]
    ModelRemoved { model: String },
    #[error("model `{model}` is not deleted: {problem}")]
    ModelNotDeleted { model: String, problem: String },
    #[error(
        "this server keeps its model in memory; hint: start it with several models, or with `--idle-unload`, to load and \
         unload them"
    )]
    NotOnDemand,
    #[error("adapter `{name}` is not loaded; hint: `GET /v1/models` lists all adapters")]
    UnknownAdapter { name: String },
    /// `problem` is the shard's.
    #[error("adapter `{name}` cannot be used: {problem}")]
    UnusableAdapter { name: Arc<str>, problem: Arc<str> },
    #[error("only admins may use `{route}`; hint: use a key of a tenant with `admin = true`")]
    AdminsOnly { route: String },
    #[error(
        "node `{node}` is not in the KV cache, or it has changed; hint: `GET /v1/kv/tree` lists all nodes"
    )]
    UnknownNode { node: String },
    #[error(
        "node `{node}` was not removed, because the object store did not remove its blocks; hint: retry later; the \
         server's log has the cause"
    )]
    NotRemoved { node: String },
    #[error("prompt text is shown only to clients with an API key; hint: start the server with `--api-keys`")]
    TextNotShown,
    #[error(
        "nothing of node `{node}` was pinned: it has no complete block, or it would exceed `--max-pinned-share` or the \
         tenant's share; hint: `GET /v1/kv` shows what is pinned, `DELETE /v1/kv/tree/ID/pin` removes a pin"
    )]
    PinRefused { node: String },
    #[error(
        "response `{id}` is not stored; hint: send the whole conversation or raise `--max-response-store-bytes`"
    )]
    UnknownResponse { id: String },
    #[error(
        "stream `{id}` is not kept; hint: an ended stream goes when others need its memory, and after a day; send the \
         request again"
    )]
    UnknownStream { id: String },
    #[error(
        "there is a stream `{id}` already; hint: give each request an id of its own in `Trunkline-Stream`"
    )]
    StreamExists { id: String },
    #[error("this server keeps no history of conversations; hint: {hint}")]
    NoHistory { hint: &'static str },
    #[error("conversation `{id}` is not in the history; hint: `GET /v1/history` lists all conversations")]
    UnknownConversation { id: String },
    #[error(
        "the history would take more than {limit} bytes; hint: delete conversations or raise `--max-history-bytes`"
    )]
    HistoryFull { limit: u64 },
    #[error("the history of conversations cannot be read or written; hint: the server's log has the cause")]
    HistoryFailed,
    #[error(
        "response `{id}` cannot be cancelled, because it was not created with `background`; hint: this server has no \
         responses in the background; close the connection to stop one that is being generated"
    )]
    NotInBackground { id: String },
    /// Prompt and output together exceed the context. `field` is the dialect's name for the output length.
    #[error(
        "this model's maximum context length is {limit} tokens, but the prompt has {prompt_tokens} and `{field}` asks \
         for {max_new_tokens} more; hint: {hint}"
    )]
    ContextLength { limit: u32, prompt_tokens: usize, field: &'static str, max_new_tokens: u64, hint: String },
    /// The prompt exceeds its limit even without any output.
    #[error(
        "the prompt has {prompt_tokens} tokens, the limit is {max_input_tokens} (this model's maximum context length \
         is {context} tokens); hint: shorten the prompt{}",
        flag.map(|flag| format!(" or raise `{flag}`")).unwrap_or_default()
    )]
    PromptTooLong {
        prompt_tokens: usize,
        max_input_tokens: u32,
        context: u32,
        /// The flag or field that sets the limit; `None` if the model does.
        flag: Option<&'static str>,
    },
    #[error(
        "this model makes no embeddings; hint: serve an embedding model, or start the server with `--pooling last` or \
         `--pooling mean`"
    )]
    NoVectors,
    #[error("this model classifies and makes no embeddings; hint: use `/v1/classify` or `/v1/rerank`")]
    NoEmbeddings,
    #[error("this model has no classes; hint: serve a model for sequence classification")]
    NoClasses,
    #[error("this model has {num_labels} classes, but a score needs one; hint: use `/v1/classify`")]
    NoScores { num_labels: usize },
    #[error(
        "this model generates no text, it makes only vectors; hint: use `/v1/embeddings`, `/v1/rerank` or `/v1/classify`"
    )]
    NoGeneration,
    #[error(
        "this server takes no adapters; hint: leave the adapter out, or serve the model with slots for adapters"
    )]
    NoAdapters,
    #[error("body is larger than {limit} bytes; hint: raise `--max-body-bytes`")]
    BodyTooLarge { limit: usize },
    #[error("header is larger than {limit} bytes; hint: raise `--max-header-bytes`")]
    HeaderTooLarge { limit: usize },
    #[error("header has {num_fields} fields, the limit is {limit}; hint: send fewer")]
    HeaderFields { num_fields: usize, limit: usize },
    #[error("body did not arrive within {limit_s} s")]
    BodyTimeout { limit_s: u64 },
    #[error("body arrived more slowly than {min_rate} bytes/s for {grace_s} s")]
    BodyTooSlow { min_rate: u32, grace_s: u64 },
    #[error("body could not be read")]
    BodyBroken,
    #[error("{problem}; hint: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    InvalidApiKey { problem: &'static str },
    #[error(
        "no route `{path}`; hint: {}",
        similar.as_ref().map_or_else(|| "`/docs` lists all routes".to_owned(), |path| format!("use `{path}`"))
    )]
    UnknownRoute {
        path: String,
        /// A route whose path differs only by `/v1` or a slash at the end.
        similar: Option<String>,
    },
    #[error("`{path}` does not support method `{method}`; hint: {}", hint_of_methods(allowed))]
    UnknownMethod {
        path: String,
        method: String,
        /// The methods that the route supports, as far as `/docs` lists them.
        allowed: Vec<&'static str>,
    },
    #[error(
        "{limit} of {limit} requests are open; hint: retry after {retry_after_s} s or raise `--max-concurrent-requests`"
    )]
    TooManyRequests { limit: usize, retry_after_s: u64 },
    /// A tenant may not take all places, so that other tenants always find a free one.
    #[error(
        "this tenant has {num_open} of the {limit} places for open requests, and the rest are reserved for other \
        tenants; hint: retry after {retry_after_s} s or raise `--max-concurrent-requests`"
    )]
    PlacesShared { num_open: usize, limit: usize, retry_after_s: u64 },
    #[error(
        "requests for model `{model}` have {num_open} of the {limit} places for open requests, and the rest are reserved \
        for other models; hint: retry after {retry_after_s} s or raise `--max-concurrent-requests`"
    )]
    PlacesOfModel { model: String, num_open: usize, limit: usize, retry_after_s: u64 },
    #[error(
        "tenant `{tenant}` has reached its limit: `{field}` is {limit}; hint: retry after {retry_after_s} s or raise \
        it in the file of `--api-keys`"
    )]
    RateLimited { tenant: String, field: &'static str, limit: u64, retry_after_s: u64 },
    /// A sender may not use all of this memory, so that others always find some.
    #[error("other requests use the memory that you have for bodies and prompts; hint: retry after 1 s")]
    TooManyBodies,
    /// A whole answer is in memory until its client has read it, and a stored conversation until the request that
    /// continues it has ended; a streamed answer is not.
    #[error(
        "other requests use all the memory for answers and continued conversations; hint: retry after 1 s or set \
        `stream`"
    )]
    TooManyAnswers,
    #[error(
        "the answer, or the conversation that it continues, would take more than {limit} bytes of memory; hint: set \
        `stream`, or ask for fewer tokens, outputs or logprobs"
    )]
    AnswerTooLarge { limit: usize },
    #[error("{limit} of {limit} listeners receive events of the KV cache; hint: close one and retry")]
    TooManyListeners { limit: usize },
    /// A tenant may not take the places of all listeners, so that others always find a free one.
    #[error(
        "{num_own} of the {limit} listeners are yours, and the rest are reserved for others; hint: close one and retry"
    )]
    ListenersShared { num_own: usize, limit: usize },
    #[error("{detail}; hint: retry after {retry_after_s} s or raise `--max-queued-requests`")]
    QueueFull { detail: String, retry_after_s: u64 },
    /// The predicted wait for the first step exceeds the time left. `by` names the field, header or flag that set it.
    #[error(
        "the request cannot meet its deadline: the predicted wait is {predicted_wait_s:.1} s and `{by}` leaves \
         {deadline_in_s:.1} s; hint: retry after {retry_after_s} s or raise `{by}`"
    )]
    DeadlineUnreachable { predicted_wait_s: f64, deadline_in_s: f64, by: &'static str, retry_after_s: u64 },
    #[error("the request exceeded its time limit of {limit_s} s; hint: raise `{by}`")]
    DeadlineExceeded { limit_s: f64, by: &'static str },
    #[error(
        "the server is shutting down and accepts no new requests; hint: retry in a few seconds or with another replica"
    )]
    Draining,
    #[error(
        "the server stopped after {num_tokens} tokens of the output and `--graceful-termination-timeout` ({limit_s} s); \
         hint: send the request again, or go on from the text so far: add it as the last assistant message (with \
         `continue_final_message`) or to the prompt"
    )]
    Terminated { limit_s: u64, num_tokens: u32 },
    #[error("the model is loading; hint: wait until `/readyz` answers 200")]
    ModelLoading,
    /// The shard was connected before and is expected back, unlike `ModelLoading`.
    #[error("the shard was lost and is not back yet; hint: wait until `/readyz` answers 200")]
    ShardAway,
    #[error("the shard does not answer the health check")]
    ShardSilent,
    #[error("a step has been running for {running_s} s, the limit is {limit_s} s (`--stuck-step-timeout`)")]
    ShardStuck { running_s: u64, limit_s: u64 },
    #[error("the shard hung {hangs} times in a row; hint: see its log and restart the server")]
    ShardHung { hangs: u32 },
    #[error("the shard was lost while it worked on this request; hint: send the request again")]
    ShardLost,
    #[error(
        "the shard crashed twice in a row while it computed this request, so the request is not tried again; hint: report \
         it with the server's log"
    )]
    CrashedShard,
    /// The client's next try is refused, too, until the time is over.
    #[error(
        "an equal request crashed the shard a short time ago, so it is refused for {for_s} s; hint: change the prompt or \
         the sampling parameters, and report it with the server's log"
    )]
    PoisonRequest { for_s: u64 },
    #[error(
        "the {header} `{value}` may not use a server without API keys that listens on loopback; hint: allow it with \
         `--cors-allow-origin`, or set `--api-keys`"
    )]
    ForeignPage { header: &'static str, value: String },
    /// `detail` never contains text of a prompt or an output.
    #[error("the shard could not continue this request: {detail}")]
    SequenceFailed { detail: String },
    /// `detail` is the shard's.
    #[error("the adapter could not be loaded: {detail}")]
    AdapterFailed { detail: String },
    /// Tokens wait for the client in a bounded channel, and this request filled it.
    #[error("the client reads too slowly: {limit} tokens are waiting for it")]
    SlowReader { limit: usize },
    #[error("the client reads too slowly: only the last {limit} unread events are kept")]
    SlowListener { limit: usize },
    #[error("`{field}`: {error}")]
    Grammar {
        field: &'static str,
        #[source]
        error: GrammarError,
    },
    /// `detail` never contains text of a prompt or an output.
    #[error("the output cannot continue: {detail}; hint: use a simpler schema or grammar")]
    GrammarFailed { detail: String },
    #[error(transparent)]
    Text(#[from] TextError),
    /// The log has the details under the same request id.
    #[error("internal error, request id {request_id}; hint: report it with the server's log")]
    Bug { request_id: RequestId },
}

fn hint_of_methods(allowed: &[&str]) -> String {
    match allowed {
        [] => "`/docs` lists all routes".to_owned(),
        allowed => format!("use `{}`", allowed.join("` or `")),
    }
}

/// Continues a list of models by adapters.
fn listed(adapters: &[Arc<str>]) -> String {
    adapters.iter().fold(String::new(), |list, name| list + ", `" + name + "`")
}

/// Says when a model is tried again.
fn retried(after_s: Option<u64>) -> String {
    after_s.map(|after_s| format!("; hint: it is tried again after {after_s} s")).unwrap_or_default()
}

impl ApiError {
    /// Returns an error about a field's value. `problem` follows the field's name in the text.
    pub fn value(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidValue { field: field.into(), problem: problem.into() }
    }

    /// Returns an error about the type of a part of a message. `problem` describes a type that is neither text nor a
    /// medium.
    pub fn part_type(field: impl Into<String>, kind: &str, problem: &str) -> Self {
        let medium = match kind {
            "image" | "image_url" | "input_image" => "images",
            "audio" | "audio_url" | "input_audio" => "audio inputs",
            "video" | "video_url" | "input_video" => "videos",
            "file" | "input_file" => "files",
            _ => return Self::value(field, format!("{problem}; this server accepts only text")),
        };
        Self::value(field, format!("is `{kind}`, but {medium} are not supported by this model"))
    }

    /// Returns the HTTP status, and the stable code that programs may rely on.
    fn kind(&self) -> (u16, &'static str) {
        match self {
            Self::InvalidJson { .. } => (400, "invalid_json"),
            Self::InvalidBody { .. } | Self::InvalidType { .. } => (400, "invalid_type"),
            Self::MissingField { .. } => (400, "missing_field"),
            Self::InvalidValue { .. } => (400, "invalid_value"),
            Self::UnsupportedField { .. } => (400, "unsupported_field"),
            Self::ContextLength { .. } | Self::PromptTooLong { .. } => (400, "context_length_exceeded"),
            Self::NoVectors | Self::NoEmbeddings => (400, "embeddings_not_supported"),
            Self::NoClasses | Self::NoScores { .. } => (400, "scores_not_supported"),
            Self::NoGeneration => (400, "generation_not_supported"),
            Self::NoAdapters => (400, "adapters_not_supported"),
            Self::NotInBackground { .. } => (400, "response_not_in_background"),
            Self::GrammarFailed { .. } => (400, "grammar_failed"),
            Self::BodyBroken => (400, "body_broken"),
            Self::AnswerTooLarge { .. } => (400, "answer_too_large"),
            Self::PoisonRequest { .. } => (400, "poison_request"),
            Self::InvalidApiKey { .. } => (401, "invalid_api_key"),
            Self::UnusableAdapter { .. } => (400, "adapter_unusable"),
            Self::AdminsOnly { .. } => (403, "admins_only"),
            Self::UnknownAdapter { .. } => (404, "adapter_not_found"),
            Self::TextNotShown => (403, "text_not_shown"),
            Self::ForeignPage { .. } => (403, "origin_not_allowed"),
            Self::UnknownModel { .. } | Self::ModelRemoved { .. } => (404, "model_not_found"),
            Self::UnknownNode { .. } => (404, "node_not_found"),
            Self::UnknownResponse { .. } => (404, "response_not_found"),
            Self::UnknownStream { .. } => (404, "stream_not_found"),
            Self::NoHistory { .. } => (404, "no_history"),
            Self::UnknownConversation { .. } => (404, "conversation_not_found"),
            Self::HistoryFull { .. } => (413, "history_full"),
            Self::HistoryFailed => (503, "history_failed"),
            Self::UnknownRoute { .. } => (404, "route_not_found"),
            Self::UnknownMethod { .. } => (405, "method_not_allowed"),
            Self::BodyTimeout { .. } | Self::BodyTooSlow { .. } => (408, "body_timeout"),
            Self::SlowReader { .. } | Self::SlowListener { .. } => (408, "client_too_slow"),
            Self::PinRefused { .. } => (409, "pin_refused"),
            Self::StreamExists { .. } => (409, "stream_exists"),
            Self::BodyTooLarge { .. } => (413, "body_too_large"),
            Self::TooManyRequests { .. } | Self::PlacesShared { .. } => (429, "too_many_requests"),
            Self::PlacesOfModel { .. } => (429, "too_many_requests"),
            Self::RateLimited { .. } => (429, "rate_limit_exceeded"),
            Self::TooManyBodies => (429, "too_many_bodies"),
            Self::TooManyListeners { .. } | Self::ListenersShared { .. } => (429, "too_many_listeners"),
            Self::QueueFull { .. } => (429, "queue_full"),
            Self::DeadlineUnreachable { .. } => (429, "deadline_unreachable"),
            Self::HeaderTooLarge { .. } | Self::HeaderFields { .. } => (431, "header_too_large"),
            Self::Bug { .. } => (500, "internal_error"),
            Self::ShardLost => (502, "shard_lost"),
            Self::CrashedShard => (502, "crashed_shard"),
            Self::SequenceFailed { .. } => (502, "sequence_failed"),
            Self::AdapterFailed { .. } => (502, "adapter_failed"),
            Self::TooManyAnswers => (503, "too_many_answers"),
            Self::Draining => (503, "draining"),
            Self::Terminated { .. } => (503, "terminated"),
            Self::ModelLoading => (503, "model_loading"),
            Self::ModelFailed { .. } => (503, "model_failed"),
            Self::ModelPinned { .. } => (409, "model_pinned"),
            Self::ModelNotPulled { .. } => (404, "model_not_pulled"),
            Self::ModelNotDeleted { .. } => (409, "model_not_deleted"),
            Self::NotOnDemand => (400, "not_on_demand"),
            Self::ModelTooLarge { .. } => (503, "model_too_large"),
            Self::ShardAway => (503, "shard_away"),
            Self::ShardSilent => (503, "shard_silent"),
            Self::ShardStuck { .. } => (503, "shard_stuck"),
            Self::NotRemoved { .. } => (503, "object_store_failed"),
            Self::ShardHung { .. } => (503, "shard_hung"),
            Self::DeadlineExceeded { .. } => (504, "deadline_exceeded"),
            Self::Grammar { error: error @ GrammarError::Busy { .. }, .. } => (503, error.code()),
            Self::Grammar { error, .. } => (400, error.code()),
            Self::Text(error) => match error.class() {
                trunkline_text::ErrorClass::Request => (400, error.code()),
                trunkline_text::ErrorClass::Model => (500, error.code()),
            },
        }
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub fn code(&self) -> &'static str {
        self.kind().1
    }

    /// Returns the class, which follows from the status.
    pub fn class(&self) -> ErrorClass {
        match self.kind().0 {
            429 | 503 => ErrorClass::Overload,
            502 | 504 => ErrorClass::Shard,
            500 => ErrorClass::Bug,
            _ => ErrorClass::Request,
        }
    }

    /// Returns the request field that caused the error, if there is one.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::MissingField { field }
            | Self::InvalidType { field, .. }
            | Self::InvalidValue { field, .. }
            | Self::UnsupportedField { field, .. } => Some(field),
            Self::Text(TextError::InvalidMessage { field, .. }) => Some(field),
            Self::ContextLength { field, .. } | Self::Grammar { field, .. } => Some(field),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// Returns true if the same request must not be sent again, although the status may say that it can be.
    pub fn forbids_retry(&self) -> bool {
        matches!(self, Self::CrashedShard | Self::PoisonRequest { .. })
    }

    /// Returns the value of the `Retry-After` header in seconds.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::QueueFull { retry_after_s, .. }
            | Self::DeadlineUnreachable { retry_after_s, .. }
            | Self::TooManyRequests { retry_after_s, .. }
            | Self::PlacesShared { retry_after_s, .. }
            | Self::PlacesOfModel { retry_after_s, .. }
            | Self::RateLimited { retry_after_s, .. } => Some(*retry_after_s),
            Self::ModelFailed { retry_after_s, .. } => *retry_after_s,
            Self::Grammar { error: GrammarError::Busy { .. }, .. }
            | Self::TooManyBodies
            | Self::TooManyAnswers
            | Self::TooManyListeners { .. }
            | Self::ListenersShared { .. }
            | Self::ShardLost
            | Self::ShardAway
            | Self::ShardSilent
            | Self::ShardStuck { .. }
            | Self::NotRemoved { .. }
            | Self::ShardHung { .. }
            | Self::ModelLoading => Some(1),
            Self::Draining | Self::Terminated { .. } => Some(5),
            _ => None,
        }
    }
}
