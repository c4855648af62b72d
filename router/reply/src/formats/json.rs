//! JSON objects without marks.

use super::format::{Syntax, ToolFormat, read_json_start};

impl ToolFormat {
    /// A JSON object or a list of them as the whole reply, for models whose template shows no other format.
    pub const JSON: Self = Self(&Syntax {
        name: "json",
        template_marks: &[],
        opening_marks: &[],
        marks_in_reasoning: &[],
        inner_marks: &[],
        closing_marks: &[],
        separators: &[],
        allows_unmarked_calls: true,
        call_form: None,
        read_start: read_json_start,
    });
}
