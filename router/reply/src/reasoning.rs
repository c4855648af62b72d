//! Reasoning: what stands between `<think>` and `</think>`.

/// Where a reply's reasoning begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningStart {
    /// The reply opens it, if there is any.
    InReply,
    /// The prompt ends with the opening mark: the reply begins in it.
    InPrompt,
}

/// Opens reasoning.
pub const OPEN: &str = "<think>";
/// Ends it.
pub const CLOSE: &str = "</think>";

impl ReasoningStart {
    /// Of a model with this chat template; none if it knows no reasoning.
    pub fn of_template(source: &str, prompt: &str) -> Option<Self> {
        if prompt.trim_end().ends_with(OPEN) {
            return Some(Self::InPrompt);
        }
        source.contains(CLOSE).then_some(Self::InReply)
    }
}
