//! What a model's reply is made of: text, reasoning and tool calls, told apart while the reply streams.
//!
//! Models write tool calls and reasoning into their text, each family in a form of its own. A [`ReplyParser`] takes
//! the text as it comes and gives [`Piece`]s. Their kinds and joined contents do not depend on how the text was cut.
//!
//! Nothing is eaten: text that turns out to be no call is given as the text that it is. What begins a call is held back
//! until it cannot be anything else: until the name of a known tool and the beginning of its arguments are read. From
//! then on the arguments stream.

// The hidden modules are public for `tests/reply` only, so that the library is not compiled again for tests of its own.
mod call;
mod format;
#[doc(hidden)]
pub mod json;
#[doc(hidden)]
pub mod loose;
mod parser;
#[doc(hidden)]
pub mod python_string;
#[doc(hidden)]
pub mod pythonic;
mod reasoning;
mod sections;
#[doc(hidden)]
pub mod tools;

pub use format::ToolFormat;
pub use parser::{ReplyEnd, ReplyParser};
pub use reasoning::{ReasoningMarks, ReasoningStart};
pub use sections::{Section, Sections};

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text for the reader.
    Text(String),
    /// What the model thinks before it answers.
    Reasoning(String),
    /// A call of this tool begins.
    CallBegin {
        /// One of the tools that the parser was told.
        name: String,
    },
    /// More of the arguments of the call that began last: JSON text.
    Arguments(String),
    /// The call is complete.
    CallEnd,
}
