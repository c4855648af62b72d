//! JSON objects without marks.

use super::format::Syntax;

/// A JSON object or a list of them as the whole reply, for models whose template shows no other format.
pub(super) const SYNTAX: Syntax = Syntax { allows_unmarked_calls: true, ..Syntax::JSON_CALLS };
