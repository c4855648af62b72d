//! A limit on the patterns of a schema that may apply to one string together.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::error::GrammarError;
use crate::regex::class_budget::ClassBudget;
use crate::schema::keywords::IGNORED_KEYWORDS;

/// Most distinct patterns of a schema in which several may apply at once.
///
/// The parser merges all patterns that apply to a string into one expression. Each of them about doubles the time and
/// the memory that this takes.
const MAX_MERGED: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Patterns {
    class_budget: ClassBudget,
    distinct: HashSet<String>,
    /// True if some subschema has parts that apply at once.
    may_merge: bool,
}

impl Patterns {
    /// Adds one subschema as the client wrote it.
    pub(crate) fn add(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        for keyword in ["pattern", "format"] {
            if let Some(Value::String(text)) = schema.get(keyword) {
                self.distinct.insert(format!("{keyword} {text}"));
            }
        }
        if let Some(Value::String(pattern)) = schema.get("pattern") {
            self.class_budget.add(pattern)?;
        }
        if let Some(Value::Object(patterns)) = schema.get("patternProperties") {
            patterns.keys().try_for_each(|pattern| self.class_budget.add(pattern))?;
        }
        if let Some(Value::String(pattern)) =
            schema.get("propertyNames").and_then(|names| names.get("pattern"))
        {
            self.class_budget.add(pattern)?;
        }
        let has_more = |keyword: &str| {
            schema.contains_key(keyword)
                && schema.keys().any(|other| other != keyword && !IGNORED_KEYWORDS.contains(&other.as_str()))
        };
        self.may_merge |=
            schema.contains_key("allOf") || ["$ref", "anyOf", "oneOf"].into_iter().any(has_more);
        Ok(())
    }

    /// Checks the limit. Call it after adding all subschemas.
    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        let count = self.distinct.len();
        if !self.may_merge || count <= MAX_MERGED {
            return Ok(());
        }
        Err(GrammarError::TooComplex {
            detail: format!(
                "it has {count} different values of `pattern` and `format`, but the limit is {MAX_MERGED} in a schema \
                 with `allOf`, or with other keywords beside a `$ref`, `anyOf` or `oneOf`"
            ),
            hint: "combine patterns that apply at once, or remove `allOf`",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(schemas: &[Value]) -> Result<(), GrammarError> {
        let mut patterns = Patterns::default();
        schemas.iter().try_for_each(|schema| patterns.add(schema.as_object().unwrap()))?;
        patterns.check()
    }

    #[test]
    fn many_patterns_are_accepted_if_no_two_apply_at_once() {
        let distinct = |count: usize| -> Vec<Value> {
            (0..count).map(|i| json!({"pattern": format!("a{i}")})).collect()
        };
        assert_eq!(outcome(&distinct(50)), Ok(()));
        for merging in [
            json!({"allOf": []}),
            json!({"$ref": "#/$defs/a", "pattern": "a0"}),
            json!({"anyOf": [], "properties": {}}),
            json!({"oneOf": [], "type": "object"}),
        ] {
            assert_eq!(outcome(&[distinct(MAX_MERGED), vec![merging.clone()]].concat()), Ok(()), "{merging}");
            let error = outcome(&[distinct(MAX_MERGED + 1), vec![merging.clone()]].concat()).unwrap_err();
            assert_eq!(error.code(), "schema_too_complex", "{merging}");
        }
        let beside = json!({"$ref": "#/$defs/a", "description": "x", "readOnly": true});
        assert_eq!(outcome(&[distinct(50), vec![beside]].concat()), Ok(()));
        let same: Vec<Value> = (0..50).map(|_| json!({"pattern": "a", "format": "date"})).collect();
        assert_eq!(outcome(&[same, vec![json!({"allOf": []})]].concat()), Ok(()));
    }
}
