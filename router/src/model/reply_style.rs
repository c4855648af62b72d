//! What a model's replies hold beside text, as its chat template shows it or flags say.

use trunkline_reply::{ReasoningMarks, ToolFormat};
use trunkline_text::ModelText;

/// What the model's replies hold, by its chat template or as flags say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyStyle {
    /// How it writes calls; none if its template does not speak of tools.
    pub tools: Option<ToolFormat>,
    /// What looks like a call is text, unless a call is required.
    pub ignores_calls: bool,
    /// It may think before it answers.
    pub reasons: bool,
    /// What stands around its thoughts.
    pub marks: ReasoningMarks,
}

/// What a flag says of one of both: what the template shows, a certain form, or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice<T> {
    /// As the template shows.
    #[default]
    Auto,
    /// Whatever the template shows.
    Is(T),
    /// Replies are left as they are.
    Off,
}

impl ReplyStyle {
    /// Of a model, unless flags say otherwise.
    pub fn of_model(text: &ModelText, tools: Choice<ToolFormat>, reasons: Choice<()>) -> Self {
        let source = text.chat_templates.as_ref().map(|templates| {
            let sources = templates.names().filter_map(|name| templates.source(name));
            sources.collect::<Vec<_>>().join("\n")
        });
        Self::of_template(&source.unwrap_or_default(), tools, reasons)
    }

    /// Of a chat template, unless flags say otherwise.
    #[doc(hidden)]
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
        }
    }

    /// Whether its template writes tools into the prompt by itself.
    pub fn knows_tools(self) -> bool {
        self.tools.is_some()
    }
}
