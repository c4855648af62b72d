//! A JSON list of actions.

use super::format::{CallBody, CallForm, Syntax};

/// `<|START_ACTION|>[{"tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|>`, written by Command A and R7B.
/// Command R and R+ write `Action:` and the list as a block of code.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &["<|START_ACTION|>", "title of the tool in the specification"],
    opening_marks: &["<|START_ACTION|>", "Action: ```json", "Action:```json"],
    marks_in_reasoning: &["<|START_ACTION|>"],
    inner_marks: &["<|END_ACTION|>"],
    closing_marks: &["<|END_ACTION|>", "```"],
    call_form: Some(CallForm { body: CallBody::ObjectList, closing_mark: Some("<|END_ACTION|>") }),
    ..Syntax::JSON_CALLS
};
