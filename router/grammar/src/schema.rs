//! What of JSON schema is taken, what is refused by name, and limits that are seen before anything is compiled.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::form::{allows_nothing, may_be, simplify};
use crate::keywords::{FORMATS, REFUSED_KEYWORDS};
use crate::names::Copies;
use crate::patterns::Patterns;
use crate::reading::{Fault, for_all_readers};
use crate::refusal::{Refusal, pointer};
use crate::{GrammarError, GrammarLimits, finite, names, numbers, subschemas};

/// A copy of the schema without what is certain to change nothing, if it is within its limits and has no keyword that
/// is refused.
pub(crate) fn checked(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
    check_sizes(schema, limits)?;
    let mut schema = schema.clone();
    let mut walk = Walk {
        num_entries: 0,
        patterns: Patterns::default(),
        max_entries: limits.max_properties,
        max_optional: limits.max_optional_properties(),
        seen: HashSet::new(),
        copies: Copies { bytes_left: limits.max_bytes },
        references: Vec::new(),
    };
    walk.schema(&mut schema, &mut Vec::new())?;
    walk.follow_references(&mut schema)?;
    walk.patterns.check()?;
    let is_nothing = schema == false;
    finite::prune(&mut schema);
    match schema {
        // The parser's options are a key of the whole.
        Value::Bool(true) => Ok(Value::Object(Map::new())),
        Value::Bool(false) if is_nothing => Err(invalid("`false` matches nothing")),
        Value::Bool(false) => {
            Err(invalid("no finite text matches it: what it requires is `false`, or requires itself again"))
        }
        other => Ok(other),
    }
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
    /// Pointers of the places that were walked.
    seen: HashSet<String>,
    copies: Copies,
    references: Vec<String>,
}

impl Walk {
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
        if !self.seen.insert(pointer(path)) {
            return Ok(());
        }
        self.references.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
        simplify(map);
        // Before anything parses them.
        self.patterns.look_at(map)?;
        names::rewrite(map, &mut self.copies).map_err(|refusal| refusal.at(path))?;
        names::merge_patterns(map, &mut self.copies);
        check_keywords(map, path)?;
        check_expressions(map, path)?;
        numbers::check_values(map).map_err(|refusal| refusal.at(path))?;
        numbers::tighten_bounds(map).map_err(|refusal| refusal.at(path))?;
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

    /// Walks what only references lead to: they may point to places that no keyword makes a schema.
    fn follow_references(&mut self, whole: &mut Value) -> Result<(), GrammarError> {
        while let Some(reference) = self.references.pop() {
            let Some((_, fragment)) = reference.split_once('#') else { continue };
            let fragment = unescaped(fragment);
            let mut path: Vec<String> =
                fragment.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
            if self.seen.contains(&pointer(&path)) {
                continue;
            }
            // Other references are the parser's to find, or to refuse.
            let Some(schema @ Value::Object(_)) = whole.pointer_mut(&fragment) else { continue };
            if path.iter().any(|step| step == "const" || step == "enum") {
                return Err(Refusal::new("$ref", " to what is a value").at(&path));
            }
            self.schema(schema, &mut path)?;
        }
        Ok(())
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

/// Refuses what is not supported in one schema, and gives formats their patterns.
fn check_keywords(map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
    let refuse = |keyword: &str, reason: String| Err(Refusal::new(keyword, reason).at(path));
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
        // The same name written twice would be counted twice.
        return refuse("minProperties", " beyond one more than the properties that are required".to_owned());
    }
    Ok(())
}

/// Refuses expressions that the parser does not take, and makes of patterns such as mean the same to all.
fn check_expressions(map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
    let tell = |keyword: &str, fault: Fault| match fault {
        Fault::Unsupported(what) => Refusal::new(keyword, format!(" with {what}")).at(path),
        Fault::Wrong(why) => {
            invalid(format!("`{keyword}` at `{}` is no regular expression: {why}", pointer(path)))
        }
    };
    if may_be(map, "string")
        && let Some(Value::String(pattern)) = map.get_mut("pattern")
    {
        *pattern = for_all_readers(pattern).map_err(|fault| tell("pattern", fault))?;
    }
    if may_be(map, "object")
        && let Some(Value::Object(patterns)) = map.get("patternProperties")
    {
        // Which properties are meant is not to be changed.
        for pattern in patterns.keys() {
            for_all_readers(pattern).map_err(|fault| tell("patternProperties", fault))?;
        }
    }
    Ok(())
}

fn invalid(detail: impl Into<String>) -> GrammarError {
    GrammarError::Invalid { kind: "JSON schema", detail: detail.into() }
}

/// A pattern for formats that the parser takes more loosely than their documents do: leap years, no leap seconds
/// (which are not to be foreseen), names within the lengths of RFC 1035 and RFC 5321.
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

/// A fragment of a URI without its percent escapes.
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

    fn refusal(schema: Value) -> String {
        checked(&schema, &GrammarLimits::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_refused_keyword_is_named_with_its_place() {
        for keyword in REFUSED_KEYWORDS.iter().chain(&["uniqueItems"]) {
            let schema = json!({"properties": {"a/b": {"items": [true, {*keyword: {"a": 1}}]}}});
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
