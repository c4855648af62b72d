//! A JSON list after `<|tool_call|>`.

use super::format::Syntax;

/// `<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`, written by Granite 3. Some versions write
/// `<tool_call>`, and the 20B model for function calling writes `<function_call>` before each object.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<|tool_call|>", "<function_call>"],
    opening_marks: &["<|tool_call|>", "<tool_call>", "<function_call>"],
    inner_marks: &["</tool_call>"],
    closing_marks: &["</tool_call>"],
    allows_unmarked_calls: true,
    ..Syntax::JSON_CALLS
};
