//! JSON objects with or without `<|python_tag|>` before them.

use super::format::Syntax;

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
    separators: &[';', ','],
    allows_unmarked_calls: true,
    ..Syntax::JSON_CALLS
};
