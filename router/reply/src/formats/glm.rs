//! A name, then keys and values between tags.

use super::format::{CallBody, CallForm, Syntax};
use crate::call_start::{CallStart, Tags};
use crate::signature::{self, Signature};
use crate::tagged_call::TaggedCall;

const TAGS: Tags = Tags {
    key_open: "<arg_key>",
    key_close: "</arg_key>",
    value_open: "<arg_value>",
    value_close: "</arg_value>",
    end: "</tool_call>",
    has_value_lines: false,
};

const CALL: TaggedCall = TaggedCall { before_name: "", after_name: "\n", tags: &TAGS, end: "" };

/// `<tool_call>NAME` and for each argument `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, then
/// `</tool_call>`, written by GLM 4.5 and later.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &[TAGS.key_open],
    opening_marks: &["<tool_call>"],
    marks_in_reasoning: &["<tool_call>"],
    inner_marks: &[TAGS.key_open, TAGS.key_close, TAGS.value_open, TAGS.value_close, TAGS.end],
    closing_marks: &[TAGS.end],
    call_form: Some(CallForm { body: CallBody::Tagged(&CALL), closing_mark: Some(TAGS.end) }),
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, tools: &[Signature]) -> CallStart {
    let Some((name, rest)) = text.find('<').map(|at| text.split_at(at)) else {
        let name = text.trim_end();
        return if signature::may_be_known(tools, name) { CallStart::Undecided } else { CallStart::NotACall };
    };
    TAGS.read_start(name.trim_end(), text, rest, tools)
}
