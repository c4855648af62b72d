//! Checks a JSON schema before it is compiled, and rewrites it for the parser.

pub(crate) mod checked_schemas;
pub(crate) mod conditions;
pub(crate) mod counts;
pub(crate) mod document;
pub(crate) mod finiteness;
pub(crate) mod formats;
pub(crate) mod keywords;
pub(crate) mod look_ahead;
pub(crate) mod negation;
pub(crate) mod normalize;
pub(crate) mod numbers;
pub(crate) mod overlap;
pub(crate) mod patterns;
pub(crate) mod property_names;
pub(crate) mod relaxing;
pub(crate) mod strictness;
pub(crate) mod subschemas;
pub(crate) mod unsupported;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::error::GrammarError;
use crate::limits::GrammarLimits;
use crate::regex::portable::{RegexError, portable};
use crate::schema::conditions::Conditions;
use crate::schema::document::Document;
use crate::schema::formats::exact_pattern;
use crate::schema::keywords::{FORMATS, REFUSED_KEYWORDS};
use crate::schema::normalize::{allows_nothing, allows_type, simplify};
use crate::schema::patterns::Patterns;
use crate::schema::property_names::CopyBudget;
use crate::schema::strictness::{JsonSchema, RelaxedKeywords, Strictness};
use crate::schema::unsupported::{UnsupportedKeyword, pointer};

/// Keywords that are expressed through others once their parts are checked.
const REWRITTEN: [&str; 6] = ["not", "dependencies", "dependentRequired", "dependentSchemas", "if", "oneOf"];

/// A schema in a form that the parser enforces.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) schema: Value,
    /// The keywords that were left out.
    pub(crate) relaxed: RelaxedKeywords,
}

/// The treatment of keywords that are expressed through others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rewriting {
    Allowed,
    /// They are left out unless the schema is strict. The result is small.
    OnlyIfStrict,
}

/// Returns the schema in a form that the parser enforces, if it is within the limits and has only supported keywords,
/// apart from those that may be left out.
pub(crate) fn checked(
    JsonSchema { schema, strictness }: &JsonSchema,
    rewriting: Rewriting,
    limits: &GrammarLimits,
) -> Result<Checked, GrammarError> {
    limits.check_bytes("the schema has", schema.to_string().len())?;
    limits.check_depth(depth(schema))?;
    let document = Document::new(schema);
    let mut schema = schema.clone();
    let mut walk = Walk {
        limits,
        strictness,
        rewriting,
        document: &document,
        num_entries: 0,
        patterns: Patterns::default(),
        visited: HashSet::new(),
        copies: CopyBudget { bytes_left: limits.max_bytes },
        references: Vec::new(),
        num_conditions: 0,
        relaxed: RelaxedKeywords::new(),
    };
    walk.schema(&mut schema, &mut Vec::new())?;
    walk.follow_references(&mut schema)?;
    walk.patterns.check()?;
    let relaxed = walk.relaxed;
    let is_false = schema == false;
    finiteness::remove_infinite(&mut schema);
    let schema = match schema {
        // The parser's options are a key of the root, so it must be an object.
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Bool(false) if is_false => return Err(invalid("`false` matches nothing")),
        Value::Bool(false) => {
            return Err(invalid(
                "no finite text matches it, because a required part is `false` or requires itself again",
            ));
        }
        other => other,
    };
    Ok(Checked { schema, relaxed })
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
    strictness: &'a Strictness,
    rewriting: Rewriting,
    /// The schema before the pass.
    document: &'a Document,
    num_entries: usize,
    patterns: Patterns,
    /// Pointers of the schemas that were visited.
    visited: HashSet<String>,
    copies: CopyBudget,
    /// References found so far, which are followed at the end.
    references: Vec<String>,
    /// The number of conditions around the current schema. Nothing may be left out of a condition, because values that
    /// do not match would then have to obey the rest of the rule.
    num_conditions: usize,
    relaxed: RelaxedKeywords,
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
        look_ahead::split(map);
        // The budget must be checked before anything parses the patterns.
        self.patterns.add(map)?;
        self.enforce(map, path, |walk, map| property_names::rewrite(map, &mut walk.copies))?;
        property_names::merge_patterns(map, &mut self.copies);
        self.enforce(map, path, |_, map| check_keywords(map))?;
        while let Err(error) = check_expressions(map, path) {
            self.relax(map, error, path)?;
        }
        self.enforce(map, path, |_, map| numbers::check_values(map))?;
        self.enforce(map, path, |_, map| numbers::tighten_bounds(map))?;
        self.check_optional(map, path)?;
        self.parts(map, path)?;
        self.rewrite(map, path)
    }

    /// Visits the schemas inside a schema.
    fn parts(&mut self, map: &mut Map<String, Value>, path: &mut Vec<String>) -> Result<(), GrammarError> {
        let mut refused = None;
        for (keyword, value) in map.iter_mut() {
            if let Value::Array(entries) = value
                && matches!(keyword.as_str(), "enum" | "required")
            {
                self.count(entries.len())?;
            }
            let inner = subschemas::of_mut(keyword, value);
            self.count(inner.iter().filter(|(step, _)| step.is_some()).count())?;
            let is_condition = keyword == "if";
            self.num_conditions += usize::from(is_condition);
            for (step, entry) in inner {
                let length = path.len();
                path.push(keyword.clone());
                path.extend(step);
                let outcome = self.schema(entry, path);
                path.truncate(length);
                match outcome {
                    Err(error @ GrammarError::UnsupportedKeyword { .. }) if is_condition => {
                        refused = Some(error)
                    }
                    outcome => outcome?,
                }
            }
            self.num_conditions -= usize::from(is_condition);
        }
        match refused {
            Some(error) if self.is_strict(path) => Err(error),
            Some(_) => self.relax(map, UnsupportedKeyword::new("if", "").at(path), path),
            None => Ok(()),
        }
    }

    /// Expresses keywords through others.
    fn rewrite(&mut self, map: &mut Map<String, Value>, path: &[String]) -> Result<(), GrammarError> {
        let mut num_alternatives = 1;
        for keyword in REWRITTEN {
            self.enforce(map, path, |walk, map| {
                if !map.contains_key(keyword) {
                    return Ok(());
                }
                if walk.rewriting == Rewriting::OnlyIfStrict && !walk.is_strict(path) {
                    return Err(UnsupportedKeyword::new(keyword, ""));
                }
                let (document, copies) = (walk.document, &mut walk.copies);
                let mut conditions = Conditions { document, path, copies, num_alternatives };
                conditions.rewrite(map, keyword)?;
                num_alternatives = conditions.num_alternatives;
                Ok(())
            })?;
        }
        // Without `if` they have no effect.
        ["then", "else"].iter().for_each(|keyword| drop(map.shift_remove(*keyword)));
        self.enforce(map, path, |walk, map| {
            if walk.rewriting == Rewriting::OnlyIfStrict && !walk.is_strict(path) {
                return Ok(());
            }
            if let Some(alternatives) = counts::rewrite(map)? {
                conditions::also(map, alternatives);
            }
            Ok(())
        })
    }

    /// Runs a check again without the keywords that it refuses, if they may be left out.
    fn enforce(
        &mut self,
        map: &mut Map<String, Value>,
        path: &[String],
        mut check: impl FnMut(&mut Self, &mut Map<String, Value>) -> Result<(), UnsupportedKeyword>,
    ) -> Result<(), GrammarError> {
        while let Err(keyword) = check(self, map) {
            self.relax(map, keyword.at(path), path)?;
        }
        Ok(())
    }

    /// Leaves out the keyword that an error names, or returns the error.
    fn relax(
        &mut self,
        map: &mut Map<String, Value>,
        error: GrammarError,
        path: &[String],
    ) -> Result<(), GrammarError> {
        match &error {
            GrammarError::UnsupportedKeyword { keyword, .. } if !self.is_strict(path) => {
                if relaxing::remove(map, keyword, &mut self.relaxed) { Ok(()) } else { Err(error) }
            }
            _ => Err(error),
        }
    }

    fn is_strict(&self, path: &[String]) -> bool {
        self.num_conditions > 0 || self.strictness.applies_at(&pointer(path))
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
fn check_keywords(map: &mut Map<String, Value>) -> Result<(), UnsupportedKeyword> {
    if let Some(keyword) = map.keys().find(|key| REFUSED_KEYWORDS.contains(&key.as_str())) {
        return Err(UnsupportedKeyword::new(keyword, ""));
    }
    let Some(format) = map.get("format").and_then(Value::as_str) else { return Ok(()) };
    if !FORMATS.contains(&format) {
        return Err(UnsupportedKeyword::new(
            "format",
            format!(" with the value `{format}`; hint: use `pattern`"),
        ));
    }
    if let Some(pattern) = exact_pattern(format) {
        map.shift_remove("format");
        conditions::also(map, json!({"pattern": pattern}));
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
    use crate::schema::keywords::CONDITIONAL_KEYWORDS;

    fn checked_with(schema: &Value, limits: &GrammarLimits) -> Result<Value, GrammarError> {
        checked(&schema.clone().into(), Rewriting::Allowed, limits).map(|checked| checked.schema)
    }

    fn error(schema: Value) -> String {
        checked_with(&schema, &GrammarLimits::default()).unwrap_err().to_string()
    }

    #[test]
    fn a_refused_keyword_is_named_with_its_position() {
        // The parts of a condition have no effect without one.
        let conditional = CONDITIONAL_KEYWORDS.iter().filter(|keyword| !["then", "else"].contains(keyword));
        for keyword in REFUSED_KEYWORDS.iter().chain(conditional) {
            let rule = match *keyword {
                "if" | "not" => json!({"pattern": "a"}),
                "dependencies" | "dependentSchemas" | "dependentRequired" | "propertyNames" => json!(5),
                _ => json!({"a": 1}),
            };
            let schema = json!({"properties": {"a/b": {"items": [true, {*keyword: rule, "then": false}]}}});
            let expected = format!("keyword `{keyword}` at `#/properties/a~1b/items/1` is not supported");
            assert!(error(schema).starts_with(&expected), "{keyword}");
        }
        // Keywords inside plain values are not checked.
        let schema =
            json!({"enum": [{"not": 1}], "default": {"if": 2}, "properties": {"not": {"const": {"if": 1}}}});
        checked_with(&schema, &GrammarLimits::default()).unwrap();
    }

    #[test]
    fn keywords_that_no_grammar_holds_are_left_out_unless_strict() {
        let schema = json!({
            "anyOf": [{"type": "array", "uniqueItems": true}, {"type": "array", "contains": {"const": 1}}],
            "if": {"pattern": "a"}, "then": {"pattern": "b"}, "description": "x",
        });
        let relaxed = |strictness| {
            let schema = JsonSchema { schema: schema.clone(), strictness };
            checked(&schema, Rewriting::Allowed, &GrammarLimits::default())
                .map(|checked| (checked.schema, checked.relaxed.into_iter().collect::<Vec<_>>().join(" ")))
                .map_err(|error| error.to_string())
        };
        let rest = json!({"anyOf": [{"type": "array"}, {"type": "array"}], "description": "x"});
        assert_eq!(relaxed(Strictness::Relaxed), Ok((rest, "contains if then uniqueItems".into())));
        let expected = "keyword `contains` at `#/anyOf/1` is not supported";
        assert_eq!(relaxed(Strictness::StrictBelow(vec!["#/anyOf/1".into()])), Err(expected.into()));
        let expected = "keyword `uniqueItems` at `#/anyOf/0` is not supported";
        assert_eq!(relaxed(Strictness::Strict), Err(expected.into()));
    }

    #[test]
    fn limits_name_value_limit_and_flag() {
        let limits =
            GrammarLimits { max_bytes: 60, max_depth: 4, max_properties: 3, ..GrammarLimits::default() };
        let error = |schema: Value| checked_with(&schema, &limits).unwrap_err().to_string();
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
    fn formats_without_strings_have_no_effect() {
        let schema = json!({"type": "integer", "format": "int32", "uniqueItems": false});
        assert_eq!(checked_with(&schema, &GrammarLimits::default()).unwrap(), json!({"type": "integer"}));
        assert!(
            error(json!({"format": "regex"})).starts_with("keyword `format` at `#` is not supported with")
        );
    }
}
