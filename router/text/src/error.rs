//! The error types of the crate.

use std::path::PathBuf;

/// The cause of an error, which tells who can fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The model's files are at fault, so the operator can choose others. Only `ModelText::load` returns such errors.
    Model,
    /// The request is at fault, so its client can change it (HTTP 400).
    Request,
}

/// A fault of a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} (at byte {offset})")]
pub struct GgufError {
    pub problem: String,
    /// Position of the fault in the file.
    pub offset: usize,
}

/// A fault of a model's text files or of one request's text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`{}` has no `{file}`; hint: {hint}", folder.display())]
    MissingFile { folder: PathBuf, file: &'static str, hint: &'static str },
    #[error("`{}` has {bytes} bytes, but the limit is {limit}; hint: check that it is the right file", path.display())]
    FileTooLarge { path: PathBuf, bytes: u64, limit: u64 },
    #[error("`{}` is not a valid GGUF file: {source}", path.display())]
    Gguf { path: PathBuf, source: GgufError },
    #[error("`{}` is invalid: {detail}", path.display())]
    InvalidFile { path: PathBuf, detail: String },
    #[error("unsupported tokenizer: {detail}")]
    UnsupportedTokenizer {
        /// The tokenizer's kind, and the supported ones.
        detail: String,
    },
    #[error("invalid tokenizer: {detail}")]
    InvalidTokenizer { detail: String },
    #[error("the text cannot be encoded: {detail}")]
    Encode { detail: String },
    #[error("chat template `{name}` does not compile: {detail}")]
    InvalidTemplate {
        /// Name of the template, or `default`.
        name: String,
        detail: String,
    },
    #[error("this model has no chat template; hint: use a completion route with a plain prompt")]
    NoChatTemplate,
    #[error(
        "this model has no prompt for pairs of texts; hint: `--chat-template` takes one with the roles `query` and \
         `document`"
    )]
    NoPairTemplate,
    #[error(
        "`{field}` needs fill-in-the-middle tokens, which this model's tokenizer lacks; hint: use a model for code"
    )]
    NoInfillTokens {
        /// The client's name of the suffix.
        field: &'static str,
    },
    /// The template called `raise_exception`.
    #[error("the chat template refuses the messages: {message}")]
    TemplateRefused { message: String },
    #[error("the chat template cannot render the messages: {detail}")]
    TemplateFailed { detail: String },
    #[error("the chat template exceeds its limit of {limit} {unit}; hint: shorten the conversation")]
    TemplateLimit {
        limit: u64,
        /// Unit of the limit, "steps" or "bytes".
        unit: &'static str,
    },
    #[error("`{field}` {problem}")]
    InvalidMessage {
        /// The field, with the message's number.
        field: String,
        /// The fault, as a verb phrase about the field.
        problem: String,
    },
}

impl TextError {
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Encode { .. }
            | Self::NoChatTemplate
            | Self::NoPairTemplate
            | Self::NoInfillTokens { .. }
            | Self::TemplateRefused { .. }
            | Self::TemplateFailed { .. }
            | Self::TemplateLimit { .. }
            | Self::InvalidMessage { .. } => ErrorClass::Request,
            Self::Read { .. }
            | Self::MissingFile { .. }
            | Self::FileTooLarge { .. }
            | Self::Gguf { .. }
            | Self::InvalidFile { .. }
            | Self::UnsupportedTokenizer { .. }
            | Self::InvalidTokenizer { .. }
            | Self::InvalidTemplate { .. } => ErrorClass::Model,
        }
    }

    /// Returns the error's stable name for programs, in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "model_file_unreadable",
            Self::MissingFile { .. } => "model_file_missing",
            Self::FileTooLarge { .. } => "model_file_too_large",
            Self::Gguf { .. } => "gguf_invalid",
            Self::InvalidFile { .. } => "model_file_invalid",
            Self::UnsupportedTokenizer { .. } => "tokenizer_unsupported",
            Self::InvalidTokenizer { .. } => "tokenizer_invalid",
            Self::Encode { .. } => "text_not_encodable",
            Self::InvalidTemplate { .. } => "chat_template_invalid",
            Self::NoChatTemplate | Self::NoPairTemplate => "chat_template_missing",
            Self::NoInfillTokens { .. } => "infill_tokens_missing",
            Self::TemplateRefused { .. } => "chat_template_refused",
            Self::TemplateFailed { .. } => "chat_template_failed",
            Self::TemplateLimit { .. } => "chat_template_limit",
            Self::InvalidMessage { .. } => "message_invalid",
        }
    }
}
