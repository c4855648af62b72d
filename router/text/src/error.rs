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
    /// The fault, in lower case and without a position.
    pub problem: String,
    /// Position of the fault in the file.
    pub offset: usize,
}

/// A fault of a model's text files or of one request's text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file that could not be read.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// A required file is missing.
    #[error("`{}` has no `{file}`; hint: {hint}", folder.display())]
    MissingFile {
        /// The folder of the model.
        folder: PathBuf,
        /// Name of the missing file.
        file: &'static str,
        /// A way to get the file.
        hint: &'static str,
    },
    /// A file is larger than its limit.
    #[error("`{}` has {bytes} bytes, but the limit is {limit}; hint: check that it is the right file", path.display())]
    FileTooLarge {
        /// The file that is too large.
        path: PathBuf,
        /// The file's size in bytes.
        bytes: u64,
        /// The largest size allowed.
        limit: u64,
    },
    /// A GGUF file's header or metadata is damaged.
    #[error("`{}` is not a valid GGUF file: {source}", path.display())]
    Gguf {
        /// The file that is damaged.
        path: PathBuf,
        /// The fault and its position.
        #[source]
        source: GgufError,
    },
    /// A JSON file does not parse, or a field has the wrong type.
    #[error("`{}` is invalid: {detail}", path.display())]
    InvalidFile {
        /// The file that is invalid.
        path: PathBuf,
        /// The fault and its position.
        detail: String,
    },
    /// The model's kind of tokenizer is not supported.
    #[error("unsupported tokenizer: {detail}")]
    UnsupportedTokenizer {
        /// The tokenizer's kind, and the supported ones.
        detail: String,
    },
    /// The tokenizer's tables contradict each other.
    #[error("invalid tokenizer: {detail}")]
    InvalidTokenizer {
        /// The fault and the table that has it.
        detail: String,
    },
    /// A text could not be encoded.
    #[error("the text cannot be encoded: {detail}")]
    Encode {
        /// The message of the tokenizer.
        detail: String,
    },
    /// A model's own chat template does not compile.
    #[error("chat template `{name}` does not compile: {detail}")]
    InvalidTemplate {
        /// Name of the template, or `default`.
        name: String,
        /// The template engine's message, with the line.
        detail: String,
    },
    /// The model has no chat template, so it cannot take messages.
    #[error("this model has no chat template; hint: use a completion route with a plain prompt")]
    NoChatTemplate,
    /// The template called `raise_exception`.
    #[error("the chat template refuses the messages: {message}")]
    TemplateRefused {
        /// The message of the template.
        message: String,
    },
    /// The template failed on these messages.
    #[error("the chat template cannot render the messages: {detail}")]
    TemplateFailed {
        /// The template engine's message.
        detail: String,
    },
    /// The template ran for too many steps or wrote too many bytes.
    #[error("the chat template exceeds its limit of {limit} {unit}; hint: shorten the conversation")]
    TemplateLimit {
        /// The limit that was reached.
        limit: u64,
        /// Unit of the limit, "steps" or "bytes".
        unit: &'static str,
    },
    /// A message has a form that no template supports.
    #[error("`{field}` {problem}")]
    InvalidMessage {
        /// The field, with the message's number.
        field: String,
        /// The fault, as a verb phrase about the field.
        problem: String,
    },
}

impl TextError {
    /// Returns the class of the error.
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
            Self::NoChatTemplate => "chat_template_missing",
            Self::TemplateRefused { .. } => "chat_template_refused",
            Self::TemplateFailed { .. } => "chat_template_failed",
            Self::TemplateLimit { .. } => "chat_template_limit",
            Self::InvalidMessage { .. } => "message_invalid",
        }
    }
}
