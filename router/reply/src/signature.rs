//! The part of a tool's description that a reply is read with.

use serde_json::{Map, Value};

/// The most references and alternatives inside each other in a parameter's schema. Deeper ones allow any type.
const MAX_DEPTH: usize = 8;

/// A tool that replies may call: its name, and the JSON types of its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    name: String,
    parameters: Vec<(String, Types)>,
}

impl Signature {
    /// Reads the types from the JSON schema of the arguments. A parameter without a type may have any.
    pub fn new(name: &str, schema: &Value) -> Self {
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let parameters = properties.map(|(key, value)| (key.clone(), Types::of_schema(value, schema, 0)));
        Self { name: name.to_owned(), parameters: parameters.collect() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn types(&self, parameter: &str) -> Types {
        self.parameters.iter().find(|(key, _)| key == parameter).map_or(Types::ANY, |(_, types)| *types)
    }
}

/// Returns true if a tool has this name.
pub(crate) fn is_known(tools: &[Signature], name: &str) -> bool {
    tools.iter().any(|tool| tool.name == name)
}

/// Returns true if a tool has a name that begins so.
pub(crate) fn may_be_known(tools: &[Signature], start: &str) -> bool {
    tools.iter().any(|tool| tool.name.starts_with(start))
}

/// A set of JSON types, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types(u8);

impl Types {
    pub(crate) const ANY: Self = Self(u8::MAX);
    pub(crate) const STRING: Self = Self(1);
    const NULL: Self = Self(2);
    const BOOL: Self = Self(4);
    const NUMBER: Self = Self(8);
    const LIST: Self = Self(16);
    const OBJECT: Self = Self(32);

    pub(crate) fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::STRING,
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOL,
            Value::Number(_) => Self::NUMBER,
            Value::Array(_) => Self::LIST,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// Returns true if no type is a list or an object.
    pub(crate) fn is_scalar(self) -> bool {
        self.0 & (Self::LIST.0 | Self::OBJECT.0) == 0
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "null" => Self::NULL,
            "boolean" => Self::BOOL,
            "integer" | "number" => Self::NUMBER,
            "array" => Self::LIST,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    fn any_of(types: impl Iterator<Item = Self>) -> Self {
        Self(types.fold(0, |bits, types| bits | types.0))
    }

    /// Returns the types that a schema allows. `root` is the schema that its references are relative to.
    pub(crate) fn of_schema(schema: &Value, root: &Value, depth: usize) -> Self {
        let Some(schema) = schema.as_object().filter(|_| depth < MAX_DEPTH) else { return Self::ANY };
        let limits = [
            schema.get("type").map(Self::of_type),
            schema.get("const").map(Self::of),
            schema
                .get("enum")
                .and_then(Value::as_array)
                .map(|values| Self::any_of(values.iter().map(Self::of))),
            Self::of_reference(schema, root, depth),
            Self::of_alternatives(schema, "anyOf", root, depth),
            Self::of_alternatives(schema, "oneOf", root, depth),
        ];
        Self(limits.into_iter().flatten().fold(Self::ANY.0, |bits, types| bits & types.0))
    }

    fn of_type(value: &Value) -> Self {
        match value {
            Value::String(name) => Self::named(name),
            Value::Array(names) => Self::any_of(names.iter().filter_map(Value::as_str).map(Self::named)),
            _ => Self::ANY,
        }
    }

    fn of_reference(schema: &Map<String, Value>, root: &Value, depth: usize) -> Option<Self> {
        let target =
            schema.get("$ref")?.as_str()?.strip_prefix('#').and_then(|pointer| root.pointer(pointer))?;
        Some(Self::of_schema(target, root, depth + 1))
    }

    fn of_alternatives(schema: &Map<String, Value>, key: &str, root: &Value, depth: usize) -> Option<Self> {
        let schemas = schema.get(key)?.as_array()?;
        Some(Self::any_of(schemas.iter().map(|schema| Self::of_schema(schema, root, depth + 1))))
    }
}
