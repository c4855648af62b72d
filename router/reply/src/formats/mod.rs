//! The formats in which model families write tool calls, one file each.
//!
//! To add a format, write a file that defines its syntax, and add a row to the table in `settings/src/tool_formats.rs`.
//! The rest comes from that row: the value of `--tool-call-parser`, the constant of [`ToolFormat`], detection by chat
//! templates, and what the tests and docs/api/openai.md must have.

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

use trunkline_settings::{ToolCallParser, with_tool_formats};

pub use format::{CallBody, CallForm, ToolFormat};

macro_rules! tool_formats {
    ($($(#[doc = $help:literal])+
       $module:ident $variant:ident $constant:ident = $name:literal $(| $alias:literal)*, of $models:literal;)*) => {
        impl ToolFormat {
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
            $(
                $(#[doc = $help])+
                pub const $constant: Self = Self { parser: ToolCallParser::$variant, syntax: &$module::SYNTAX };
            )*
        }
    };
}

with_tool_formats!(tool_formats);

/// The formats whose marks templates of other formats contain too, in the order in which they are tried after those:
/// many templates have the `<tool_call>` of Hermes, and those of Llama 4 have a mark of Llama 3.
const TRIED_LAST: [ToolFormat; 4] =
    [ToolFormat::MISTRAL, ToolFormat::HERMES, ToolFormat::PYTHONIC, ToolFormat::LLAMA3];

impl ToolFormat {
    /// Returns the format that a value of `--tool-call-parser` selects, if it selects one.
    pub fn of(parser: ToolCallParser) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.parser == parser)
    }

    /// Finds the format that a chat template teaches. Returns `None` if the template does not present tools, even if it
    /// writes earlier calls.
    pub fn from_template(source: &str) -> Option<Self> {
        let mut words = source.split(|c: char| !c.is_alphanumeric() && c != '_');
        if !words.any(|word| matches!(word, "tools" | "xml_tools")) {
            return None;
        }
        let has_mark = |format: &Self| format.syntax.template_marks.iter().any(|mark| source.contains(mark));
        let tried_first = Self::ALL.iter().copied().filter(|format| !TRIED_LAST.contains(format));
        Some(tried_first.chain(TRIED_LAST).find(has_mark).unwrap_or(Self::JSON))
    }
}
