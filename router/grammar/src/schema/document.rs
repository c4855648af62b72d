//! The schema as a client wrote it, for rules that compare or negate parts of it.
//!
//! The checks rewrite a schema into one that matches less. What a schema excludes must therefore be read here.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use serde_json::{Map, Number, Value};

use crate::regex::matcher::Matcher;
use crate::schema::keywords::{CONDITIONAL_KEYWORDS, KEYWORDS, REFUSED_KEYWORDS};
use crate::schema::unsupported::pointer;

/// Most schemas that one value must match at once, found through references and `allOf`.
const MAX_CONJUNCTS: usize = 32;
/// Work on one document: schemas that are compared, negated or matched with a value.
const MAX_WORK: usize = 50_000;
/// Comparisons of values that take as long as the other pieces of work.
const VALUES_PER_WORK: usize = 16;
/// Most patterns of a document that are compared with texts.
const MAX_MATCHERS: usize = 64;

#[derive(Debug)]
pub(crate) struct Document {
    root: Value,
    /// True if it is of a draft in which keywords beside a `$ref` have no effect.
    ignores_siblings: bool,
    references: Vec<String>,
    work_left: Cell<usize>,
    /// The patterns that were compared with a text.
    matchers: RefCell<HashMap<String, Option<Matcher>>>,
}

impl Document {
    pub(crate) fn new(root: &Value) -> Self {
        let draft = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let ignores_siblings = ["draft-04", "draft-06", "draft-07"].iter().any(|name| draft.contains(name));
        let mut references = Vec::new();
        find_references(root, &mut references);
        let (root, matchers) = (root.clone(), RefCell::default());
        Self { root, ignores_siblings, references, work_left: Cell::new(MAX_WORK), matchers }
    }

    /// Returns true if a reference leads below a keyword of the schema at a path.
    pub(crate) fn has_reference_into(&self, path: &[String], keyword: &str) -> bool {
        let below = format!("{}/{keyword}/", pointer(path));
        self.references.iter().any(|reference| reference.starts_with(&below))
    }

    /// Returns the schema at a path, as the client wrote it.
    pub(crate) fn at(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.root, |value, step| match value {
            Value::Array(list) => list.get(step.parse::<usize>().ok()?),
            other => other.get(step),
        })
    }

    /// Returns the target of a reference within the document.
    pub(crate) fn target(&self, reference: &str) -> Option<&Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    pub(crate) fn ignores_siblings(&self) -> bool {
        self.ignores_siblings
    }

    /// Counts a piece of work. Returns false if too much was done.
    pub(crate) fn may_work(&self) -> bool {
        self.may_compare(1)
    }

    /// Counts comparisons with so many values. Returns false if too much was done.
    fn may_compare(&self, num_values: usize) -> bool {
        let left = self.work_left.get();
        self.work_left.set(left.saturating_sub(num_values.div_ceil(VALUES_PER_WORK)));
        left > 0
    }

    /// Returns schemas all of which a value must match: these, the targets of their references and the parts of their
    /// `allOf`. A part that is not found is left out.
    pub(crate) fn conjuncts<'a>(&'a self, schemas: &[&'a Value]) -> Vec<&'a Value> {
        let mut found: Vec<&Value> = schemas.to_vec();
        let mut next = 0;
        while next < found.len() && found.len() <= MAX_CONJUNCTS {
            let schema = found[next];
            let target = schema.get("$ref").and_then(Value::as_str).map(|reference| self.target(reference));
            if target.is_some() && self.ignores_siblings {
                found.remove(next);
            } else {
                found.extend(schema.get("allOf").and_then(Value::as_array).into_iter().flatten());
                next += 1;
            }
            if let Some(target) = target.flatten()
                && !found.iter().any(|other| std::ptr::eq(*other, target))
            {
                found.push(target);
            }
        }
        found
    }

    /// Returns whether a schema allows a value, or `None` if it has a rule that is not understood here.
    pub(crate) fn allows(&self, schema: &Value, value: &Value) -> Option<bool> {
        if !self.may_work() {
            return None;
        }
        let parts = self.conjuncts(&[schema]);
        let mut is_sure = parts.len() <= MAX_CONJUNCTS;
        for part in parts {
            let Value::Object(map) = part else {
                if *part == Value::Bool(false) {
                    return Some(false);
                }
                continue;
            };
            for (keyword, rule) in map {
                match keyword.as_str() {
                    "type" if kinds_of_type(rule) & kind(value) == 0 => return Some(false),
                    "const" if !is_equal(rule, value) => return Some(false),
                    "enum" => {
                        let listed = rule.as_array().filter(|listed| self.may_compare(listed.len()))?;
                        if !listed.iter().any(|other| is_equal(other, value)) {
                            return Some(false);
                        }
                    }
                    "pattern" => match value.as_str().map(|text| self.is_match(rule, text)) {
                        Some(Some(false)) => return Some(false),
                        Some(None) => is_sure = false,
                        Some(Some(true)) | None => {}
                    },
                    "type" => is_sure &= kinds_of_type(rule) & kind(value) == kind(value),
                    "const" | "allOf" | "$ref" => {}
                    _ => is_sure &= !has_effect(keyword),
                }
            }
        }
        is_sure.then_some(true)
    }

    /// Returns whether a pattern matches a text, or `None` if dialects may disagree or the pattern is too large.
    fn is_match(&self, pattern: &Value, text: &str) -> Option<bool> {
        let pattern = pattern.as_str().filter(|_| text.is_ascii() && self.may_work())?;
        let mut matchers = self.matchers.borrow_mut();
        if !matchers.contains_key(pattern) && matchers.len() < MAX_MATCHERS {
            matchers.insert(pattern.to_owned(), Matcher::new(pattern));
        }
        Some(matchers.get(pattern)?.as_ref()?.is_match(text))
    }
}

/// Collects the references anywhere in a value. The depth of a schema is limited.
fn find_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|inner| find_references(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| find_references(inner, found)),
        _ => {}
    }
}

/// Returns true if a keyword may affect validity. Unknown keywords do not.
pub(crate) fn has_effect(keyword: &str) -> bool {
    [&KEYWORDS[..], &CONDITIONAL_KEYWORDS, &REFUSED_KEYWORDS].iter().any(|known| known.contains(&keyword))
}

/// Returns the values of `const` or `enum`.
pub(crate) fn listed(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

pub(crate) const NULL: u8 = 1;
pub(crate) const BOOLEAN: u8 = 2;
pub(crate) const INTEGER: u8 = 4;
pub(crate) const FRACTION: u8 = 8;
pub(crate) const STRING: u8 = 16;
pub(crate) const ARRAY: u8 = 32;
pub(crate) const OBJECT: u8 = 64;
pub(crate) const ALL_KINDS: u8 = 127;

/// Kinds with the name that means exactly them.
const NAMES: [(u8, &str); 6] = [
    (NULL, "null"),
    (BOOLEAN, "boolean"),
    (INTEGER | FRACTION, "number"),
    (STRING, "string"),
    (ARRAY, "array"),
    (OBJECT, "object"),
];

/// Returns the kind of a value. A number that is written with a fraction of zero has two, because drafts disagree.
pub(crate) fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => NULL,
        Value::Bool(_) => BOOLEAN,
        Value::Number(number) if !number.is_f64() => INTEGER,
        Value::Number(number) if number.as_f64().is_some_and(|number| number.fract() == 0.0) => {
            INTEGER | FRACTION
        }
        Value::Number(_) => FRACTION,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::Object(_) => OBJECT,
    }
}

/// Returns the kinds that a value of the keyword `type` names.
pub(crate) fn kinds_of_type(names: &Value) -> u8 {
    let of_name = |name: &Value| match name.as_str() {
        Some("integer") => INTEGER,
        Some(name) => NAMES.iter().find(|(_, other)| *other == name).map_or(0, |(kinds, _)| *kinds),
        None => 0,
    };
    match names {
        Value::Array(names) => names.iter().map(of_name).fold(0, |all, kinds| all | kinds),
        name => of_name(name),
    }
}

/// Returns a schema of the values of some kinds. Numbers are left out unless all of them are meant.
pub(crate) fn of_kinds(kinds: u8) -> Option<Value> {
    let named = NAMES.iter().filter(|(named, _)| kinds & named == *named);
    let names: Vec<Value> = named.map(|(_, name)| Value::from(*name)).collect();
    (!names.is_empty()).then(|| Value::Object(Map::from_iter([("type".to_owned(), Value::Array(names))])))
}

/// Returns true if two values are equal, where `1` equals `1.0`.
pub(crate) fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => is_equal_number(a, b),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_equal(a, b)))
        }
        _ => a == b,
    }
}

/// Compares as doubles, so that different numbers may count as equal, but not the reverse.
fn is_equal_number(a: &Number, b: &Number) -> bool {
    a == b || a.as_f64().is_some() && a.as_f64() == b.as_f64()
}
