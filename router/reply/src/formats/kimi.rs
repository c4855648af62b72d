//! JSON arguments after a call's id, which contains the name, in a section of calls.

use super::format::{CallBody, CallForm, Syntax, read_named, skip_mark};
use crate::call_start::{CallStart, Header, split_header};
use crate::signature::Signature;

const SECTION: &str = "<|tool_calls_section_begin|>";
const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

/// `<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}` and closing
/// marks, written by Kimi K2.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &[ARGUMENTS],
    opening_marks: &[SECTION, CALL],
    marks_in_reasoning: &[SECTION, CALL],
    inner_marks: &[ARGUMENTS, "<|tool_call_end|>", "<|tool_calls_section_end|>"],
    closing_marks: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
    call_form: Some(CallForm {
        body: CallBody::Named {
            before_name: "<|tool_call_begin|>functions.",
            after_name: ":0<|tool_call_argument_begin|>",
        },
        closing_mark: Some("<|tool_call_end|>"),
    }),
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    let Some(call) = skip_mark(text, CALL) else { return CallStart::Undecided };
    match split_header(call, ARGUMENTS) {
        Header::Undecided => CallStart::Undecided,
        Header::Missing => CallStart::NotACall,
        Header::Complete(id, arguments) => {
            let id = id.trim();
            let named = id.strip_prefix("functions.").unwrap_or(id);
            let name = named.rsplit_once(':').map_or(named, |(name, _)| name);
            read_named(name, text, arguments, tools)
        }
    }
}
