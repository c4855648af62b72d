//! A function's name and its parameters in tags that contain the names.

use super::format::{CallBody, CallForm, Syntax, skip_mark};
use crate::call_start::{CallStart, Header, Tags, split_header};
use crate::signature::Signature;
use crate::tagged_call::TaggedCall;

const FUNCTION: &str = "<function=";
const TAGS: Tags = Tags {
    key_open: "<parameter=",
    key_close: ">",
    value_open: "",
    value_close: "</parameter>",
    end: "</function>",
    has_value_lines: true,
};

const CALL: TaggedCall = TaggedCall { before_name: FUNCTION, after_name: ">\n", tags: &TAGS, end: TAGS.end };

/// `<tool_call><function=NAME>`, for each argument `<parameter=KEY>VALUE</parameter>`, then
/// `</function></tool_call>`, written by Qwen3-Coder and Qwen 3.5. Each value has lines of its own.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<function=example_function_name>", "<function=' + tool_call.name"],
    opening_marks: &["<tool_call>", FUNCTION],
    marks_in_reasoning: &["<tool_call>"],
    inner_marks: &["</tool_call>"],
    closing_marks: &[TAGS.end, "</tool_call>"],
    call_form: Some(CallForm { body: CallBody::Tagged(&CALL), closing_mark: Some("</tool_call>") }),
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    let Some(call) = skip_mark(text, FUNCTION) else { return CallStart::Undecided };
    match split_header(call, ">") {
        Header::Undecided => CallStart::Undecided,
        Header::Missing => CallStart::NotACall,
        Header::Complete(name, rest) => TAGS.read_start(name.trim(), text, rest, tools),
    }
}
