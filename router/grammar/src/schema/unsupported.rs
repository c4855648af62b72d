//! Errors about keywords that are not supported.

use serde_json::Value;

use crate::error::GrammarError;
use crate::schema::subschemas;

/// An unsupported keyword whose position is not known yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnsupportedKeyword {
    keyword: String,
    reason: String,
}

impl UnsupportedKeyword {
    /// Creates the error. `reason` follows the words "is not supported" and begins with a space or punctuation, unless
    /// it is empty.
    pub(crate) fn new(keyword: &str, reason: impl Into<String>) -> Self {
        Self { keyword: keyword.to_owned(), reason: reason.into() }
    }

    /// Adds the path of the schema that has the keyword.
    pub(crate) fn at(self, path: &[String]) -> GrammarError {
        GrammarError::UnsupportedKeyword {
            keyword: self.keyword,
            pointer: pointer(path),
            reason: self.reason,
        }
    }
}

/// Formats a path as a JSON pointer in a URI fragment, without percent escapes.
pub(crate) fn pointer(path: &[String]) -> String {
    path.iter().fold("#".to_owned(), |pointer, step| {
        format!("{pointer}/{}", step.replace('~', "~0").replace('/', "~1"))
    })
}

/// Returns the keywords that a parser error is about, with the reason in the form of [`UnsupportedKeyword::new`].
pub(crate) fn named_by(error: &str) -> Option<(&'static [&'static str], &'static str)> {
    let known: [(&str, &[&str], &str); 8] = [
        ("circular references with sibling", &["$ref"], " in a cycle with other keywords beside it"),
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
    Some((keywords, reason))
}

/// Translates a parser error about a keyword. Returns `None` if the error is about something else.
pub(crate) fn unsupported(schema: &Value, error: &str) -> Option<GrammarError> {
    let (keywords, reason) = named_by(error)?;
    let mut found = Vec::new();
    for keyword in keywords {
        find_keyword(schema, keyword, &mut Vec::new(), &mut found);
    }
    // Nothing is found if only a reference leads to the keyword.
    let (keyword, pointer) =
        found.first().cloned().unwrap_or_else(|| (keywords[0].to_owned(), "#".to_owned()));
    let others = match found.len() {
        0 | 1 => String::new(),
        count => format!(" (here or in one of {} other schemas)", count - 1),
    };
    Some(GrammarError::UnsupportedKeyword { keyword, pointer, reason: format!("{reason}{others}") })
}

fn find_keyword(schema: &Value, keyword: &str, path: &mut Vec<String>, found: &mut Vec<(String, String)>) {
    let Value::Object(map) = schema else { return };
    if map.contains_key(keyword) {
        found.push((keyword.to_owned(), pointer(path)));
    }
    for (name, value) in map {
        for (step, entry) in subschemas::of(name, value) {
            let length = path.len();
            path.push(name.clone());
            path.extend(step);
            find_keyword(entry, keyword, path, found);
            path.truncate(length);
        }
    }
}
