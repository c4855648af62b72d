//! The error type of the crate.

/// The reason why a grammar cannot be used.
///
/// The client can fix every error except `Vocabulary`, `Busy` and `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A size is over its limit.
    #[error("{subject} {value}{unit}, but the limit is {limit}; hint: send less or raise `{flag}`")]
    TooLarge {
        /// The measured object and a verb, such as "the schema has".
        subject: &'static str,
        value: usize,
        /// The unit after the value, with its space. It may be empty.
        unit: &'static str,
        limit: usize,
        flag: &'static str,
    },
    /// The grammar is within its size limits, but compiling or using it costs too much.
    #[error("the grammar is too complex: {detail}; hint: {hint}")]
    TooComplex {
        detail: String,
        /// A change that may help.
        hint: &'static str,
    },
    /// A keyword of the schema is known, but not supported.
    #[error("keyword `{keyword}` at `{pointer}` is not supported{reason}")]
    UnsupportedKeyword {
        keyword: String,
        /// JSON pointer of the schema that has the keyword, `#` for the root.
        pointer: String,
        /// More about the cause, with its leading space or punctuation. It may be empty.
        reason: String,
    },
    #[error("invalid {kind}: {detail}")]
    Invalid {
        /// The form of the grammar, such as "JSON schema".
        kind: &'static str,
        detail: String,
    },
    /// This model's vocabulary cannot be used with grammars.
    #[error("structured output is not available with this model's vocabulary: {detail}")]
    Vocabulary {
        /// The property that the vocabulary lacks.
        detail: String,
    },
    /// Too many grammars are being compiled. A later attempt may succeed.
    #[error(
        "{count} grammars are being compiled, including some that were given up and still run; hint: try again later"
    )]
    Busy { count: usize },
    /// A sequence cannot continue under its grammar, because a mask cost too much or no token is left.
    #[error("the grammar failed while generating: {detail}")]
    Failed {
        /// The parser's message, which contains no text of the prompt or the output.
        detail: String,
    },
}

impl GrammarError {
    /// Returns [`TooComplex`](Self::TooComplex) with a general hint.
    pub(crate) fn too_complex(detail: impl Into<String>) -> Self {
        let hint = "use fewer alternatives, smaller repeats or shorter patterns";
        Self::TooComplex { detail: detail.into(), hint }
    }

    /// Returns the error's stable name for programs, in snake case.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "schema_too_large",
            Self::TooComplex { .. } => "schema_too_complex",
            Self::UnsupportedKeyword { .. } => "unsupported_keyword",
            Self::Invalid { .. } => "invalid_schema",
            Self::Vocabulary { .. } => "grammar_unavailable",
            Self::Busy { .. } => "grammar_busy",
            Self::Failed { .. } => "grammar_failed",
        }
    }
}
