//! The type of a tool format, and what all formats share.

use std::fmt;

/// A format in which models write tool calls.
#[derive(Clone, Copy)]
pub struct ToolFormat(pub(super) &'static Syntax);

/// The properties in which the formats differ.
pub(super) struct Syntax {
    pub name: &'static str,
    /// Texts that only the chat templates of this format contain.
    pub template_marks: &'static [&'static str],
    pub opening_marks: &'static [&'static str],
    pub inner_marks: &'static [&'static str],
    pub closing_mark: Option<&'static str>,
    pub separators: &'static [char],
    pub allows_unmarked_calls: bool,
    pub read_start: fn(text: &str, tools: &[String]) -> CallStart,
}

/// The kind of text found where a call may begin. Positions are bytes of that text.
pub(crate) enum CallStart {
    /// More text is needed to decide.
    Undecided,
    NotACall,
    /// A JSON object that may be a call begins at the first byte.
    Object,
    /// A JSON list of such objects begins at the first byte.
    ObjectList,
    /// A Python list that may contain calls begins at the first byte.
    PythonList,
    /// A call whose name precedes its arguments, and the position of the arguments.
    Named {
        name: String,
        arguments_at: usize,
    },
}

impl ToolFormat {
    /// Returns the value of `--tool-call-parser` that selects the format.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the marks that begin calls anywhere in a reply. Where a mark is a control token, the detokenizer must
    /// write it out.
    pub fn opening_marks(self) -> &'static [&'static str] {
        self.0.opening_marks
    }

    /// Returns the other marks that belong to calls.
    pub fn inner_marks(self) -> &'static [&'static str] {
        self.0.inner_marks
    }

    /// Returns the mark that ends a call, if the format has one.
    pub fn closing_mark(self) -> Option<&'static str> {
        self.0.closing_mark
    }

    /// Returns the characters that may separate two call objects that are not in a list.
    pub(crate) fn separators(self) -> &'static [char] {
        self.0.separators
    }

    /// Returns whether a reply may begin with a call that has no opening mark.
    pub(crate) fn allows_unmarked_calls(self) -> bool {
        self.0.allows_unmarked_calls
    }

    /// Decides what begins with `text`, which is not empty and has no leading white space.
    pub(crate) fn read_start(self, text: &str, tools: &[String]) -> CallStart {
        (self.0.read_start)(text, tools)
    }
}

impl PartialEq for ToolFormat {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ToolFormat {}

impl fmt::Debug for ToolFormat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.name)
    }
}

/// Recognises a call written as a JSON object, or a list of them.
pub(super) fn read_json_start(text: &str, _tools: &[String]) -> CallStart {
    match text.as_bytes().first() {
        Some(b'{') => CallStart::Object,
        Some(b'[') => CallStart::ObjectList,
        _ => CallStart::NotACall,
    }
}
