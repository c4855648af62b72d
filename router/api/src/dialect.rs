//! The APIs whose clients the server speaks to, and the forms that their errors have.

use axum::response::Response;

use super::{anthropic, ollama, openai, respond, tgi};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::RateHeaders;

/// The API that a route belongs to. The OpenAPI document and docs/api group routes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Vllm,
    LlamaCpp,
    /// Jina's and Cohere's routes that rank documents, which have one form.
    JinaAndCohere,
    Anthropic,
    Ollama,
    Tgi,
    /// Text Embeddings Inference.
    Tei,
    /// The server's own routes that look at the KV cache.
    KvCache,
    /// The server's own routes for streams that outlive their connection.
    Streams,
    /// The server's own routes for the history of conversations.
    History,
    /// The server's own routes for operators, and the web page.
    Operating,
}

impl Dialect {
    /// Returns the name that documents show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAI",
            Self::Vllm => "vLLM",
            Self::LlamaCpp => "llama.cpp",
            Self::JinaAndCohere => "Jina and Cohere",
            Self::Anthropic => "Anthropic",
            Self::Ollama => "Ollama",
            Self::Tgi => "TGI",
            Self::Tei => "TEI",
            Self::KvCache => "KV cache",
            Self::Streams => "Streams",
            Self::History => "History",
            Self::Operating => "Operating",
        }
    }

    /// Returns the form of the errors of a route that states no other.
    pub const fn errors(self) -> Errors {
        match self {
            Self::Anthropic => Errors::Anthropic,
            Self::Ollama => Errors::Ollama,
            Self::Tgi | Self::Tei => Errors::Tgi,
            _ => Errors::OpenAi,
        }
    }
}

/// The form of a route's errors, and of the headers that its clients read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    OpenAi,
    Anthropic,
    Ollama,
    Tgi,
}

impl Errors {
    /// Returns the form for a path that no route has.
    pub fn of_path(path: &str) -> Self {
        let is_below = |parent: &str| {
            path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if is_below("/v1/messages") {
            Self::Anthropic
        } else if is_below("/v1") {
            Self::OpenAi
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::Tgi
        }
    }

    /// Returns the names of the rate headers that the clients read.
    pub fn rate_headers(self) -> RateHeaders {
        match self {
            Self::Anthropic => RateHeaders::Anthropic,
            Self::OpenAi | Self::Ollama | Self::Tgi => RateHeaders::OpenAi,
        }
    }

    /// Returns the name of the form's schema in the OpenAPI document.
    pub fn schema(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAiError",
            Self::Anthropic => "AnthropicError",
            Self::Ollama => "OllamaError",
            Self::Tgi => "TgiError",
        }
    }

    pub fn response(self, error: &ApiError) -> Response {
        match self {
            Self::OpenAi => respond::error::<openai::ErrorResponse>(error),
            Self::Anthropic => respond::error::<anthropic::ErrorResponse>(error),
            Self::Ollama => respond::error::<ollama::ErrorResponse>(error),
            Self::Tgi => respond::error::<tgi::ErrorResponse>(error),
        }
    }
}
