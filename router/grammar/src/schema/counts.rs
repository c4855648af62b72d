//! Counts the properties of an object where the parser cannot, by alternatives with one number of properties each.

use serde_json::{Map, Value, json};

use crate::schema::negation::MAX_ALTERNATIVES;
use crate::schema::normalize::allows_type;
use crate::schema::overlap::{is_closed, required};
use crate::schema::unsupported::UnsupportedKeyword;

/// Returns alternatives that together have the numbers of properties that `minProperties` and `maxProperties` ask for,
/// and removes these keywords. Returns `None` if the parser can count.
pub(crate) fn rewrite(schema: &mut Map<String, Value>) -> Result<Option<Value>, UnsupportedKeyword> {
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_u64).map(|bound| bound as usize);
    let (least, most) = (bound("minProperties").unwrap_or(0), bound("maxProperties"));
    if !allows_type(schema, "object") || least == 0 && most.is_none() {
        return Ok(None);
    }
    let object = Value::Object(schema.clone());
    let names: Vec<&str> = required(&object).collect();
    let listed = schema.get("properties").and_then(Value::as_object);
    let optional: Vec<&str> = listed
        .into_iter()
        .flatten()
        .filter(|(name, rule)| **rule != false && !names.contains(&name.as_str()))
        .map(|(name, _)| name.as_str())
        .collect();
    // The parser would count a name twice that an output wrote twice. Only the names that a schema lists differ.
    let (least_left, most_left) =
        (least.saturating_sub(names.len()), most.map(|most| most.saturating_sub(names.len())));
    let is_closed = is_closed(&object);
    if least_left == 0 && most.is_none() || optional.is_empty() && (least_left <= 1 || is_closed) {
        return Ok(None);
    }
    let counts =
        Counts { optional, is_closed, least: least_left, most: most_left, num_required: names.len() };
    let Some(mut alternatives) = counts.alternatives() else {
        let keyword = if least_left > 0 { "minProperties" } else { "maxProperties" };
        let reason = format!(
            " where {} of `properties` are not required; hint: require more of them",
            counts.optional.len()
        );
        return Err(UnsupportedKeyword::new(keyword, reason));
    };
    if !matches!(schema.get("type"), Some(Value::String(_))) {
        alternatives.push(json!({"type": ["null", "boolean", "number", "string", "array"]}));
    }
    for keyword in ["minProperties", "maxProperties"] {
        schema.shift_remove(keyword);
    }
    Ok(Some(json!({"anyOf": alternatives})))
}

/// The properties beside those that are required.
struct Counts<'a> {
    optional: Vec<&'a str>,
    /// True if no other names may follow.
    is_closed: bool,
    least: usize,
    most: Option<usize>,
    num_required: usize,
}

impl Counts<'_> {
    /// Returns `None` if there are too many alternatives, or none.
    fn alternatives(&self) -> Option<Vec<Value>> {
        let num_optional = self.optional.len();
        let mut found = Vec::new();
        match self.most {
            // At least so many of those listed, or one less and another name.
            None => {
                self.add(self.least, &mut found, |names, _| json!({"type": "object", "required": names}))?;
                if !self.is_closed {
                    self.add(self.least - 1, &mut found, |names, others| {
                        self.exactly(names, others, 1, None)
                    })?;
                }
            }
            // The others are absent.
            Some(most) if self.is_closed && self.least == 0 => {
                let absent =
                    |_: &[&str], others: &[&str]| json!({"type": "object", "properties": nothing(others)});
                self.add(most.min(num_optional), &mut found, absent)?;
            }
            Some(most) => {
                for count in 0..=most.min(num_optional) {
                    let num_more = self.least.saturating_sub(count);
                    if num_more == 0 || num_more == 1 && !self.is_closed {
                        let least = usize::from(num_more == 1);
                        self.add(count, &mut found, |names, others| {
                            self.exactly(names, others, least, Some(most - count))
                        })?;
                    }
                }
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// Returns the objects with these names and not the others, and with so many names that are not listed.
    fn exactly(&self, names: &[&str], others: &[&str], least: usize, most: Option<usize>) -> Value {
        let num_listed = self.num_required + names.len();
        let mut object = json!({"type": "object", "required": names, "properties": nothing(others)});
        if least > 0 {
            object["minProperties"] = json!(num_listed + least);
        }
        if let Some(most) = most {
            object["maxProperties"] = json!(num_listed + most);
        }
        object
    }

    /// Adds an alternative for each choice of `count` names.
    fn add(
        &self,
        count: usize,
        found: &mut Vec<Value>,
        alternative: impl Fn(&[&str], &[&str]) -> Value,
    ) -> Option<()> {
        let num_names = self.optional.len();
        if count > num_names {
            return Some(());
        }
        let mut chosen: Vec<usize> = (0..count).collect();
        loop {
            if found.len() == MAX_ALTERNATIVES {
                return None;
            }
            let is_chosen = |idx: &usize| chosen.contains(idx);
            let (names, others): (Vec<usize>, Vec<usize>) = (0..num_names).partition(is_chosen);
            let named =
                |indices: Vec<usize>| indices.into_iter().map(|idx| self.optional[idx]).collect::<Vec<_>>();
            found.push(alternative(&named(names), &named(others)));
            // The next choice in lexicographic order moves the last index that can still move.
            let Some(moved) = (0..count).rev().find(|&idx| chosen[idx] < num_names - count + idx) else {
                return Some(());
            };
            chosen[moved] += 1;
            for idx in moved + 1..count {
                chosen[idx] = chosen[idx - 1] + 1;
            }
        }
    }
}

/// Returns properties that must be absent.
fn nothing(names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), Value::Bool(false))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(mut schema: Value) -> Result<Option<Value>, UnsupportedKeyword> {
        rewrite(schema.as_object_mut().expect("an object"))
    }

    #[test]
    fn schemas_that_the_parser_counts_are_unchanged() {
        for schema in [
            json!({"type": "object", "minProperties": 0}),
            json!({"type": "array", "minProperties": 3}),
            json!({"type": "object", "minProperties": 1, "maxProperties": 4}),
            json!({"type": "object", "required": ["a", "b"], "minProperties": 3}),
            json!({"properties": {"a": {}}, "required": ["a"], "maxProperties": 3}),
        ] {
            assert_eq!(rewritten(schema.clone()), Ok(None), "{schema}");
        }
    }

    #[test]
    fn choices_of_listed_names_are_counted() {
        let closed = |least: u64, most: u64| json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false, "minProperties": least, "maxProperties": most});
        let alternatives =
            |schema: Value| rewritten(schema).unwrap().unwrap()["anyOf"].as_array().unwrap().clone();
        assert_eq!(
            alternatives(closed(0, 2)),
            [
                json!({"type": "object", "properties": {"c": false}}),
                json!({"type": "object", "properties": {"b": false}}),
                json!({"type": "object", "properties": {"a": false}}),
            ]
        );
        assert_eq!(alternatives(closed(2, 3)).len(), 4);
        let open = json!({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2});
        assert_eq!(
            alternatives(open),
            [
                json!({"type": "object", "required": ["a", "b"]}),
                json!({"type": "object", "required": ["a"], "properties": {"b": false}, "minProperties": 2}),
                json!({"type": "object", "required": ["b"], "properties": {"a": false}, "minProperties": 2}),
            ]
        );
    }

    #[test]
    fn names_that_may_repeat_or_are_too_many_are_not_counted() {
        let properties: Map<String, Value> = (0..20).map(|idx| (format!("p{idx}"), json!({}))).collect();
        for schema in [
            json!({"type": "object", "minProperties": 3}),
            json!({"type": "object", "properties": properties, "minProperties": 10}),
        ] {
            assert!(rewritten(schema.clone()).is_err(), "{schema}");
        }
    }
}
