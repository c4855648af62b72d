//! A JSON list after `functools`, or between `<|tool_call|>` and `<|/tool_call|>`.

use super::format::{CallBody, CallForm, Syntax};

/// `functools[{"name": ..., "arguments": {...}}, ...]` or `<|tool_call|>[...]<|/tool_call|>`, written by
/// Phi-4-mini.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<|tool|>", "functools["],
    opening_marks: &["<|tool_call|>", "functools"],
    inner_marks: &["<|/tool_call|>"],
    closing_marks: &["<|/tool_call|>"],
    call_form: Some(CallForm { body: CallBody::ObjectList, closing_mark: Some("<|/tool_call|>") }),
    ..Syntax::JSON_CALLS
};
