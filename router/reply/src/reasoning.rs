//! Reasoning: what stands between two marks at the beginning of a reply.

/// Where a reply's reasoning begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The reply opens it, if there is any.
    InReply,
    /// The prompt ends with the opening mark: the reply begins in it.
    InPrompt,
}

/// The marks of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReasoningMarks {
    /// `<think>` and `</think>`: DeepSeek R1, Qwen 3, SmolLM3.
    #[default]
    Think,
    /// `[THINK]` and `[/THINK]`: Mistral's from tokenizer version 13 on.
    Mistral,
}

impl ReasoningMarks {
    /// Those that a model was taught, by the source of its chat template; none if that does not speak of reasoning.
    pub fn of_template(source: &str) -> Option<Self> {
        [Self::Think, Self::Mistral].into_iter().find(|marks| source.contains(marks.close()))
    }

    /// Opens reasoning.
    pub fn open(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::Mistral => "[THINK]",
        }
    }

    /// Ends it.
    pub fn close(self) -> &'static str {
        match self {
            Self::Think => "</think>",
            Self::Mistral => "[/THINK]",
        }
    }
}
