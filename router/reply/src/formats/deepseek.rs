//! JSON arguments after a name, in a section of calls, each between marks of its own.

use super::format::{CallBody, CallForm, Syntax, read_named, skip_mark};
use crate::call_start::{CallStart, Header, split_header};
use crate::signature::Signature;

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const CALL: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
/// Precedes the name in the form of DeepSeek V3.
const KIND: &str = "function";
const FENCE: &str = "```json";

/// `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`, written by
/// DeepSeek V3.1. DeepSeek V3 and R1 write `function<｜tool▁sep｜>NAME` and the arguments as a block of code.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &[CALL],
    opening_marks: &[SECTION, CALL],
    marks_in_reasoning: &[SECTION, CALL],
    inner_marks: &[SEPARATOR, "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    closing_marks: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    call_form: Some(CallForm {
        body: CallBody::Named { before_name: CALL, after_name: SEPARATOR },
        closing_mark: Some("<｜tool▁call▁end｜>"),
    }),
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    let Some(call) = skip_mark(text, CALL) else { return CallStart::Undecided };
    let (first, rest) = match split_header(call, SEPARATOR) {
        Header::Undecided => return CallStart::Undecided,
        Header::Missing => return CallStart::NotACall,
        Header::Complete(first, rest) => (first.trim(), rest.trim_start()),
    };
    if first != KIND || rest.starts_with('{') {
        return read_named(first, text, rest, tools);
    }
    match split_header(rest, FENCE) {
        Header::Undecided => CallStart::Undecided,
        Header::Missing => CallStart::NotACall,
        Header::Complete(name, arguments) => read_named(name.trim(), text, arguments, tools),
    }
}
