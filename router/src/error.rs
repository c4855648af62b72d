//! The one error type of the router: what can go wrong with a request, its class, its stable code.
//!
//! The dialects render it in their own shapes; `status` is the one place that maps it to HTTP.

use axum::http::StatusCode;
use trunkline_grammar::GrammarError;
use trunkline_text::TextError;

use crate::request_id::RequestId;

/// Who can do something about an error, which decides the reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The client can fix the request.
    Request,
    /// The client should come back later.
    Overload,
    /// The shard is at fault or away; the launcher acts.
    Shard,
    /// A defect of ours.
    Bug,
}

/// Everything that a request can be answered with instead of its output.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("body is not valid JSON: {detail}")]
    InvalidJson {
        /// What the parser says, with line and column.
        detail: String,
    },
    /// The body is JSON, but not an object.
    #[error("the body {detail}")]
    InvalidBody {
        /// What was found and what was expected.
        detail: String,
    },
    /// A field that has to be there is not.
    #[error("`{field}` is missing")]
    MissingField {
        /// Path of the field, `messages[0].role`.
        field: String,
    },
    /// A field has the wrong type.
    #[error("`{field}` {detail}")]
    InvalidType {
        /// Path of the field, `messages[0].role`.
        field: String,
        /// What is wrong and what was expected.
        detail: String,
    },
    /// A field's value is out of bounds.
    #[error("`{field}` {problem}")]
    InvalidValue {
        /// The field.
        field: String,
        /// What is wrong, the limit, the hint.
        problem: String,
    },
    /// A field that would change the answer, and that this server does not know.
    #[error("`{field}` is not supported; hint: {hint}")]
    UnsupportedField {
        /// The field.
        field: String,
        /// The way out.
        hint: &'static str,
    },
    /// The client asked for a model that is not served.
    #[error(
        "model `{model}` is not served, this server has `{served}`; hint: use that name or leave `model` out"
    )]
    UnknownModel {
        /// As asked.
        model: String,
        /// As served.
        served: String,
    },
    /// The KV cache has no such node.
    #[error("node `{node}` is not in the KV cache, or has changed; hint: `GET /v1/kv/tree` lists them")]
    UnknownNode {
        /// As asked, cut.
        node: String,
    },
    /// Text of prompts is shown to those alone who are known.
    #[error("the text of prompts is not shown where there are no API keys; hint: `--api-keys`")]
    TextNotShown,
    /// Neither device nor store has room for a pin.
    #[error(
        "nothing of node `{node}` was pinned: it has no whole block, or `--max-pinned-share` or the tenant's share has \
         no room for it; hint: `GET /v1/kv` says what is pinned, `DELETE /v1/kv/tree/ID/pin` ends a pin"
    )]
    PinRefused {
        /// As asked, cut.
        node: String,
    },
    /// The answer to go on from, or to show, is not kept.
    #[error(
        "answer `{id}` is not kept; hint: send the whole conversation, or raise `--max-response-store-bytes`"
    )]
    UnknownResponse {
        /// As asked, cut.
        id: String,
    },
    /// Prompt and output together exceed the context.
    #[error(
        "this model's maximum context length is {limit} tokens, but the prompt has {prompt_tokens} and `{field}` asks \
         for {max_new_tokens} more; hint: {hint}"
    )]
    ContextLength {
        /// Most tokens of prompt and output together.
        limit: u32,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The field that asks for the output, in the dialect's words.
        field: &'static str,
        /// Tokens asked for.
        max_new_tokens: u64,
        /// The way out.
        hint: String,
    },
    /// The prompt alone exceeds its limit.
    #[error(
        "the prompt has {prompt_tokens} tokens, the limit is {max_input_tokens} (this model's maximum context length \
         is {context} tokens); hint: shorten the prompt or raise `--max-input-tokens`"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The limit.
        max_input_tokens: u32,
        /// Most tokens of prompt and output together.
        context: u32,
    },
    /// The body exceeds its limit.
    #[error("body is larger than {limit} bytes; hint: raise `--max-body-bytes`")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The header exceeds its limit.
    #[error("header is larger than {limit} bytes; hint: raise `--max-header-bytes`")]
    HeaderTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The header has too many fields.
    #[error("header has {num_fields} fields, the limit is {limit}; hint: send fewer")]
    HeaderFields {
        /// How many it has.
        num_fields: usize,
        /// The limit.
        limit: usize,
    },
    /// The body did not arrive in time.
    #[error("body did not arrive within {limit_s} s")]
    BodyTimeout {
        /// The limit.
        limit_s: u64,
    },
    /// The connection broke while the body was read.
    #[error("body could not be read")]
    BodyBroken,
    /// Keys are configured and none was sent, or one that is not known.
    #[error("{problem}; hint: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    InvalidApiKey {
        /// What is wrong.
        problem: &'static str,
    },
    /// No such route.
    #[error("no route `{path}`; hint: `/docs` lists all routes")]
    UnknownRoute {
        /// As asked.
        path: String,
    },
    /// The route exists, the method does not.
    #[error("`{path}` does not take method {method}")]
    UnknownMethod {
        /// As asked.
        path: String,
        /// As asked.
        method: String,
    },
    /// Too many requests are open.
    #[error(
        "{limit} of {limit} requests are open; hint: retry after {retry_after_s} s or raise `--max-concurrent-requests`"
    )]
    TooManyRequests {
        /// The limit.
        limit: usize,
        /// When one of them is expected to end.
        retry_after_s: u64,
    },
    /// A tenant has as many requests open as leave others some places.
    #[error(
        "{num_open} of {limit} open requests are this tenant's, and those that are left are kept for others; hint: retry \
         after {retry_after_s} s or raise `--max-concurrent-requests`"
    )]
    PlacesShared {
        /// The tenant's.
        num_open: usize,
        /// The limit of all.
        limit: usize,
        /// When one of them is expected to end.
        retry_after_s: u64,
    },
    /// A tenant has sent as much as it may.
    #[error(
        "tenant `{tenant}` is at its limit: `{field}` is {limit}; hint: retry after {retry_after_s} s or raise it in the \
         file of `--api-keys`"
    )]
    RateLimited {
        /// Who.
        tenant: String,
        /// The limit's name in the file.
        field: &'static str,
        /// The limit.
        limit: u64,
        /// When there is room again.
        retry_after_s: u64,
    },
    /// Bodies that are being read hold too much.
    #[error("bodies that are being received hold as much memory as they may; hint: retry after 1 s")]
    TooManyBodies,
    /// As many listen to the events of the KV cache as may.
    #[error("{limit} of {limit} clients listen to the events of the KV cache; hint: close one and retry")]
    TooManyListeners {
        /// The limit.
        limit: usize,
    },
    /// The scheduler refused the request.
    #[error("{detail}; hint: retry after {retry_after_s} s or raise `--max-queued-requests`")]
    QueueFull {
        /// What the scheduler says.
        detail: String,
        /// When it may work.
        retry_after_s: u64,
    },
    /// The request would wait longer than it may live.
    #[error(
        "the request cannot meet its deadline: the predicted wait is {predicted_wait_s:.1} s and `{by}` leaves \
         {deadline_in_s:.1} s; hint: retry after {retry_after_s} s or raise `{by}`"
    )]
    DeadlineUnreachable {
        /// Predicted wait until its first step.
        predicted_wait_s: f64,
        /// Time left until its deadline.
        deadline_in_s: f64,
        /// The field, header or flag that set it.
        by: &'static str,
        /// When it may work.
        retry_after_s: u64,
    },
    /// The request's time was over before it could be finished.
    #[error("the request's time of {limit_s} s is over; hint: raise `{by}`")]
    DeadlineExceeded {
        /// The limit.
        limit_s: f64,
        /// The field, header or flag that set it.
        by: &'static str,
    },
    /// The server is about to end.
    #[error(
        "server is draining and admits nothing new; hint: retry with another replica or in a few seconds"
    )]
    Draining,
    /// The server ended before the output did.
    #[error("server ended before the output was complete (`--graceful-termination-timeout` is {limit_s} s)")]
    Terminated {
        /// The limit.
        limit_s: u64,
    },
    /// The shard is not there yet, or not there now.
    #[error("the model is loading; hint: wait until `/readyz` answers 200")]
    ModelLoading,
    /// The shard is gone and expected back.
    #[error("the shard is away; hint: retry in a second, `/readyz` says when it is back")]
    ShardAway,
    /// The shard does not answer.
    #[error("the shard does not answer the health check")]
    ShardSilent,
    /// The shard's step does not end.
    #[error("a step has been running for {running_s} s, the limit is {limit_s} s (`--stuck-step-timeout`)")]
    ShardStuck {
        /// So far.
        running_s: u64,
        /// The limit.
        limit_s: u64,
    },
    /// The shard went away under the request.
    #[error("the shard was lost while it worked on this request; hint: send the request again")]
    ShardLost,
    /// The shard gave this sequence up.
    #[error("the shard could not continue this request: {detail}")]
    SequenceFailed {
        /// The shard's reason, without contents.
        detail: String,
    },
    /// The client reads its stream slower than the model writes it.
    #[error("the client reads too slowly: {limit} tokens were waiting for it")]
    SlowReader {
        /// The limit.
        limit: usize,
    },
    /// The client reads events of the KV cache slower than they come.
    #[error("the client reads too slowly: of the events that it did not read only the last {limit} are kept")]
    SlowListener {
        /// The limit.
        limit: usize,
    },
    /// The grammar of a structured output cannot be used.
    #[error("`{field}`: {error}")]
    Grammar {
        /// The field that asks for it.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        error: GrammarError,
    },
    /// An output cannot go on under its grammar.
    #[error("the output cannot go on: {detail}; hint: a simpler schema or grammar")]
    GrammarFailed {
        /// What the grammar says, without text of prompt or output.
        detail: String,
    },
    /// The text crate refused the text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A defect.
    #[error("internal error, request id {request_id}; hint: report it with the server's log")]
    Bug {
        /// Names the request in the log.
        request_id: RequestId,
    },
}

impl ApiError {
    /// A field's value is out of bounds.
    pub fn value(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidValue { field: field.into(), problem: problem.into() }
    }

    /// HTTP status: the one map from error to status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::InvalidJson { .. }
            | Self::InvalidBody { .. }
            | Self::MissingField { .. }
            | Self::InvalidType { .. }
            | Self::InvalidValue { .. }
            | Self::UnsupportedField { .. }
            | Self::ContextLength { .. }
            | Self::PromptTooLong { .. }
            | Self::GrammarFailed { .. }
            | Self::BodyBroken => StatusCode::BAD_REQUEST,
            Self::Grammar { error, .. } => match error {
                GrammarError::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::UnknownModel { .. }
            | Self::UnknownRoute { .. }
            | Self::UnknownNode { .. }
            | Self::UnknownResponse { .. } => StatusCode::NOT_FOUND,
            Self::InvalidApiKey { .. } => StatusCode::UNAUTHORIZED,
            Self::TextNotShown => StatusCode::FORBIDDEN,
            Self::PinRefused { .. } => StatusCode::CONFLICT,
            Self::UnknownMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BodyTimeout { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeaderTooLarge { .. } | Self::HeaderFields { .. } => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::TooManyRequests { .. }
            | Self::PlacesShared { .. }
            | Self::RateLimited { .. }
            | Self::TooManyBodies
            | Self::TooManyListeners { .. }
            | Self::QueueFull { .. }
            | Self::DeadlineUnreachable { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Draining
            | Self::ModelLoading
            | Self::Terminated { .. }
            | Self::ShardAway
            | Self::ShardSilent
            | Self::ShardStuck { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::ShardLost | Self::SequenceFailed { .. } => StatusCode::BAD_GATEWAY,
            Self::DeadlineExceeded { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::SlowReader { .. } | Self::SlowListener { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::Bug { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Text(error) => match error.class() {
                trunkline_text::ErrorClass::Request => StatusCode::BAD_REQUEST,
                trunkline_text::ErrorClass::Model => StatusCode::INTERNAL_SERVER_ERROR,
            },
        }
    }

    /// Who can do something about it.
    pub fn class(&self) -> ErrorClass {
        match self.status().as_u16() {
            429 | 503 => ErrorClass::Overload,
            502 | 504 => ErrorClass::Shard,
            500 => ErrorClass::Bug,
            _ => ErrorClass::Request,
        }
    }

    /// Stable name for machines.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidJson { .. } => "invalid_json",
            Self::MissingField { .. } => "missing_field",
            Self::InvalidBody { .. } | Self::InvalidType { .. } => "invalid_type",
            Self::InvalidValue { .. } => "invalid_value",
            Self::UnsupportedField { .. } => "unsupported_field",
            Self::UnknownModel { .. } => "model_not_found",
            Self::UnknownNode { .. } => "node_not_found",
            Self::UnknownResponse { .. } => "response_not_found",
            Self::TextNotShown => "text_not_shown",
            Self::PinRefused { .. } => "pin_refused",
            Self::ContextLength { .. } | Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::HeaderTooLarge { .. } | Self::HeaderFields { .. } => "header_too_large",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyBroken => "body_broken",
            Self::InvalidApiKey { .. } => "invalid_api_key",
            Self::UnknownRoute { .. } => "route_not_found",
            Self::UnknownMethod { .. } => "method_not_allowed",
            Self::TooManyRequests { .. } | Self::PlacesShared { .. } => "too_many_requests",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::TooManyBodies => "too_many_bodies",
            Self::TooManyListeners { .. } => "too_many_listeners",
            Self::QueueFull { .. } => "queue_full",
            Self::DeadlineUnreachable { .. } => "deadline_unreachable",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::Draining => "draining",
            Self::Terminated { .. } => "terminated",
            Self::ModelLoading => "model_loading",
            Self::ShardAway => "shard_away",
            Self::ShardSilent => "shard_silent",
            Self::ShardStuck { .. } => "shard_stuck",
            Self::ShardLost => "shard_lost",
            Self::SequenceFailed { .. } => "sequence_failed",
            Self::SlowReader { .. } | Self::SlowListener { .. } => "client_too_slow",
            Self::Grammar { error, .. } => error.code(),
            Self::GrammarFailed { .. } => "grammar_failed",
            Self::Text(error) => error.code(),
            Self::Bug { .. } => "internal_error",
        }
    }

    /// The request's field at fault, if one is.
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

    /// Value of the `Retry-After` header in seconds.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::QueueFull { retry_after_s, .. }
            | Self::DeadlineUnreachable { retry_after_s, .. }
            | Self::TooManyRequests { retry_after_s, .. }
            | Self::PlacesShared { retry_after_s, .. }
            | Self::RateLimited { retry_after_s, .. } => Some(*retry_after_s),
            Self::Grammar { error: GrammarError::Busy { .. }, .. }
            | Self::TooManyBodies
            | Self::TooManyListeners { .. }
            | Self::ShardLost
            | Self::ShardAway
            | Self::ShardSilent
            | Self::ShardStuck { .. }
            | Self::ModelLoading => Some(1),
            Self::Draining | Self::Terminated { .. } => Some(5),
            _ => None,
        }
    }
}
