//! The formats in which model families write tool calls, one file each.
//!
//! To add a format, write a file that defines its [`ToolFormat`] constant, and register it in [`ToolFormat::ALL`].

mod format;
mod harmony;
mod hermes;
mod json;
mod llama3;
mod mistral;
mod pythonic;

pub(crate) use format::CallStart;
pub use format::ToolFormat;

impl ToolFormat {
    /// All formats, in the order in which their template marks are tried.
    ///
    /// Pythonic comes before Llama 3, because templates of Llama 4 contain marks of both.
    pub const ALL: [Self; 6] =
        [Self::HARMONY, Self::MISTRAL, Self::HERMES, Self::PYTHONIC, Self::LLAMA3, Self::JSON];

    /// Finds the format that a chat template teaches. Returns `None` if the template does not mention tools.
    pub fn from_template(source: &str) -> Option<Self> {
        if !source.contains("tools") && !source.contains("tool_calls") {
            return None;
        }
        let has_mark = |format: &Self| format.0.template_marks.iter().any(|mark| source.contains(mark));
        Some(Self::ALL.into_iter().find(has_mark).unwrap_or(Self::JSON))
    }
}
