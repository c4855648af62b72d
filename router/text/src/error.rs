//! The crate's one error type.

use std::path::PathBuf;

use crate::gguf::GgufError;

/// Who can do something about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The model's files: the user of the launcher can choose others. Only `ModelText::load` returns it.
    Model,
    /// What one request sent: its client can change it (HTTP 400).
    Request,
}

/// What can go wrong with a model's text files or with one request's text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that has to be there is not.
    #[error("`{}` has no `{file}`; hint: {hint}", folder.display())]
    MissingFile {
        /// The model's folder.
        folder: PathBuf,
        /// Name of the file.
        file: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A file is larger than its limit.
    #[error("`{}` has {bytes} bytes, the limit is {limit}", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A GGUF file's header or metadata is damaged.
    #[error("`{}` is not a valid GGUF file: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong where.
        #[source]
        source: GgufError,
    },
    /// A JSON file does not parse, or a field has the wrong form.
    #[error("`{}` is invalid: {detail}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A tokenizer of a kind that is not supported.
    #[error("unsupported tokenizer: {detail}")]
    UnsupportedTokenizer {
        /// Which kind, and which are supported.
        detail: String,
    },
    /// The tokenizer's tables contradict themselves.
    #[error("invalid tokenizer: {detail}")]
    InvalidTokenizer {
        /// What is wrong.
        detail: String,
    },
    /// A text could not be encoded.
    #[error("text cannot be encoded: {detail}")]
    Encode {
        /// What the tokenizer says.
        detail: String,
    },
    /// A model's own chat template does not compile.
    #[error("chat template `{name}` does not compile: {detail}")]
    InvalidTemplate {
        /// Name of the template, `default` if it has none.
        name: String,
        /// What the template engine says, with the line.
        detail: String,
    },
    /// The model has no chat template, so it cannot take messages.
    #[error("this model has no chat template; hint: use a completion route with a plain prompt")]
    NoChatTemplate,
    /// The template refused the messages by `raise_exception`; its own words.
    #[error("the chat template refuses the messages: {message}")]
    TemplateRefused {
        /// What the template says.
        message: String,
    },
    /// The template failed on these messages.
    #[error("the chat template cannot render the messages: {detail}")]
    TemplateFailed {
        /// What the template engine says.
        detail: String,
    },
    /// The template ran or wrote too much.
    #[error("the chat template exceeds its limit of {limit} {unit}")]
    TemplateLimit {
        /// The limit.
        limit: u64,
        /// Of what: "steps" or "bytes".
        unit: &'static str,
    },
    /// A message has a form that no template takes.
    #[error("`{field}` {problem}")]
    InvalidMessage {
        /// The field, with the message's number.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl TextError {
    /// Who can do something about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Encode { .. }
            | Self::NoChatTemplate
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

    /// Stable name for machines, snake case.
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
            Self::NoChatTemplate => "chat_template_missing",
            Self::TemplateRefused { .. } => "chat_template_refused",
            Self::TemplateFailed { .. } => "chat_template_failed",
            Self::TemplateLimit { .. } => "chat_template_limit",
            Self::InvalidMessage { .. } => "message_invalid",
        }
    }
}
