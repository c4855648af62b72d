//! The marks that enclose reasoning at the beginning of a reply.

/// The place where a reply's reasoning begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The reply may open with the opening mark.
    InReply,
    /// The prompt ends with the opening mark, so the reply begins inside reasoning.
    InPrompt,
}

/// The pair of marks that a model family writes around reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningMarks {
    /// `<think>` and `</think>`, written by DeepSeek R1, Qwen 3 and SmolLM3.
    #[default]
    Think,
    /// `[THINK]` and `[/THINK]`, written by Mistral models since tokenizer version 13.
    Mistral,
}

impl ReasoningMarks {
    /// Finds the marks that a chat template uses. Returns `None` if the template does not mention reasoning.
    pub fn from_template(source: &str) -> Option<Self> {
        [Self::Think, Self::Mistral].into_iter().find(|marks| source.contains(marks.close()))
    }

    pub fn open(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::Mistral => "[THINK]",
        }
    }

    pub fn close(self) -> &'static str {
        match self {
            Self::Think => "</think>",
            Self::Mistral => "[/THINK]",
        }
    }
}
