//! Splits a model's reply into text, reasoning and tool calls while the reply streams.
//!
//! Models write tool calls and reasoning into their text, each family in its own format. A [`ReplyParser`] takes the
//! text in chunks of any size and yields [`Piece`]s. The kinds of the pieces and their joined contents do not depend on
//! where the text was cut.
//!
//! No text is lost: text that turns out not to be a call is returned unchanged. The parser holds back the beginning of
//! a possible call until it has read the name of a known tool and the start of its arguments. From then on the
//! arguments stream.
//!
//! Some models call tools before they close their reasoning. Each format says which of its marks begin a call there.
//!
//! GPT-OSS writes a reply as several messages, whose channels tell what they are (`channels.rs`).
//!
//! Each tool format is a file in `formats/` and a row of the table in `settings/src/tool_formats.rs`.
//! The crate may use the settings. Begin with [`ReplyParser`] and a format.

mod call_start;
mod channels;
mod formats;
mod json_call;
pub mod json_scanner;
pub mod lenient_json;
mod marks;
mod parser;
mod piece;
pub mod python_calls;
pub mod python_string;
mod reasoning;
mod sections;
mod signature;
mod tagged_arguments;
mod tagged_call;
mod tool_calls;

pub use formats::{CallBody, CallForm, ToolFormat};
pub use marks::Section;
pub use parser::ReplyParser;
pub use piece::Piece;
pub use reasoning::{ReasoningMarks, ReasoningStart};
pub use sections::Sections;
pub use signature::Signature;
pub use tagged_call::TaggedCall;
pub use tool_calls::ReplyEnd;
