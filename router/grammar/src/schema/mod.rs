//! Checks a JSON schema before it is compiled, and rewrites it for the parser.

pub(crate) mod finiteness;
pub(crate) mod keywords;
pub(crate) mod normalize;
pub(crate) mod numbers;
pub(crate) mod patterns;
pub(crate) mod property_names;
pub(crate) mod subschemas;
pub(crate) mod unsupported;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::limits::GrammarLimits;
use crate::regex::portable::{RegexError, portable};
use crate::schema::keywords::{FORMATS, REFUSED_KEYWORDS};
use crate::schema::normalize::{allows_nothing, allows_type, simplify};
use crate::schema::patterns::Patterns;
use crate::schema::property_names::CopyBudget;
use crate::schema::unsupported::{UnsupportedKeyword, pointer};

/// Returns the schema in a form that the parser enforces, if it is within the limits and has only supported keywords.
pub(crate) fn checked(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
    limits.check_bytes("the schema has", schema.to_string().len())?;
    limits.check_depth(depth(schema))?;
    let mut schema = schema.clone();
    let mut walk = Walk {
        limits,
        num_entries: 0,
        patterns: Patterns::default(),
        visited: HashSet::new(),
        copies: CopyBudget { bytes_left: limits.max_bytes },
        references: Vec::new(),
    };
    walk.schema(&mut schema, &mut Vec::new())?;
    walk.follow_references(&mut schema)?;
    walk.patterns.check()?;
    let is_false = schema == false;
    finiteness::remove_infinite(&mut schema);
    match schema {
        // The parser's options are a key of the root, so it must be an object.
        Value::Bool(true) => Ok(Value::Object(Map::new())),
        Value::Bool(false) if is_false => Err(invalid("`false` matches nothing")),
        Value::Bool(false) => Err(invalid(
            "no finite text matches it, because a required part is `false` or requires itself again",
        )),
        other => Ok(other),
    }
}

/// Returns the depth of nested objects and arrays. It does not recurse, because the depth is not checked yet.
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

/// One pass over a schema and its subschemas.
struct Walk<'a> {
    limits: &'a GrammarLimits,
    num_entries: usize,
    patterns: Patterns,
    /// Pointers of the schemas that were visited.
    visited: HashSet<String>,
    copies: CopyBudget,
    /// References found so far, which are followed at the end.
    references: Vec<String>,
}

impl Walk<'_> {
    fn schema(&mut self, schema: &mut Value, path: &mut Vec<String>) -> Result<(), GrammarError> {
        if schema.as_object().is_some_and(allows_nothing) {
            *schema = Value::Bool(false);
        }
        let Value::Object(map) = schema else {
            return match schema {
                Value::Bool(_) => Ok(()),
                _ => Err(invalid(format!("`{}` is neither an object nor a boolean", pointer(path)))),
            };
        };
        if !self.visited.insert(pointer(path)) {
            return Ok(());
        }
        self.references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
        simplify(map);
        // The budget must be checked before anything parses the patterns.
        self.patterns.add(map)?;
        property_names::rewrite(map, &mut self.copies).map_err(|keyword| keyword.at(path))?;
        property_names::merge_patterns(map, &mut self.copies);
        check_keywords(map, path)?;
        check_expressions(map, path)?;
        numbers::check_values(map).map_err(|keyword| keyword.at(path))?;
        numbers::tighten_bounds(map).map_err(|keyword| keyword.at(path))?;
        self.check_optional(map, path)?;
        for (keyword, value) in map.iter_mut() {
            if let Value::Array(entries) = value
                && matches!(keyword.as_str(), "enum" | "required")
            {
                self.count(entries.len())?;
            }
            let inner = subschemas::of_mut(keyword, value);
            self.count(inner.iter().filter(|(step, _)| step.is_some()).count())?;
            for (step, entry) in inner {
                let length = path.len();
                path.push(keyword.clone());
                path.extend(step);
                self.schema(entry, path)?;
                path.truncate(length);
            }
        }
        Ok(())
    }

    /// Visits schemas that only references lead to. A reference may point below a keyword that contains no schemas.
    fn follow_references(&mut self, root: &mut Value) -> Result<(), GrammarError> {
        while let Some(reference) = self.references.pop() {
            let Some((_, fragment)) = reference.split_once('#') else { continue };
            let fragment = unescaped(fragment);
            let mut path: Vec<String> =
                fragment.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
            if self.visited.contains(&pointer(&path)) {
                continue;
            }
            // The parser resolves or refuses other references.
            let Some(schema @ Value::Object(_)) = root.pointer_mut(&fragment) else { continue };
            if path.iter().any(|step| step == "const" || step == "enum") {
                return Err(UnsupportedKeyword::new("$ref", " if it leads into a value").at(&path));
            }
            self.schema(schema, &mut path)?;
        }
        Ok(())
    }

    /// Limits the number of consecutive optional properties.
    ///
    /// Properties are written in their order, so each of several optional ones may come next. The parser keeps items
    /// for all of them, and would exceed its limit only while generating.
    fn check_optional(&self, map: &Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
        let Some(Value::Object(properties)) = map.get("properties") else { return Ok(()) };
        let names = map.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: HashSet<&str> = names.filter_map(Value::as_str).collect();
        let (mut run, mut longest) = (0, 0);
        for name in properties.keys() {
            run = if required.contains(name.as_str()) { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        let limit = self.limits.max_optional_properties();
        if longest <= limit {
            return Ok(());
        }
        Err(GrammarError::TooComplex {
            detail: format!(
                "`{}` has {longest} consecutive optional properties, but the limit is {limit}",
                pointer(path),
            ),
            hint: "list some of them in `required`, or move them into nested objects",
        })
    }

    fn count(&mut self, num_entries: usize) -> Result<(), GrammarError> {
        self.num_entries += num_entries;
        self.limits.check_properties(self.num_entries)
    }
}

/// Refuses unsupported keywords of one schema, and replaces some formats by patterns.
fn check_keywords(map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
    let refuse = |keyword: &str, reason: String| Err(UnsupportedKeyword::new(keyword, reason).at(path));
    if let Some(keyword) = map.keys().find(|key| REFUSED_KEYWORDS.contains(&key.as_str())).cloned() {
        return refuse(&keyword, String::new());
    }
    if let Some(format) = map.get("format").and_then(Value::as_str)
        && !FORMATS.contains(&format)
    {
        return refuse("format", format!(" with the value `{format}`; hint: use `pattern`"));
    }
    if let Some(pattern) = map.get("format").and_then(Value::as_str).and_then(exact_pattern) {
        map.shift_remove("format");
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
        // The parser would count the same name twice if an output wrote it twice.
        let needed = least - 1;
        return refuse(
            "minProperties",
            format!(
                " with the value {least} and {num_required} required properties; hint: require {needed} or more"
            ),
        );
    }
    Ok(())
}

/// Refuses expressions that the parser does not support, and makes patterns portable.
fn check_expressions(map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
    let refuse = |keyword: &str, error: RegexError| match error {
        RegexError::Unsupported(construct) => {
            UnsupportedKeyword::new(keyword, format!(" with {construct}")).at(path)
        }
        RegexError::Invalid(detail) => {
            invalid(format!("`{keyword}` at `{}` is not a regular expression: {detail}", pointer(path)))
        }
    };
    if allows_type(map, "string")
        && let Some(Value::String(pattern)) = map.get_mut("pattern")
    {
        *pattern = portable(pattern).map_err(|error| refuse("pattern", error))?;
    }
    if allows_type(map, "object")
        && let Some(Value::Object(patterns)) = map.get("patternProperties")
    {
        // The patterns are only checked, because rewriting them would change which properties they match.
        for pattern in patterns.keys() {
            portable(pattern).map_err(|error| refuse("patternProperties", error))?;
        }
    }
    Ok(())
}

fn invalid(detail: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { kind: "JSON schema", detail: detail.into() }
}

/// Returns a pattern for a format that the parser enforces less strictly than the format's document.
///
/// The patterns respect leap years and the lengths of names in RFC 1035 and RFC 5321, and exclude leap seconds, which
/// cannot be predicted.
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

/// Resolves the percent escapes of a URI fragment.
fn unescaped(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.first_chunk::<2>().filter(|_| *first == b'%');
        let byte = escaped.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(schema: Value) -> String {
        checked(&schema, &GrammarLimits::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_refused_keyword_is_named_with_its_position() {
        for keyword in REFUSED_KEYWORDS.iter().chain(&["uniqueItems"]) {
            let schema = json!({"properties": {"a/b": {"items": [true, {*keyword: {"a": 1}}]}}});
            let expected = format!("keyword `{keyword}` at `#/properties/a~1b/items/1` is not supported");
            assert_eq!(error(schema), expected);
        }
        // Keywords inside plain values are not checked.
        let schema =
            json!({"enum": [{"not": 1}], "default": {"if": 2}, "properties": {"not": {"const": {"if": 1}}}});
        checked(&schema, &GrammarLimits::default()).unwrap();
    }

    #[test]
    fn limits_name_value_limit_and_flag() {
        let limits =
            GrammarLimits { max_bytes: 60, max_depth: 4, max_properties: 3, ..GrammarLimits::default() };
        let error = |schema: Value| checked(&schema, &limits).unwrap_err().to_string();
        assert_eq!(
            error(json!({"title": "a".repeat(60)})),
            "the schema has 72 bytes, but the limit is 60; hint: send less or raise `--max-schema-bytes`"
        );
        assert_eq!(
            error(json!({"default": [[[[]]]]})),
            "the schema has 5 levels of nesting, but the limit is 4; hint: send less or raise `--max-schema-depth`"
        );
        assert_eq!(
            error(json!({"enum": [1, 2], "anyOf": [true, true]})),
            "the schema has at least 4 properties, alternatives and values, but the limit is 3; hint: send less or \
             raise `--max-schema-properties`"
        );
    }

    #[test]
    fn formats_without_strings_are_ignored() {
        let schema = json!({"type": "integer", "format": "int32", "uniqueItems": false});
        assert_eq!(checked(&schema, &GrammarLimits::default()).unwrap(), json!({"type": "integer"}));
        assert!(
            error(json!({"format": "int32"})).starts_with("keyword `format` at `#` is not supported with")
        );
        let error = error(json!({"minProperties": 2, "required": []}));
        assert_eq!(
            error,
            "keyword `minProperties` at `#` is not supported with the value 2 and 0 required properties; hint: require \
             1 or more"
        );
    }
}
