//! A JSON list with or without one of several marks before it.

use super::format::Syntax;

/// `[{"name": ..., "arguments": {...}}, ...]` as the whole reply, as a block of code, or after `[TOOL_CALLS]` or
/// `<tool_call>`, written by xLAM 2.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["make calls in a single JSON array"],
    opening_marks: &["```json", "[TOOL_CALLS]", "<tool_call>"],
    inner_marks: &["</tool_call>"],
    closing_marks: &["```", "</tool_call>"],
    allows_unmarked_calls: true,
    ..Syntax::JSON_CALLS
};
