//! JSON objects with or without `<|python_tag|>` before them.

use super::format::{Syntax, read_json_start};

/// `{"name": ..., "parameters": {...}}` as the whole reply, written by Llama 3.1 to 3.3. Several calls have `;`
/// between them, and `<|python_tag|>` may precede the first.
pub(super) const SYNTAX: Syntax = Syntax {
    template_marks: &[
        "<|python_tag|>",
        "\"parameters\": dictionary of argument name",
        "\\\"parameters\\\": dictionary of argument name",
        // The role of tool results in all templates of the family.
        "ipython",
    ],
    opening_marks: &["<|python_tag|>"],
    marks_in_reasoning: &[],
    inner_marks: &[],
    closing_marks: &[],
    separators: &[';', ','],
    allows_unmarked_calls: true,
    call_form: None,
    read_start: read_json_start,
};
