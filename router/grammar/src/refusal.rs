//! What of a schema is refused: a keyword, where it is, and why.

use serde_json::Value;

use crate::{GrammarError, subschemas};

/// A keyword that cannot be held, before its place is known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    keyword: String,
    reason: String,
}

impl Refusal {
    /// `reason` follows the words "is not supported", with its punctuation; it may be empty.
    pub(crate) fn new(keyword: &str, reason: impl Into<String>) -> Self {
        Self { keyword: keyword.to_owned(), reason: reason.into() }
    }

    /// In the schema that a path leads to.
    pub(crate) fn at(self, path: &[String]) -> GrammarError {
        GrammarError::UnsupportedKeyword {
            keyword: self.keyword,
            pointer: pointer(path),
            reason: self.reason,
        }
    }
}

/// A path as a JSON pointer in a URI fragment's form, without percent escapes.
pub(crate) fn pointer(path: &[String]) -> String {
    path.iter().fold("#".to_owned(), |pointer, step| {
        format!("{pointer}/{}", step.replace('~', "~0").replace('/', "~1"))
    })
}

/// What the parser refused for a keyword, as one of our errors: the keyword and where it is.
pub(crate) fn unsupported(schema: &Value, error: &str) -> Option<GrammarError> {
    let known: [(&str, &[&str], &str); 8] = [
        ("circular references with sibling", &["$ref"], " in a circle with keywords beside it"),
        ("oneOf constraints", &["oneOf"], " where its alternatives may overlap; hint: use `anyOf`"),
        (
            "min/maxProperties only",
            &["minProperties", "maxProperties"],
            " unless all entries of `properties` are required",
        ),
        ("patternProperty regexes", &["patternProperties"], " with patterns that may match the same name"),
        ("lookarounds not supported", &["pattern", "patternProperties"], " with `^` or `$` inside it"),
        ("for 'multipleOf' has too many", &["multipleOf"], " with so many digits"),
        ("Unknown format", &["format"], " with this value; hint: use `pattern`"),
        ("Unimplemented keys", &["uniqueItems"], ""),
    ];
    let (_, keywords, reason) = known.into_iter().find(|(words, ..)| error.contains(words))?;
    let mut found = Vec::new();
    for keyword in keywords {
        places_of(schema, keyword, &mut Vec::new(), &mut found);
    }
    // It may be where only a reference leads.
    let (keyword, pointer) =
        found.first().cloned().unwrap_or_else(|| (keywords[0].to_owned(), "#".to_owned()));
    let others = match found.len() {
        0 | 1 => String::new(),
        count => format!(" (here or at one of {} other places)", count - 1),
    };
    Some(GrammarError::UnsupportedKeyword { keyword, pointer, reason: format!("{reason}{others}") })
}

/// All schemas that have a keyword, with their pointers.
fn places_of(schema: &Value, keyword: &str, path: &mut Vec<String>, found: &mut Vec<(String, String)>) {
    let Value::Object(map) = schema else { return };
    if map.contains_key(keyword) {
        found.push((keyword.to_owned(), pointer(path)));
    }
    for (name, value) in map {
        for (step, entry) in subschemas::of(name, value) {
            let length = path.len();
            path.push(name.clone());
            path.extend(step);
            places_of(entry, keyword, path, found);
            path.truncate(length);
        }
    }
}
