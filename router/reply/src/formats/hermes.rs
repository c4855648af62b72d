//! JSON objects between `<tool_call>` and `</tool_call>`.

use super::format::{CallBody, CallForm, Syntax};

/// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, written by Hermes 2 Pro, Qwen 2.5 and 3, and
/// SmolLM3.
pub(super) const SYNTAX: Syntax = Syntax {
    // SmolLM3's template says `xml_tools`.
    template_marks: &["<tool_call>", "xml_tools"],
    opening_marks: &["<tool_call>"],
    marks_in_reasoning: &["<tool_call>"],
    inner_marks: &["</tool_call>"],
    closing_marks: &["</tool_call>"],
    call_form: Some(CallForm { body: CallBody::Object, closing_mark: Some("</tool_call>") }),
    ..Syntax::JSON_CALLS
};
