//! The marks that enclose the reasoning of a reply.

use crate::channels;

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
    /// `<|START_THINKING|>` and `<|END_THINKING|>`, written by Command A and R7B, which also mark the content.
    Command,
    /// Messages with the channel `analysis`, written by GPT-OSS. Other messages have marks too.
    Harmony,
}

impl ReasoningMarks {
    /// Finds the marks that a chat template uses. Returns `None` if the template does not mention reasoning.
    pub fn from_template(source: &str) -> Option<Self> {
        let mark = |marks: &Self| if *marks == Self::Harmony { marks.open() } else { marks.close() };
        [Self::Think, Self::Mistral, Self::Command, Self::Harmony]
            .into_iter()
            .find(|marks| source.contains(mark(marks)))
    }

    pub fn open(self) -> &'static str {
        match self {
            Self::Think => "<think>",
            Self::Mistral => "[THINK]",
            Self::Command => "<|START_THINKING|>",
            Self::Harmony => "<|channel|>analysis<|message|>",
        }
    }

    pub fn close(self) -> &'static str {
        match self {
            Self::Think => "</think>",
            Self::Mistral => "[/THINK]",
            Self::Command => "<|END_THINKING|>",
            Self::Harmony => channels::END,
        }
    }

    /// Returns the mark that opens the content. It is empty if the content has none.
    pub fn content(self) -> &'static str {
        match self {
            Self::Think | Self::Mistral | Self::Command => "",
            Self::Harmony => "<|channel|>final<|message|>",
        }
    }

    /// Returns marks around the content that are no part of it.
    pub fn around_content(self) -> &'static [&'static str] {
        match self {
            Self::Command => &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
            Self::Think | Self::Mistral | Self::Harmony => &[],
        }
    }

    /// Returns the mark that opens a call of a tool. `None` if calls have no mark of their own.
    pub fn call(self, name: &str) -> Option<String> {
        let mark = |name| format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
        (self == Self::Harmony).then(|| mark(name))
    }

    /// Returns the text that precedes the mark of each message. The prompt ends with that of the first message. It is
    /// empty if a reply is one message.
    pub fn message(self) -> &'static str {
        match self {
            Self::Think | Self::Mistral | Self::Command => "",
            Self::Harmony => "<|start|>assistant",
        }
    }

    /// Returns the marks that the parser looks for. Where one is a control token, the detokenizer must write it out.
    pub fn shown(self) -> &'static [&'static str] {
        match self {
            Self::Think => &["<think>", "</think>"],
            Self::Mistral => &["[THINK]", "[/THINK]"],
            Self::Command => &["<|START_THINKING|>", "<|END_THINKING|>"],
            Self::Harmony => &[channels::START, channels::CHANNEL, channels::MESSAGE, channels::END],
        }
    }
}
