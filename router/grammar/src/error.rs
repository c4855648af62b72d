//! The crate's one error type.

/// Why a grammar cannot be used. All but `Vocabulary`, `Busy` and `Failed` are the client's to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A size is over its limit.
    #[error("{what} is {value}, the limit is {limit} (`{flag}`)")]
    TooLarge {
        /// What was measured, with its unit.
        what: &'static str,
        /// How much there is.
        value: usize,
        /// How much there may be.
        limit: usize,
        /// The flag that sets it.
        flag: &'static str,
    },
    /// The grammar is within its limits of size, but compiling it takes too much.
    #[error("the grammar is too complex: {detail}; hint: {hint}")]
    TooComplex {
        /// What ran out.
        detail: String,
        /// The way out.
        hint: &'static str,
    },
    /// A keyword of the schema is known, but not supported.
    #[error("keyword `{keyword}` at `{pointer}` is not supported{reason}")]
    UnsupportedKeyword {
        /// The keyword.
        keyword: String,
        /// JSON pointer of the schema that has it, `#` for the whole.
        pointer: String,
        /// More about it, with its punctuation; may be empty.
        reason: String,
    },
    /// It is no valid grammar of its kind, or nothing matches it.
    #[error("invalid {kind}: {detail}")]
    Invalid {
        /// What it was meant to be: "JSON schema", "regular expression", "list of choices", "Lark grammar".
        kind: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// This model's vocabulary cannot be used with grammars.
    #[error("structured output cannot be had with this model's vocabulary: {detail}")]
    Vocabulary {
        /// Why not.
        detail: String,
    },
    /// Too many grammars that took too long are still being compiled; a later try may do.
    #[error(
        "{count} grammars are being compiled, or were given up and still take their time; hint: try again later"
    )]
    Busy {
        /// How many.
        count: usize,
    },
    /// A sequence under the grammar cannot go on: a mask took too much, or no token is left.
    #[error("the grammar failed while generating: {detail}")]
    Failed {
        /// What the parser says, without text of the prompt or the output.
        detail: String,
    },
}

/// The way out where no better one is known.
const SIMPLER: &str = "fewer alternatives, smaller repeats, shorter patterns";

impl GrammarError {
    /// Too complex for a reason that has no hint of its own.
    pub(crate) fn too_complex(detail: impl Into<String>) -> Self {
        Self::TooComplex { detail: detail.into(), hint: SIMPLER }
    }

    /// Stable name for machines, snake case.
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
