//! JSON objects without marks.

use super::format::{Syntax, read_json_start};

/// A JSON object or a list of them as the whole reply, for models whose template shows no other format.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &[],
    opening_marks: &[],
    marks_in_reasoning: &[],
    inner_marks: &[],
    closing_marks: &[],
    separators: &[],
    allows_unmarked_calls: true,
    call_form: None,
    read_start: read_json_start,
};
