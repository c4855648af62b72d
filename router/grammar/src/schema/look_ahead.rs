//! Writes a pattern that first looks ahead as several patterns that a string must match at once.

use regex_syntax::ast::parse::Parser;
use serde_json::{Map, Value, json};

use crate::schema::conditions::also;

/// Most look-aheads of one pattern. The parser merges their patterns.
const MAX_LOOK_AHEADS: usize = 4;

/// Replaces a pattern such as `^(?=.*[0-9])(?=.*[a-z]).{8,}$` by one pattern for each look-ahead and one for the rest.
pub(crate) fn split(schema: &mut Map<String, Value>) {
    let Some(patterns) = schema.get("pattern").and_then(Value::as_str).and_then(parts) else { return };
    schema.shift_remove("pattern");
    patterns.into_iter().for_each(|pattern| also(schema, json!({"pattern": pattern})));
}

fn parts(pattern: &str) -> Option<Vec<String>> {
    let mut rest = pattern.strip_prefix('^')?;
    let mut found = Vec::new();
    while let Some(ahead) = rest.strip_prefix("(?=") {
        // The group ends where its content parses for the first time.
        let end = ahead.match_indices(')').map(|(end, _)| end).find(|end| parses(&ahead[..*end]))?;
        found.push(format!("^(?:{})", &ahead[..end]));
        rest = &ahead[end + 1..];
    }
    let is_whole =
        (1..=MAX_LOOK_AHEADS).contains(&found.len()) && parses(rest) && !has_top_level_choice(rest);
    found.push(format!("^{rest}"));
    is_whole.then_some(found)
}

fn parses(pattern: &str) -> bool {
    Parser::new().parse(pattern).is_ok()
}

/// Returns true if a pattern is a choice, of which `^` would apply to the first only.
fn has_top_level_choice(pattern: &str) -> bool {
    !matches!(Parser::new().parse(pattern), Ok(ast) if !matches!(ast, regex_syntax::ast::Ast::Alternation(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_look_aheads_become_patterns() {
        let split = |pattern: &str| parts(pattern).unwrap_or_default();
        assert_eq!(split(r"^(?=.*[0-9)])(?=(?:a|b)).{8,}$"), [r"^(?:.*[0-9)])", "^(?:(?:a|b))", "^.{8,}$"]);
        for pattern in ["^a(?=b)", "(?=a)b", "^(?!a)b", "^(?=a)b|c", "^(?=a)(?!b)c", "^(?=a", "^ab"] {
            assert!(split(pattern).is_empty(), "{pattern}");
        }
    }
}
