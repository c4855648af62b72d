//! What of JSON schema is taken, what is refused by name, and limits that are seen before anything is compiled.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::patterns::Patterns;
use crate::{GrammarError, GrammarLimits};

/// Keywords that hold for every output.
pub const KEYWORDS: [&str; 27] = [
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Keywords that would change what is valid, and are refused by name.
pub const REFUSED_KEYWORDS: [&str; 19] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "disallow",
    "divisibleBy",
    "else",
    "extends",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Keywords that say nothing about what is valid. Names that no draft knows are ignored too, as the drafts ask.
pub const IGNORED_KEYWORDS: [&str; 16] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// Values of `format` that hold for every output; others are refused by name.
pub const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// Keywords whose value is a schema.
const ONE_SCHEMA: [&str; 3] = ["additionalItems", "additionalProperties", "items"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value maps names to schemas.
const MAPS: [&str; 4] = ["$defs", "definitions", "patternProperties", "properties"];

/// A copy of the schema without what is certain to change nothing, if it is within its limits and has no keyword that
/// is refused.
pub(crate) fn checked(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
    check_sizes(schema, limits)?;
    let mut schema = match schema {
        // The parser's options are a key of the whole.
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) => {
            return Err(GrammarError::Invalid {
                kind: "JSON schema",
                detail: "`false` matches nothing".into(),
            });
        }
        other => other.clone(),
    };
    let mut walk = Walk {
        num_entries: 0,
        patterns: Patterns::default(),
        max_entries: limits.max_properties,
        max_optional: limits.max_optional_properties(),
    };
    walk.schema(&mut schema, &mut Vec::new())?;
    walk.patterns.check()?;
    Ok(schema)
}

fn check_sizes(schema: &Value, limits: &GrammarLimits) -> Result<(), GrammarError> {
    let num_bytes = schema.to_string().len();
    if num_bytes > limits.max_bytes {
        return Err(GrammarError::TooLarge {
            what: "the schema in bytes",
            value: num_bytes,
            limit: limits.max_bytes,
            flag: "--max-schema-bytes",
        });
    }
    let depth = depth(schema);
    if depth > limits.max_depth {
        return Err(GrammarError::TooLarge {
            what: "the schema's depth",
            value: depth,
            limit: limits.max_depth,
            flag: "--max-schema-depth",
        });
    }
    Ok(())
}

/// Objects and arrays inside one another. Not by recursion: what it guards against is depth.
fn depth(value: &Value) -> usize {
    let mut level: Vec<&Value> = vec![value];
    let mut depth = 0;
    loop {
        let mut inner: Vec<&Value> = Vec::new();
        let mut has_containers = false;
        for value in level {
            match value {
                Value::Array(list) => {
                    has_containers = true;
                    inner.extend(list);
                }
                Value::Object(map) => {
                    has_containers = true;
                    inner.extend(map.values());
                }
                _ => {}
            }
        }
        if !has_containers {
            return depth;
        }
        depth += 1;
        level = inner;
    }
}

/// One pass over all places of a schema that are schemas themselves.
struct Walk {
    num_entries: usize,
    patterns: Patterns,
    max_entries: usize,
    max_optional: usize,
}

impl Walk {
    fn schema(&mut self, schema: &mut Value, path: &mut Vec<String>) -> Result<(), GrammarError> {
        let Value::Object(map) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                _ => Err(GrammarError::Invalid {
                    kind: "JSON schema",
                    detail: format!("`{}` is neither an object nor a boolean", pointer(path)),
                }),
            };
        };
        self.patterns.look_at(map)?;
        check_keywords(map, path)?;
        self.check_optional(map, path)?;
        for (keyword, value) in map.iter_mut() {
            let keyword = keyword.as_str();
            match value {
                Value::Object(entries) if MAPS.contains(&keyword) => {
                    self.count(entries.len())?;
                    for (name, entry) in entries.iter_mut() {
                        self.at(entry, path, &[keyword, name])?;
                    }
                }
                Value::Array(entries) if LISTS.contains(&keyword) => {
                    self.count(entries.len())?;
                    for (index, entry) in entries.iter_mut().enumerate() {
                        self.at(entry, path, &[keyword, &index.to_string()])?;
                    }
                }
                Value::Array(entries) if matches!(keyword, "enum" | "required") => {
                    self.count(entries.len())?;
                }
                Value::Object(_) if ONE_SCHEMA.contains(&keyword) => self.at(value, path, &[keyword])?,
                _ => {}
            }
        }
        Ok(())
    }

    fn at(&mut self, schema: &mut Value, path: &mut Vec<String>, steps: &[&str]) -> Result<(), GrammarError> {
        let length = path.len();
        path.extend(steps.iter().map(|step| (*step).to_owned()));
        let outcome = self.schema(schema, path);
        path.truncate(length);
        outcome
    }

    /// Properties come in their order, so that in front of several optional ones each may be next: a place where the
    /// parser keeps too many of them would fail only while generating.
    fn check_optional(&self, map: &Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
        let Some(Value::Object(properties)) = map.get("properties") else { return Ok(()) };
        let names = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = names.filter_map(Value::as_str).collect();
        let (mut run, mut longest) = (0, 0);
        for name in properties.keys() {
            run = if required.contains(name.as_str()) { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        if longest <= self.max_optional {
            return Ok(());
        }
        Err(GrammarError::TooComplex {
            detail: format!(
                "`{}` has {longest} optional properties one after another, the limit is {}",
                pointer(path),
                self.max_optional
            ),
            hint: "put some of them into `required`, or into objects of their own",
        })
    }

    fn count(&mut self, num_entries: usize) -> Result<(), GrammarError> {
        self.num_entries += num_entries;
        if self.num_entries <= self.max_entries {
            return Ok(());
        }
        Err(GrammarError::TooLarge {
            what: "the number of the schema's properties, alternatives and values",
            value: self.num_entries,
            limit: self.max_entries,
            flag: "--max-schema-properties",
        })
    }
}

/// Refuses what is not supported in one schema, and takes out what changes nothing.
fn check_keywords(map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
    let refuse = |keyword: &str, reason: String| {
        Err(GrammarError::UnsupportedKeyword { keyword: keyword.to_owned(), pointer: pointer(path), reason })
    };
    // The parser would take it as its own options.
    map.remove("x-guidance");
    if map.get("uniqueItems") == Some(&Value::Bool(false)) {
        map.remove("uniqueItems");
    }
    if let Some(keyword) = map.keys().find(|key| REFUSED_KEYWORDS.contains(&key.as_str())).cloned() {
        return refuse(&keyword, String::new());
    }
    if let Some(format) = map.get("format").and_then(Value::as_str)
        && !FORMATS.contains(&format)
    {
        if may_be_string(map) {
            return refuse("format", format!(" with the value `{format}`; hint: use `pattern`"));
        }
        map.remove("format");
    }
    if let Some(pattern) = map.get("format").and_then(Value::as_str).and_then(exact_pattern) {
        map.remove("format");
        let also = json!({"pattern": pattern});
        match map.get_mut("allOf") {
            Some(Value::Array(all)) => all.push(also),
            _ => {
                map.insert("allOf".to_owned(), Value::Array(vec![also]));
            }
        }
    }
    let num_required = map.get("required").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    if let Some(least) = map.get("minProperties").and_then(Value::as_u64)
        && least > num_required + 1
    {
        // The same name written twice would be counted twice.
        return refuse("minProperties", " beyond one more than the properties that are required".to_owned());
    }
    Ok(())
}

/// A pattern for formats that the parser takes more loosely than their documents do: leap years, no leap seconds
/// (which are
/// not to be foreseen), names within the lengths of RFC 1035 and RFC 5321.
fn exact_pattern(format: &str) -> Option<String> {
    let date = concat!(
        "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
        "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
        "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    );
    let label = "[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,20}){0,2}";
    let host = format!("{label}(?:\\.{label}){{0,2}}");
    let word = "[a-zA-Z0-9!#$%&'*+/=?_-]{1,20}";
    let time = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
    match format {
        "date" => Some(format!("^{date}$")),
        "time" => Some(format!("^{time}$")),
        "date-time" => Some(format!("^{date}T{time}$")),
        "hostname" => Some(format!("^{host}$")),
        "email" => Some(format!("^{word}(?:\\.{word}){{0,2}}@{label}\\.{host}$")),
        _ => None,
    }
}

fn may_be_string(map: &Map<String, Value>) -> bool {
    match map.get("type") {
        None => true,
        Some(Value::String(name)) => name == "string",
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        Some(_) => true,
    }
}

/// A path as a JSON pointer in a URI fragment's form, without percent escapes.
fn pointer(path: &[String]) -> String {
    path.iter().fold("#".to_owned(), |pointer, step| {
        format!("{pointer}/{}", step.replace('~', "~0").replace('/', "~1"))
    })
}

/// What the parser refused for a keyword, as one of our errors: the keyword and where it is.
pub(crate) fn unsupported(schema: &Value, error: &str) -> Option<GrammarError> {
    let known: [(&str, &[&str], &str); 6] = [
        ("circular references with sibling", &["$ref"], " in a circle with keywords beside it"),
        ("oneOf constraints", &["oneOf"], " where its alternatives may overlap; hint: use `anyOf`"),
        (
            "min/maxProperties only",
            &["minProperties", "maxProperties"],
            " unless all entries of `properties` are required",
        ),
        ("patternProperty regexes", &["patternProperties"], " with patterns that may match the same name"),
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
        let name = name.as_str();
        let entries: Vec<(Option<String>, &Value)> = match value {
            Value::Object(entries) if MAPS.contains(&name) => {
                entries.iter().map(|(key, entry)| (Some(key.clone()), entry)).collect()
            }
            Value::Array(entries) if LISTS.contains(&name) => {
                entries.iter().enumerate().map(|(index, entry)| (Some(index.to_string()), entry)).collect()
            }
            Value::Object(_) if ONE_SCHEMA.contains(&name) => vec![(None, value)],
            _ => continue,
        };
        for (key, entry) in entries {
            let length = path.len();
            path.push(name.to_owned());
            path.extend(key);
            places_of(entry, keyword, path, found);
            path.truncate(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: Value) -> String {
        checked(&schema, &GrammarLimits::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_refused_keyword_is_named_with_its_place() {
        for keyword in REFUSED_KEYWORDS.iter().chain(&["uniqueItems"]) {
            let schema = json!({"properties": {"a/b": {"items": [true, {*keyword: {}}]}}});
            let expected = format!("keyword `{keyword}` at `#/properties/a~1b/items/1` is not supported");
            assert_eq!(refusal(schema), expected);
        }
        // What is no schema is not looked at.
        let schema =
            json!({"enum": [{"not": 1}], "default": {"if": 2}, "properties": {"not": {"const": {"if": 1}}}});
        checked(&schema, &GrammarLimits::default()).unwrap();
    }

    #[test]
    fn limits_name_value_limit_and_flag() {
        let limits =
            GrammarLimits { max_bytes: 60, max_depth: 4, max_properties: 3, ..GrammarLimits::default() };
        let refusal = |schema: Value| checked(&schema, &limits).unwrap_err().to_string();
        assert_eq!(
            refusal(json!({"title": "a".repeat(60)})),
            "the schema in bytes is 72, the limit is 60 (`--max-schema-bytes`)"
        );
        assert_eq!(
            refusal(json!({"default": [[[[]]]]})),
            "the schema's depth is 5, the limit is 4 (`--max-schema-depth`)"
        );
        assert_eq!(
            refusal(json!({"enum": [1, 2], "anyOf": [true, true]})),
            "the number of the schema's properties, alternatives and values is 4, the limit is 3 \
             (`--max-schema-properties`)"
        );
    }

    #[test]
    fn formats_of_what_is_no_string_change_nothing() {
        let schema = json!({"type": "integer", "format": "int32", "uniqueItems": false});
        assert_eq!(checked(&schema, &GrammarLimits::default()).unwrap(), json!({"type": "integer"}));
        assert!(
            refusal(json!({"format": "int32"})).starts_with("keyword `format` at `#` is not supported with")
        );
        assert!(refusal(json!({"minProperties": 2, "required": []})).starts_with("keyword `minProperties`"));
    }
}
