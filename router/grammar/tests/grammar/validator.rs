//! A validator for the keywords of JSON schema that the tests use.
//!
//! It shares no code with the crate, because a test proves little if both sides read a schema with the same function.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use regex_automata::nfa::thompson::pikevm::PikeVM;
use serde_json::{Map, Number, Value};

use crate::formats;

/// Keywords that affect validity and that this validator does not support.
const UNKNOWN: [&str; 10] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "disallow",
    "divisibleBy",
    "extends",
    "maxContains",
    "minContains",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// The class `\s` of ECMA-262.
const SPACE: &str =
    r"[\t-\r\x{20}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]";
/// Most references followed without a step into the value.
const MAX_REFERENCES: usize = 1000;

/// A schema, with its patterns compiled.
pub struct Validator<'a> {
    root: &'a Value,
    draft: Draft,
    patterns: BTreeMap<&'a str, PikeVM>,
}

/// The drafts that differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Draft {
    /// In this draft `exclusiveMinimum` is a boolean, and `1.0` is not an integer.
    Four,
    /// In these drafts keywords beside `$ref` are ignored, and `items` may be a list.
    SixOrSeven,
    Later,
}

/// A violated rule and the position of the invalid value.
type Fault = String;

impl<'a> Validator<'a> {
    /// Creates a validator of the schema `root`.
    pub fn new(root: &'a Value) -> Self {
        let draft = match root.get("$schema").and_then(Value::as_str) {
            Some(url) if url.contains("draft-04") => Draft::Four,
            Some(url) if url.contains("draft-06") || url.contains("draft-07") => Draft::SixOrSeven,
            _ => Draft::Later,
        };
        Self { root, draft, patterns: BTreeMap::new() }
    }

    /// Returns the fault of the first invalid part of `value`.
    ///
    /// # Panics
    ///
    /// If the schema has keywords that this validator does not support.
    pub fn validate(&mut self, value: &Value) -> Result<(), Fault> {
        self.check(self.root, value, "#", 0)
    }

    fn check(
        &mut self,
        schema: &'a Value,
        value: &Value,
        pointer: &str,
        num_references: usize,
    ) -> Result<(), Fault> {
        let map = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => return Err(format!("nothing is valid at {pointer}")),
            Value::Object(map) => map,
            _ => panic!("{schema} is not a schema"),
        };
        if let Some(keyword) = UNKNOWN.into_iter().find(|keyword| map.contains_key(*keyword)) {
            panic!("this validator does not support `{keyword}`");
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            assert!(num_references < MAX_REFERENCES, "references in a cycle: {reference}");
            self.check(self.target(reference), value, pointer, num_references + 1)?;
            if self.draft <= Draft::SixOrSeven {
                return Ok(());
            }
        }
        self.check_any(map, value, pointer)?;
        self.check_combined(map, value, pointer, num_references)?;
        match value {
            Value::Number(number) => self.check_number(map, number, pointer),
            Value::String(text) => self.check_text(map, text, pointer),
            Value::Array(items) => self.check_array(map, items, pointer),
            Value::Object(entries) => self.check_object(map, entries, pointer),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    /// Returns the schema that a reference inside the document leads to.
    fn target(&self, reference: &str) -> &'a Value {
        let own = self.root.get("$id").or_else(|| self.root.get("id")).and_then(Value::as_str);
        let local = own.and_then(|id| reference.strip_prefix(id.trim_end_matches('#'))).unwrap_or(reference);
        let pointer =
            local.strip_prefix('#').unwrap_or_else(|| panic!("`{reference}` leads outside the document"));
        let pointer = percent_decoded(pointer);
        self.root.pointer(&pointer).unwrap_or_else(|| panic!("`{reference}` leads nowhere"))
    }

    fn check_any(&self, map: &Map<String, Value>, value: &Value, pointer: &str) -> Result<(), Fault> {
        let has_type = |kind: &Value| match kind.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.as_number().is_some_and(|number| self.is_integer(number)),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other} is not a type"),
        };
        let is_of_type = match map.get("type") {
            None => true,
            Some(Value::Array(kinds)) => kinds.iter().any(has_type),
            Some(kind) => has_type(kind),
        };
        require(is_of_type, "type", pointer)?;
        if let Some(Value::Array(values)) = map.get("enum") {
            require(values.iter().any(|other| equal(other, value)), "enum", pointer)?;
        }
        require(map.get("const").is_none_or(|other| equal(other, value)), "const", pointer)
    }

    fn check_combined(
        &mut self,
        map: &'a Map<String, Value>,
        value: &Value,
        pointer: &str,
        num_references: usize,
    ) -> Result<(), Fault> {
        let list = |keyword: &str| map.get(keyword).and_then(Value::as_array);
        for schema in list("allOf").into_iter().flatten() {
            self.check(schema, value, pointer, num_references)?;
        }
        let mut num_valid = |schemas: &'a [Value]| {
            schemas.iter().filter(|schema| self.check(schema, value, pointer, num_references).is_ok()).count()
        };
        if let Some(schemas) = list("anyOf") {
            require(num_valid(schemas) > 0, "anyOf", pointer)?;
        }
        if let Some(schemas) = list("oneOf") {
            require(num_valid(schemas) == 1, "oneOf", pointer)?;
        }
        if let Some(schema) = map.get("not") {
            require(num_valid(std::slice::from_ref(schema)) == 0, "not", pointer)?;
        }
        if let Some(schema) = map.get("if") {
            let branch = if num_valid(std::slice::from_ref(schema)) == 1 { "then" } else { "else" };
            require(
                map.get(branch).is_none_or(|schema| num_valid(std::slice::from_ref(schema)) == 1),
                branch,
                pointer,
            )?;
        }
        let dependencies = ["dependencies", "dependentSchemas"]
            .into_iter()
            .filter_map(|keyword| map.get(keyword)?.as_object());
        for (_, schema) in
            dependencies.flatten().filter(|(name, rule)| !rule.is_array() && value.get(name).is_some())
        {
            require(num_valid(std::slice::from_ref(schema)) == 1, "dependencies", pointer)?;
        }
        Ok(())
    }

    fn is_integer(&self, number: &Number) -> bool {
        let is_negative_zero = number.as_f64() == Some(0.0);
        number.is_i64()
            || number.is_u64()
            // In draft 4 the spelling of a number decides. serde reads `-0` as a float.
            || is_negative_zero
            || self.draft != Draft::Four && number.as_f64().is_some_and(|number| number.fract() == 0.0)
    }

    fn check_number(&self, map: &Map<String, Value>, number: &Number, pointer: &str) -> Result<(), Fault> {
        let is_exclusive = |keyword: &str| map.get(keyword).and_then(Value::as_bool) == Some(true);
        for (keyword, exclusive, outside) in [
            ("minimum", "exclusiveMinimum", Ordering::Less),
            ("maximum", "exclusiveMaximum", Ordering::Greater),
        ] {
            if let Some(bound) = map.get(keyword).and_then(Value::as_number) {
                let found = compare(number, bound);
                require(found != outside, keyword, pointer)?;
                require(found != Ordering::Equal || !is_exclusive(exclusive), exclusive, pointer)?;
            }
            if let Some(bound) = map.get(exclusive).and_then(Value::as_number) {
                require(compare(number, bound) == outside.reverse(), exclusive, pointer)?;
            }
        }
        match map.get("multipleOf").and_then(Value::as_number) {
            Some(step) => require(is_multiple(number, step), "multipleOf", pointer),
            None => Ok(()),
        }
    }

    fn check_text(&mut self, map: &'a Map<String, Value>, text: &str, pointer: &str) -> Result<(), Fault> {
        check_count(map, text.chars().count(), ["minLength", "maxLength"], pointer)?;
        if let Some(pattern) = map.get("pattern").and_then(Value::as_str) {
            require(self.is_match(pattern, text), "pattern", pointer)?;
        }
        match map.get("format").and_then(Value::as_str) {
            Some(format) => require(formats::is_valid(format, text), &format!("format {format}"), pointer),
            None => Ok(()),
        }
    }

    fn check_array(
        &mut self,
        map: &'a Map<String, Value>,
        items: &[Value],
        pointer: &str,
    ) -> Result<(), Fault> {
        check_count(map, items.len(), ["minItems", "maxItems"], pointer)?;
        let is_repeated =
            |(index, item): (usize, &Value)| items[..index].iter().any(|other| equal(item, other));
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            require(!items.iter().enumerate().any(is_repeated), "uniqueItems", pointer)?;
        }
        let (first, rest) = match (map.get("prefixItems"), map.get("items")) {
            (None, Some(Value::Array(first))) => (first.as_slice(), map.get("additionalItems")),
            (Some(Value::Array(first)), rest) => (first.as_slice(), rest),
            (_, rest) => (&[][..], rest),
        };
        for (index, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(index).or(rest).filter(|schema| !schema.is_null()) {
                self.check(schema, item, &format!("{pointer}/{index}"), 0)?;
            }
        }
        Ok(())
    }

    fn check_object(
        &mut self,
        map: &'a Map<String, Value>,
        entries: &Map<String, Value>,
        pointer: &str,
    ) -> Result<(), Fault> {
        check_count(map, entries.len(), ["minProperties", "maxProperties"], pointer)?;
        for name in map.get("required").and_then(Value::as_array).into_iter().flatten() {
            require(entries.contains_key(name.as_str().unwrap()), &format!("required {name}"), pointer)?;
        }
        let lists = ["dependencies", "dependentRequired"]
            .into_iter()
            .filter_map(|keyword| map.get(keyword)?.as_object());
        for (name, others) in lists.flatten().filter(|(_, others)| others.is_array()) {
            let mut others = others.as_array().unwrap().iter().map(|other| other.as_str().unwrap());
            let holds = !entries.contains_key(name) || others.all(|other| entries.contains_key(other));
            require(holds, "dependentRequired", pointer)?;
        }
        let properties = map.get("properties").and_then(Value::as_object);
        let patterns = map.get("patternProperties").and_then(Value::as_object);
        for (name, entry) in entries {
            let pointer = format!("{pointer}/{name}");
            if let Some(schema) = map.get("propertyNames") {
                self.check(schema, &Value::from(name.as_str()), &pointer, 0)?;
            }
            let mut is_named = false;
            if let Some(schema) = properties.and_then(|properties| properties.get(name)) {
                is_named = true;
                self.check(schema, entry, &pointer, 0)?;
            }
            for (pattern, schema) in patterns.into_iter().flatten() {
                if self.is_match(pattern, name) {
                    is_named = true;
                    self.check(schema, entry, &pointer, 0)?;
                }
            }
            if let (false, Some(schema)) = (is_named, map.get("additionalProperties")) {
                self.check(schema, entry, &pointer, 0)?;
            }
        }
        Ok(())
    }

    /// Returns true if a pattern matches anywhere in a text.
    fn is_match(&mut self, pattern: &'a str, text: &str) -> bool {
        let regex = self.patterns.entry(pattern).or_insert_with(|| {
            let regex = PikeVM::new(&ecma(pattern));
            regex.unwrap_or_else(|error| panic!("{pattern}: {error}"))
        });
        let mut cache = regex.create_cache();
        regex.is_match(&mut cache, text)
    }
}

fn require(holds: bool, keyword: &str, pointer: &str) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(format!("{keyword} does not hold at {pointer}")) }
}

fn check_count(
    map: &Map<String, Value>,
    count: usize,
    [least, most]: [&str; 2],
    pointer: &str,
) -> Result<(), Fault> {
    let bound = |keyword: &str| map.get(keyword).and_then(Value::as_f64);
    require(bound(least).is_none_or(|bound| count as f64 >= bound), least, pointer)?;
    require(bound(most).is_none_or(|bound| count as f64 <= bound), most, pointer)
}

/// Translates a pattern so that its classes are those of ECMA-262.
fn ecma(pattern: &str) -> String {
    let (mut read, mut chars, mut depth) = (String::new(), pattern.chars().peekable(), 0);
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some('d') => read.push_str("[0-9]"),
                Some('D') => read.push_str("[^0-9]"),
                Some('w') => read.push_str("[0-9A-Za-z_]"),
                Some('W') => read.push_str("[^0-9A-Za-z_]"),
                Some('s') => read.push_str(SPACE),
                Some('S') => read.push_str(&SPACE.replacen('[', "[^", 1)),
                // ECMA-262 has this escape, and the library does not.
                Some('/') => read.push('/'),
                Some('u') if chars.peek() != Some(&'{') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    read.push_str(&format!("\\x{{{digits}}}"));
                }
                Some(escaped) if escaped.is_ascii_alphanumeric() => read.extend(['\\', escaped]),
                Some(escaped) => read.push_str(&regex_syntax::escape(&escaped.to_string())),
                None => read.push('\\'),
            },
            // Inside a class, brackets, ampersands and tildes are literal characters.
            '[' if depth == 0 => {
                depth = 1;
                read.push('[');
                if chars.peek() == Some(&'^') {
                    read.extend(chars.next());
                }
            }
            ']' => {
                depth = 0;
                read.push(']');
            }
            '[' | '&' | '~' if depth == 1 => read.extend(['\\', char]),
            '-' if depth == 1 && read.ends_with(']') => read.push_str("\\-"),
            _ => read.push(char),
        }
    }
    read
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

/// Returns true if two values are equal, where `1` equals `1.0`.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b) == Ordering::Equal,
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

/// Compares numbers exactly, whether they are integers or floats.
fn compare(a: &Number, b: &Number) -> Ordering {
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(a), None) => compare_float(b.as_f64().unwrap(), a).reverse(),
        (None, Some(b)) => compare_float(a.as_f64().unwrap(), b),
        (None, None) => a.as_f64().unwrap().total_cmp(&b.as_f64().unwrap()),
    }
}

fn integer(number: &Number) -> Option<i128> {
    let float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e38);
    number.as_i128().or_else(|| float().map(|float| float as i128))
}

/// Compares a float that has a fraction, or is beyond all integers here, with an integer.
fn compare_float(float: f64, integer: i128) -> Ordering {
    if float.abs() >= 1e38 {
        return float.total_cmp(&0.0);
    }
    (float.floor() as i128).cmp(&integer).then(Ordering::Greater)
}

/// Returns true if `number` is a multiple of `step` in decimal arithmetic.
fn is_multiple(number: &Number, step: &Number) -> bool {
    let ((digits, exponent), (step_digits, step_exponent)) = (decimal(number), decimal(step));
    if step_exponent <= exponent {
        let power = |count: i32| (0..count).fold(1, |power: u128, _| power * 10 % step_digits);
        return digits % step_digits * power(exponent - step_exponent) % step_digits == 0;
    }
    let scaled = 10_u128.checked_pow((step_exponent - exponent) as u32);
    match scaled.and_then(|scale| step_digits.checked_mul(scale)) {
        Some(step_digits) => digits.is_multiple_of(step_digits),
        None => digits == 0,
    }
}

/// Splits the absolute value of a number into its shortest digits and a power of ten.
fn decimal(number: &Number) -> (u128, i32) {
    let text = number.to_string();
    let text = text.trim_start_matches('-');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let exponent: i32 = exponent.parse().unwrap();
    (format!("{whole}{fraction}").parse().unwrap(), exponent - fraction.len() as i32)
}

#[test]
fn the_validator_finds_faults() {
    use serde_json::json;

    let limits = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "exclusiveMaximum": 5},
        "b": {"type": "string", "pattern": r"^\d[\w-]$"}, "c": {"items": {"enum": [1, "x"]}, "maxItems": 1}},
        "required": ["a"], "additionalProperties": false});
    let tuple = json!({"prefixItems": [{"type": "null"}], "items": {"multipleOf": 0.01}});
    let either = json!({"oneOf": [{"type": "integer"}, {"minimum": 10}], "not": {"const": 3}});
    let tree =
        json!({"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}});
    let names = json!({"patternProperties": {"^n": {"type": "null"}}, "additionalProperties": {"type": "boolean"},
        "propertyNames": {"maxLength": 2}, "minProperties": 1, "dependentRequired": {"n": ["m"]}});
    let draft_4 = json!({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 2,
        "exclusiveMinimum": true});
    for (schema, value, expected) in [
        (&limits, json!({"a": 4, "b": "1-", "c": ["x"]}), None),
        (&limits, json!({"a": 1.0}), None),
        (&limits, json!({"a": 5}), Some("exclusiveMaximum does not hold at #/a")),
        (&limits, json!({"a": 0}), Some("minimum")),
        (&limits, json!({"a": 1.5}), Some("type does not hold at #/a")),
        (&limits, json!({"b": "11"}), Some("required")),
        (&limits, json!({"a": 1, "b": "٣-"}), Some("pattern")),
        (&limits, json!({"a": 1, "c": [1, 1]}), Some("maxItems")),
        (&limits, json!({"a": 1, "c": ["y"]}), Some("enum does not hold at #/c/0")),
        (&limits, json!({"a": 1, "d": 0}), Some("nothing is valid at #/d")),
        (&tuple, json!([null, 0.07, 3, 1e17]), None),
        (&tuple, json!([null, 0.075]), Some("multipleOf")),
        (&tuple, json!([0]), Some("type")),
        (&either, json!(4), None),
        (&either, json!(10.5), None),
        (&either, json!(12), Some("oneOf")),
        (&either, json!(3), Some("not")),
        (&tree, json!([[], [[]]]), None),
        (&tree, json!([[], [1]]), Some("type does not hold at #/1/0")),
        (&names, json!({"n": null, "m": true}), None),
        (&names, json!({}), Some("minProperties")),
        (&names, json!({"n": null}), Some("dependentRequired")),
        (&names, json!({"abc": true}), Some("maxLength")),
        (&names, json!({"a": null}), Some("type does not hold at #/a")),
        (&draft_4, json!(3), None),
        (&draft_4, json!(2), Some("exclusiveMinimum")),
        (&draft_4, json!(3.0), Some("type")),
    ] {
        let found = Validator::new(schema).validate(&value).err();
        let is_expected = match (&found, expected) {
            (Some(found), Some(expected)) => found.starts_with(expected),
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(is_expected, "{value} under {schema}: {found:?}, expected {expected:?}");
    }
    let number = |text: &str| serde_json::from_str::<Number>(text).unwrap();
    for (a, b, order) in [
        ("9007199254740993", "9007199254740992.0", Ordering::Greater),
        ("18446744073709551615", "1e300", Ordering::Less),
        ("-0.5", "-1", Ordering::Greater),
        ("-1.5", "-1", Ordering::Less),
        ("-0.0", "0", Ordering::Equal),
    ] {
        assert_eq!(compare(&number(a), &number(b)), order, "{a} {b}");
    }
}
