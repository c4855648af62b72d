//! The treatment of keywords that no grammar can hold.

use std::collections::BTreeSet;

use serde_json::Value;

/// A JSON schema as a client sent it.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonSchema {
    pub schema: Value,
    pub strictness: Strictness,
}

impl JsonSchema {
    /// Creates a schema whose unsupported keywords are left out unless it is strict.
    pub fn new(schema: Value, is_strict: bool) -> Self {
        let strictness = if is_strict { Strictness::Strict } else { Strictness::Relaxed };
        Self { schema, strictness }
    }
}

/// Creates a strict schema.
impl From<Value> for JsonSchema {
    fn from(schema: Value) -> Self {
        Self::new(schema, true)
    }
}

/// The treatment of a schema that has a keyword that no grammar can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strictness {
    /// The schema is refused.
    Strict,
    /// The keyword is left out.
    Relaxed,
    /// The schema is refused if the keyword is below one of these JSON pointers, each a URI fragment.
    StrictBelow(Vec<String>),
}

impl Strictness {
    /// Returns true if keywords of the schema at a pointer must be enforced.
    pub(crate) fn applies_at(&self, pointer: &str) -> bool {
        match self {
            Self::Strict => true,
            Self::Relaxed => false,
            Self::StrictBelow(roots) => roots.iter().any(|root| {
                pointer
                    .strip_prefix(root.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }),
        }
    }
}

/// The names of the keywords that were left out of a schema.
pub(crate) type RelaxedKeywords = BTreeSet<String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strict_part_ends_at_its_pointer() {
        let strictness = Strictness::StrictBelow(vec!["#/anyOf/1".into()]);
        assert!(strictness.applies_at("#/anyOf/1") && strictness.applies_at("#/anyOf/1/items"));
        assert!(!strictness.applies_at("#/anyOf/10") && !strictness.applies_at("#"));
    }
}
