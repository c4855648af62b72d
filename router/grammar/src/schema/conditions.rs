//! Expresses conditions and exclusive alternatives through alternatives that the parser supports.
//!
//! Each rule becomes a part of `allOf`. The parser combines these parts with the rest of the schema, which multiplies
//! the alternatives of several rules.

use serde_json::{Map, Value, json};

use crate::schema::document::{Document, OBJECT};
use crate::schema::negation::{MAX_ALTERNATIVES, Rules, any_of};
use crate::schema::property_names::CopyBudget;
use crate::schema::unsupported::UnsupportedKeyword;

/// The rules of one schema that are about to be rewritten.
pub(crate) struct Conditions<'a> {
    pub(crate) document: &'a Document,
    pub(crate) path: &'a [String],
    pub(crate) copies: &'a mut CopyBudget,
    /// The number of alternatives that the rules rewritten so far make together.
    pub(crate) num_alternatives: usize,
}

impl Conditions<'_> {
    /// Rewrites one of the keywords `not`, `dependencies`, `dependentRequired`, `dependentSchemas`, `if` and `oneOf`,
    /// whose parts are checked already.
    pub(crate) fn rewrite(
        &mut self,
        schema: &mut Map<String, Value>,
        keyword: &str,
    ) -> Result<(), UnsupportedKeyword> {
        let refuse = |reason: &str| Err(UnsupportedKeyword::new(keyword, reason));
        let Some((original, rule)) =
            self.document.at(self.path).and_then(|original| Some((original, original.get(keyword)?)))
        else {
            // Another rewriting moved the schema. The parser may be able to tell alternatives apart.
            return if keyword == "oneOf" { Ok(()) } else { refuse("") };
        };
        if self.document.has_reference_into(self.path, keyword) {
            return refuse(" if a `$ref` leads into it");
        }
        let (parts, reason) = match keyword {
            "not" => (self.negation(original, rule), " with rules that cannot be negated"),
            "if" => (self.condition(schema, original, rule), " with a condition that cannot be negated"),
            "oneOf" => (
                self.exclusive(schema, original, rule),
                " where its alternatives may overlap; hint: use `anyOf`",
            ),
            _ => (self.dependencies(schema, keyword), ""),
        };
        let Some(parts) = parts else { return refuse(reason) };
        let num_bytes = parts.iter().map(|part| part.to_string().len()).sum();
        let num_alternatives = parts.iter().fold(self.num_alternatives, |product, part| {
            product.saturating_mul(part["anyOf"].as_array().map_or(1, Vec::len))
        });
        let bytes_left = self.copies.bytes_left.checked_sub(num_bytes);
        // A client's own alternatives have other limits.
        let is_own = keyword == "oneOf";
        let Some(bytes_left) = bytes_left.filter(|_| is_own || num_alternatives <= MAX_ALTERNATIVES) else {
            return refuse(" with this many alternatives");
        };
        self.copies.bytes_left = bytes_left;
        self.num_alternatives = if is_own { self.num_alternatives } else { num_alternatives.max(1) };
        match keyword {
            "if" => ["if", "then", "else"].iter().for_each(|keyword| drop(schema.shift_remove(*keyword))),
            keyword => drop(schema.shift_remove(keyword)),
        }
        parts.into_iter().for_each(|part| also(schema, part));
        Ok(())
    }

    fn negation(&self, original: &Value, rule: &Value) -> Option<Vec<Value>> {
        Some(vec![any_of(self.document.negated(rule, &[&without(original, "not")], Rules::All)?)])
    }

    fn condition(&self, schema: &Map<String, Value>, original: &Value, rule: &Value) -> Option<Vec<Value>> {
        let (then, otherwise) = (schema.get("then"), schema.get("else"));
        if then.is_none() && otherwise.is_none() {
            return Some(Vec::new());
        }
        let others = self.document.negated(rule, &[&without(original, "if")], Rules::All)?;
        let both = |condition: &Value, branch: Option<&Value>| match branch {
            Some(branch) => json!({"allOf": [condition, branch]}),
            None => condition.clone(),
        };
        let first = both(schema.get("if")?, then);
        let others = others.iter().map(|other| both(other, otherwise));
        Some(vec![any_of([first].into_iter().chain(others).collect())])
    }

    /// Returns `anyOf` in place of `oneOf`, each alternative without the values that another one allows too.
    fn exclusive(&self, schema: &Map<String, Value>, original: &Value, rule: &Value) -> Option<Vec<Value>> {
        let (originals, checked) = (rule.as_array()?, schema.get("oneOf")?.as_array()?);
        let beside = without(original, "oneOf");
        let mut alternatives = Vec::new();
        let mut num_alternatives = 0;
        for (idx, (own, checked)) in originals.iter().zip(checked).enumerate() {
            let mut parts = vec![checked.clone()];
            let mut product = 1;
            for (_, other) in originals.iter().enumerate().filter(|(other, _)| *other != idx) {
                if !self.document.are_disjoint(&[own, &beside], &[other]) {
                    let others = self.document.negated(other, &[own, &beside], Rules::Some)?;
                    product *= others.len().max(1);
                    parts.push(any_of(others));
                }
            }
            num_alternatives += product;
            if num_alternatives > MAX_ALTERNATIVES.max(originals.len()) {
                return None;
            }
            alternatives.push(if parts.len() == 1 { parts.swap_remove(0) } else { json!({"allOf": parts}) });
        }
        Some(vec![json!({"anyOf": alternatives})])
    }

    /// Returns for each property that asks for others: it is absent, or they are present.
    fn dependencies(&self, schema: &Map<String, Value>, keyword: &str) -> Option<Vec<Value>> {
        let is_object =
            self.document.kinds(&self.document.conjuncts(&[self.document.at(self.path)?]), 0) == OBJECT;
        let required: Vec<&Value> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().collect();
        let part = |(name, rule): (&String, &Value)| {
            let needed = match rule {
                Value::Array(names) => {
                    let names = [&[Value::from(name.as_str())], names.as_slice()].concat();
                    json!({"type": "object", "required": names})
                }
                // Draft 3 has a name in place of a list.
                Value::String(other) => json!({"type": "object", "required": [name, other]}),
                rule => json!({"type": "object", "required": [name], "allOf": [rule]}),
            };
            let mut absent = json!({"properties": {name: false}});
            if is_object {
                absent["type"] = json!("object");
            }
            let is_required = is_object && required.iter().any(|other| other.as_str() == Some(name));
            if is_required { needed } else { json!({"anyOf": [absent, needed]}) }
        };
        Some(schema.get(keyword)?.as_object()?.iter().map(part).collect())
    }
}

/// Adds a schema that values must match too.
pub(crate) fn also(schema: &mut Map<String, Value>, part: Value) {
    if let (None, Value::Object(part)) = (schema.get("anyOf"), &part)
        && part.len() == 1
        && part.contains_key("anyOf")
    {
        schema.extend(part.clone());
        return;
    }
    match schema.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(part),
        _ => {
            schema.insert("allOf".to_owned(), Value::Array(vec![part]));
        }
    }
}

/// Returns the schema without a keyword.
fn without(schema: &Value, keyword: &str) -> Value {
    let mut schema = schema.clone();
    schema.as_object_mut().map(|map| map.shift_remove(keyword));
    schema
}
