//! The patterns of a schema, and whether several of them may hold for one string.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::GrammarError;
use crate::classes::Classes;
use crate::keywords::IGNORED_KEYWORDS;

/// Different patterns of a schema whose parts hold at once, at most: the parser makes one expression of all that hold
/// for a string, and the time and the memory for that about double with each.
const MAX_MERGED: usize = 8;
/// What all places of a schema have.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    classes: Classes,
    distinct: HashSet<String>,
    /// Some place has parts that hold at once.
    may_merge: bool,
}

impl Patterns {
    /// Looks at one place, as the client wrote it.
    pub(crate) fn look_at(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        for keyword in ["pattern", "format"] {
            if let Some(Value::String(text)) = schema.get(keyword) {
                self.distinct.insert(format!("{keyword} {text}"));
            }
        }
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            self.classes.add(pattern)?;
        }
        if let Some(Value::Object(patterns)) = schema.get("patternProperties") {
            patterns.keys().try_for_each(|pattern| self.classes.add(pattern))?;
        }
        if let Some(Value::String(pattern)) =
            schema.get("propertyNames").and_then(|names| names.get("pattern"))
        {
            self.classes.add(pattern)?;
        }
        let has_more = |keyword: &str| {
            schema.contains_key(keyword)
                && schema.keys().any(|other| other != keyword && !IGNORED_KEYWORDS.contains(&other.as_str()))
        };
        self.may_merge |=
            schema.contains_key("allOf") || ["$ref", "anyOf", "oneOf"].into_iter().any(has_more);
        Ok(())
    }

    /// After all places.
    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        let count = self.distinct.len();
        if !self.may_merge || count <= MAX_MERGED {
            return Ok(());
        }
        Err(GrammarError::TooComplex {
            detail: format!(
                "it has {count} different values of `pattern` and `format`, the limit beside `allOf`, or beside a \
                 `$ref`, `anyOf` or `oneOf` that has other keywords, is {MAX_MERGED}"
            ),
            hint: "write what holds at once as one pattern, or leave out `allOf`",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(places: &[Value]) -> Result<(), GrammarError> {
        let mut patterns = Patterns::default();
        places.iter().try_for_each(|place| patterns.look_at(place.as_object().unwrap()))?;
        patterns.check()
    }

    #[test]
    fn many_patterns_are_taken_where_no_two_hold_at_once() {
        let of_each = |count: usize| -> Vec<Value> {
            (0..count).map(|i| json!({"pattern": format!("a{i}")})).collect()
        };
        assert_eq!(outcome(&of_each(50)), Ok(()));
        for merging in [
            json!({"allOf": []}),
            json!({"$ref": "#/$defs/a", "pattern": "a0"}),
            json!({"anyOf": [], "properties": {}}),
            json!({"oneOf": [], "type": "object"}),
        ] {
            assert_eq!(outcome(&[of_each(MAX_MERGED), vec![merging.clone()]].concat()), Ok(()), "{merging}");
            let error = outcome(&[of_each(MAX_MERGED + 1), vec![merging.clone()]].concat()).unwrap_err();
            assert_eq!(error.code(), "schema_too_complex", "{merging}");
        }
        let beside = json!({"$ref": "#/$defs/a", "description": "x", "readOnly": true});
        assert_eq!(outcome(&[of_each(50), vec![beside]].concat()), Ok(()));
        let same: Vec<Value> = (0..50).map(|_| json!({"pattern": "a", "format": "date"})).collect();
        assert_eq!(outcome(&[same, vec![json!({"allOf": []})]].concat()), Ok(()));
    }
}
