//! The results of looking where a call may begin, with the header and the tags that decide it.

use crate::channels::MAX_HEADER_BYTES;
use crate::signature::{self, Signature};

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
    /// Calls in Python's syntax, one a line, begin at the first byte.
    PythonLines,
    /// A call whose name precedes its arguments, and the position of the arguments.
    Named {
        name: String,
        arguments_at: usize,
    },
    /// A call whose arguments are written one by one between tags, and the position of the first of them.
    Tagged {
        name: String,
        arguments_at: usize,
        tags: &'static Tags,
    },
}

/// The tags around keys and values.
#[derive(Debug)]
pub(crate) struct Tags {
    pub key_open: &'static str,
    pub key_close: &'static str,
    /// Precedes a value. Empty if the value follows the key's tag.
    pub value_open: &'static str,
    pub value_close: &'static str,
    /// Follows the last argument.
    pub end: &'static str,
    /// True if a line break at each end of a value belongs to the tags.
    pub has_value_lines: bool,
}

impl Tags {
    /// Decides whether the call of `name` begins with `text`, whose end after the name is `rest`.
    pub fn read_start(&'static self, name: &str, text: &str, rest: &str, tools: &[Signature]) -> CallStart {
        let arguments = rest.trim_start();
        let begins = |tag: &str| arguments.starts_with(tag);
        if !signature::is_known(tools, name) {
            CallStart::NotACall
        } else if begins(self.key_open) || begins(self.end) {
            let arguments_at = text.len() - arguments.len();
            CallStart::Tagged { name: name.to_owned(), arguments_at, tags: self }
        } else if self.may_begin_tag(arguments) {
            CallStart::Undecided
        } else {
            CallStart::NotACall
        }
    }

    /// Returns true if more text may make `text` the tag of a key or the end.
    pub fn may_begin_tag(&self, text: &str) -> bool {
        self.key_open.starts_with(text) || self.end.starts_with(text)
    }
}

/// The text before a mark and the text after it.
pub(crate) enum Header<'a> {
    Undecided,
    Missing,
    Complete(&'a str, &'a str),
}

/// Splits `text` at `mark`, which ends a header of at most [`MAX_HEADER_BYTES`].
pub(crate) fn split_header<'a>(text: &'a str, mark: &str) -> Header<'a> {
    match text.split_once(mark) {
        Some((header, rest)) if header.len() <= MAX_HEADER_BYTES => Header::Complete(header, rest),
        None if text.len() <= MAX_HEADER_BYTES + mark.len() => Header::Undecided,
        _ => Header::Missing,
    }
}
