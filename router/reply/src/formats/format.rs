//! The type of a tool format, and what all formats share.

use std::fmt;

use trunkline_settings::{Choice as _, ToolCallParser};

use crate::call_start::CallStart;
use crate::signature::{self, Signature};
use crate::tagged_call::TaggedCall;

/// A format in which models write tool calls.
#[derive(Clone, Copy)]
pub struct ToolFormat {
    pub(super) parser: ToolCallParser,
    pub(crate) syntax: &'static Syntax,
}

/// The properties in which the formats differ.
pub(crate) struct Syntax {
    /// Texts that only the chat templates of this format contain.
    pub template_marks: &'static [&'static str],
    pub opening_marks: &'static [&'static str],
    /// The opening marks that begin a call in reasoning too, because the family writes them for nothing else. Some
    /// models call tools before they close their reasoning.
    pub marks_in_reasoning: &'static [&'static str],
    pub inner_marks: &'static [&'static str],
    /// Marks that may follow a call, in any order.
    pub closing_marks: &'static [&'static str],
    /// Characters that may separate two call objects that are not in a list.
    pub separators: &'static [char],
    /// True if a reply may begin with a call that has no opening mark.
    pub allows_unmarked_calls: bool,
    pub call_form: Option<CallForm>,
    /// Decides what begins with `text`, which is not empty and has no leading white space.
    pub read_start: fn(text: &str, tools: &[Signature]) -> CallStart,
}

impl Syntax {
    /// Calls in JSON without any marks.
    pub(super) const JSON_CALLS: Self = Self {
        template_marks: &[],
        opening_marks: &[],
        marks_in_reasoning: &[],
        inner_marks: &[],
        closing_marks: &[],
        separators: &[],
        allows_unmarked_calls: false,
        call_form: None,
        read_start: read_json_start,
    };
}

/// The form in which a grammar can hold calls behind the first opening mark.
#[derive(Debug, Clone, Copy)]
pub struct CallForm {
    pub body: CallBody,
    /// The mark after the body, if there is one.
    pub closing_mark: Option<&'static str>,
}

/// The text between the marks of calls.
#[derive(Debug, Clone, Copy)]
pub enum CallBody {
    /// An object of `name` and `arguments`.
    Object,
    /// A list of such objects.
    ObjectList,
    Tagged(&'static TaggedCall),
    /// A name between these texts, which may be control tokens, then its arguments as an object.
    Named {
        before_name: &'static str,
        after_name: &'static str,
    },
}

impl ToolFormat {
    /// Returns the value of `--tool-call-parser` that selects the format.
    pub fn name(self) -> &'static str {
        self.parser.name()
    }

    /// Returns the marks that begin calls anywhere in a reply. Where a mark is a control token, the detokenizer must
    /// write it out.
    pub fn opening_marks(self) -> &'static [&'static str] {
        self.syntax.opening_marks
    }

    /// Returns the other marks that belong to calls.
    pub fn inner_marks(self) -> &'static [&'static str] {
        self.syntax.inner_marks
    }

    /// Returns the form in which a grammar can hold calls.
    ///
    /// There is none where calls need no mark, because only a mark tells a call from other text. There is none for
    /// Python's syntax either.
    pub fn call_form(self) -> Option<CallForm> {
        self.syntax.call_form
    }
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        self.parser == other.parser
    }
}

impl Eq for ToolFormat {}

impl fmt::Debug for ToolFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Recognises a call written as a JSON object, or a list of them.
pub(super) fn read_json_start(text: &str, _tools: &[Signature]) -> CallStart {
    match text.as_bytes().first() {
        Some(b'{') => CallStart::Object,
        Some(b'[') => CallStart::ObjectList,
        _ => CallStart::NotACall,
    }
}

/// Decides whether the call of `name` begins with `text`, whose end after the header is `arguments`: JSON text, perhaps
/// after white space.
pub(super) fn read_named(name: &str, text: &str, arguments: &str, tools: &[Signature]) -> CallStart {
    let arguments = arguments.trim_start();
    match arguments.chars().next() {
        _ if !signature::is_known(tools, name) => CallStart::NotACall,
        None => CallStart::Undecided,
        Some('{') => CallStart::Named { name: name.to_owned(), arguments_at: text.len() - arguments.len() },
        Some(_) => CallStart::NotACall,
    }
}

/// Removes `mark` from the beginning of `text`, if it is there. Returns `None` if more text is needed to decide.
pub(super) fn skip_mark<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    match text.strip_prefix(mark) {
        Some(rest) => Some(rest.trim_start()),
        None if mark.starts_with(text) => None,
        None => Some(text),
    }
}
