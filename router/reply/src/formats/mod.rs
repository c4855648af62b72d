//! The formats in which model families write tool calls, one file each.
//!
//! To add a format, write a file that defines its [`ToolFormat`] constant, and register it in [`ToolFormat::ALL`].

mod command;
mod deepseek;
mod format;
mod glm;
mod granite;
mod harmony;
mod hermes;
mod json;
mod kimi;
mod llama3;
mod mistral;
mod olmo3;
mod phi4;
mod pythonic;
mod qwen3_coder;
mod xlam;

pub use format::{CallBody, CallForm, ToolFormat};
pub(crate) use format::{CallStart, Header, split_header};

impl ToolFormat {
    /// All formats, in the order in which their template marks are tried.
    ///
    /// A format comes before those whose marks its templates contain too: Pythonic before Llama 3 because of Llama 4,
    /// and the formats with `<tool_call>` before Hermes.
    pub const ALL: [Self; 15] = [
        Self::HARMONY,
        Self::MISTRAL,
        Self::DEEPSEEK,
        Self::KIMI,
        Self::GLM,
        Self::QWEN3_CODER,
        Self::COMMAND,
        Self::PHI4,
        Self::GRANITE,
        Self::OLMO3,
        Self::XLAM,
        Self::HERMES,
        Self::PYTHONIC,
        Self::LLAMA3,
        Self::JSON,
    ];

    /// Finds the format that a chat template teaches. Returns `None` if the template does not present tools, even if it
    /// writes earlier calls.
    pub fn from_template(source: &str) -> Option<Self> {
        let mut words = source.split(|c: char| !c.is_alphanumeric() && c != '_');
        if !words.any(|word| matches!(word, "tools" | "xml_tools")) {
            return None;
        }
        let has_mark = |format: &Self| format.0.template_marks.iter().any(|mark| source.contains(mark));
        Some(Self::ALL.into_iter().find(has_mark).unwrap_or(Self::JSON))
    }
}
