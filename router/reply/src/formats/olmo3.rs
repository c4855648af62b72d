//! Calls in Python's syntax between `<function_calls>` and `</function_calls>`.

use super::format::Syntax;
use crate::call_start::CallStart;
use crate::signature::Signature;

/// `<function_calls>name(key=value, ...)</function_calls>`, written by OLMo 3. Each call has a line of its own.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<function_calls>"],
    opening_marks: &["<function_calls>"],
    inner_marks: &["</function_calls>"],
    closing_marks: &["</function_calls>"],
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, _tools: &[Signature]) -> CallStart {
    if text.starts_with('[') { CallStart::PythonList } else { CallStart::PythonLines }
}
