//! Calls after `[TOOL_CALLS]`: a JSON list, or a name and its arguments.

use super::format::{CallBody, CallForm, Syntax, read_json_start};
use crate::call_start::CallStart;
use crate::signature::{self, Signature};

const ARGUMENTS_MARK: &str = "[ARGS]";
/// Precedes a call's id, between the name and [`ARGUMENTS_MARK`]. The id is not used.
const CALL_ID_MARK: &str = "[CALL_ID]";

/// `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` since tokenizer
/// version 11, written by Mistral models.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["[TOOL_CALLS]"],
    opening_marks: &["[TOOL_CALLS]"],
    marks_in_reasoning: &["[TOOL_CALLS]"],
    inner_marks: &[CALL_ID_MARK, ARGUMENTS_MARK],
    call_form: Some(CallForm { body: CallBody::ObjectList, closing_mark: None }),
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    if text.starts_with(['{', '[']) {
        return read_json_start(text, tools);
    }
    let Some(name_len) = text.find(['[', '{']) else {
        let name = text.trim_end();
        return if signature::may_be_known(tools, name) { CallStart::Undecided } else { CallStart::NotACall };
    };
    let name = text[..name_len].trim();
    if !signature::is_known(tools, name) {
        return CallStart::NotACall;
    }
    match arguments_start(&text[name_len..]) {
        Arguments::Undecided => CallStart::Undecided,
        Arguments::None => CallStart::NotACall,
        Arguments::At(at) => CallStart::Named { name: name.to_owned(), arguments_at: name_len + at },
    }
}

/// The position of the arguments after a name.
enum Arguments {
    Undecided,
    None,
    /// At this byte of the text after the name, which is `{`.
    At(usize),
}

/// Finds the arguments in `{...}`, `[ARGS]{...}` or `[CALL_ID]id[ARGS]{...}`.
fn arguments_start(text: &str) -> Arguments {
    let rest = match text.strip_prefix(CALL_ID_MARK) {
        Some(id) => id.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_'),
        None if CALL_ID_MARK.starts_with(text) => return Arguments::Undecided,
        None => text,
    };
    let arguments = match rest.strip_prefix(ARGUMENTS_MARK) {
        Some(arguments) => arguments.trim_start(),
        None if ARGUMENTS_MARK.starts_with(rest) => return Arguments::Undecided,
        None if rest.len() == text.len() => rest,
        None => return Arguments::None,
    };
    match arguments.chars().next() {
        None => Arguments::Undecided,
        Some('{') => Arguments::At(text.len() - arguments.len()),
        Some(_) => Arguments::None,
    }
}
