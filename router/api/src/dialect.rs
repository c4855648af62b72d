//! The dialects: the one of a path, and the form of its errors.

use axum::response::Response;

use super::{anthropic, ollama, openai, respond, tgi};
use trunkline_base::error::ApiError;
use trunkline_base::tenants::RateHeaders;

/// An API whose clients the server speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Paths at and below `/v1/messages`.
    Anthropic,
    /// All other paths below `/v1`, and `/infill`, since llama.cpp has OpenAI's form of errors.
    OpenAi,
    /// Paths below `/api`.
    Ollama,
    /// All paths outside `/v1` and `/api`.
    Tgi,
}

impl Dialect {
    pub fn of_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            return Self::Anthropic;
        }
        if path.starts_with("/api/") {
            return Self::Ollama;
        }
        let is_openai = path == "/v1" || path.starts_with("/v1/") || path == "/infill";
        if is_openai { Self::OpenAi } else { Self::Tgi }
    }

    /// Returns the names of the rate headers that its clients read.
    pub fn rate_headers(self) -> RateHeaders {
        match self {
            Self::Anthropic => RateHeaders::Anthropic,
            Self::OpenAi | Self::Ollama | Self::Tgi => RateHeaders::OpenAi,
        }
    }

    pub fn error_response(self, error: &ApiError) -> Response {
        match self {
            Self::Anthropic => respond::error::<anthropic::ErrorResponse>(error),
            Self::OpenAi => respond::error::<openai::ErrorResponse>(error),
            Self::Ollama => respond::error::<ollama::ErrorResponse>(error),
            Self::Tgi => respond::error::<tgi::ErrorResponse>(error),
        }
    }
}
