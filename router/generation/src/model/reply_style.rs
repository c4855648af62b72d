//! The form of tool calls and reasoning in a model's replies, as its chat template shows it or flags set it.

use trunkline_reply::{ReasoningMarks, ToolFormat};
use trunkline_text::ModelText;

/// The form of tool calls and reasoning in a model's replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyStyle {
    /// The format of tool calls; `None` if the chat template does not mention tools.
    pub tools: Option<ToolFormat>,
    /// If true, calls are treated as text unless the request requires a call.
    pub ignores_calls: bool,
    /// If true, replies may begin with reasoning.
    pub reasons: bool,
    /// The marks around the reasoning.
    pub marks: ReasoningMarks,
    /// The ids of calls that the chat template accepts.
    pub call_ids: CallIds,
}

/// The ids of calls in a conversation's history that a chat template accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallIds {
    #[default]
    Any,
    /// Ids of nine letters and digits, as in Mistral's templates.
    Nine,
    /// `functions.NAME:N`, where N counts the calls of the conversation, as in Kimi K2's templates. They write no other
    /// name of the function.
    Named,
}

impl CallIds {
    fn from_template(source: &str) -> Self {
        if ["length != 9", "length == 9"].iter().any(|condition| source.contains(condition)) {
            Self::Nine
        } else if ToolFormat::from_template(source) == Some(ToolFormat::KIMI) {
            Self::Named
        } else {
            Self::Any
        }
    }
}

/// The value of a flag that may override the chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice<T> {
    /// Follows the chat template.
    #[default]
    Auto,
    /// Uses this format, whatever the chat template shows.
    Is(T),
    /// Leaves replies as they are.
    Off,
}

impl ReplyStyle {
    /// Returns the style that a model's chat templates show, as far as the flags do not override it.
    pub fn of_model(text: &ModelText, tools: Choice<ToolFormat>, reasons: Choice<()>) -> Self {
        let source = text.chat_templates.as_ref().map(|templates| {
            let sources = templates.names().filter_map(|name| templates.source(name));
            sources.collect::<Vec<_>>().join("\n")
        });
        Self::of_template(&source.unwrap_or_default(), tools, reasons)
    }

    /// Returns the style that a chat template shows, as far as the flags do not override it.
    pub fn of_template(source: &str, tools: Choice<ToolFormat>, reasons: Choice<()>) -> Self {
        let marks = ReasoningMarks::from_template(source);
        Self {
            tools: match tools {
                Choice::Auto | Choice::Off => ToolFormat::from_template(source),
                Choice::Is(format) => Some(format),
            },
            ignores_calls: tools == Choice::Off,
            reasons: match reasons {
                Choice::Auto => marks.is_some(),
                Choice::Is(()) => true,
                Choice::Off => false,
            },
            marks: marks.unwrap_or_default(),
            call_ids: CallIds::from_template(source),
        }
    }

    /// Returns the format of calls that a request requires. It is JSON where a call is not a message of its own.
    pub fn required_calls(self) -> ToolFormat {
        let has_messages = self.reasons && self.marks == ReasoningMarks::Harmony;
        self.tools.filter(|tools| has_messages && *tools == ToolFormat::HARMONY).unwrap_or(ToolFormat::JSON)
    }

    /// Returns true if the chat template writes tools into the prompt.
    pub fn knows_tools(self) -> bool {
        self.tools.is_some()
    }
}
