//! Calls as a Python list.

use super::format::Syntax;
use crate::call_start::CallStart;
use crate::signature::Signature;

/// `[name(key=value, ...), ...]` as the whole reply, written by Llama 3.2 and 4, and ToolACE.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["func_name1(params_name1=", "<|python_start|>"],
    opening_marks: &["<|python_start|>"],
    inner_marks: &["<|python_end|>"],
    closing_marks: &["<|python_end|>"],
    allows_unmarked_calls: true,
    read_start,
    ..Syntax::JSON_CALLS
};

fn read_start(text: &str, _tools: &[Signature]) -> CallStart {
    if text.starts_with('[') { CallStart::PythonList } else { CallStart::NotACall }
}
