//! Leaves keywords out of a schema that need not be strict.

use serde_json::{Map, Value};

use crate::schema::conditions::also;
use crate::schema::keywords::IGNORED_KEYWORDS;
use crate::schema::strictness::{RelaxedKeywords, Strictness};
use crate::schema::subschemas;
use crate::schema::unsupported::pointer;

/// Leaves a keyword out of one schema, with those that mean something else without it. Returns false if the schema has
/// no such keyword, or none that can be left out.
pub(crate) fn remove(schema: &mut Map<String, Value>, keyword: &str, relaxed: &mut RelaxedKeywords) -> bool {
    // Without a reference or a definition, less of the schema is left than its author expects.
    if keyword == "$ref" || IGNORED_KEYWORDS.contains(&keyword) {
        return false;
    }
    let Some(value) = schema.shift_remove(keyword) else { return false };
    relaxed.insert(keyword.to_owned());
    let companions: &[&str] = match keyword {
        "if" => &["then", "else"],
        // Otherwise names that match a pattern would count as additional ones.
        "patternProperties" => &["additionalProperties"],
        _ => &[],
    };
    for companion in companions {
        if schema.shift_remove(*companion).is_some() {
            relaxed.insert((*companion).to_owned());
        }
    }
    if keyword == "oneOf" {
        also(schema, Value::Object(Map::from_iter([("anyOf".to_owned(), value)])));
    }
    true
}

/// Leaves keywords out of all parts that need not be strict. Returns true if any part had one.
pub(crate) fn remove_everywhere(
    schema: &mut Value,
    keywords: &[&str],
    strictness: &Strictness,
    relaxed: &mut RelaxedKeywords,
) -> bool {
    remove_below(schema, &mut Vec::new(), &mut |map, path| {
        let is_strict = strictness.applies_at(&pointer(path));
        keywords.iter().filter(|keyword| !is_strict && remove(map, keyword, relaxed)).count() > 0
    })
}

fn remove_below(
    schema: &mut Value,
    path: &mut Vec<String>,
    remove: &mut impl FnMut(&mut Map<String, Value>, &[String]) -> bool,
) -> bool {
    let Value::Object(map) = schema else { return false };
    let mut has_changed = remove(map, path);
    for (keyword, value) in map.iter_mut() {
        for (step, inner) in subschemas::of_mut(keyword, value) {
            let length = path.len();
            path.push(keyword.clone());
            path.extend(step);
            has_changed |= remove_below(inner, path, remove);
            path.truncate(length);
        }
    }
    has_changed
}
