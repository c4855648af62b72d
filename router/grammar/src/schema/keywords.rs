//! The keywords of JSON schema by their treatment.

/// Keywords that every output obeys.
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

/// Keywords that are obeyed where alternatives of other keywords can express them.
pub const CONDITIONAL_KEYWORDS: [&str; 8] =
    ["dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not", "propertyNames", "then"];

/// Keywords that affect validity and are refused by name.
pub const REFUSED_KEYWORDS: [&str; 11] = [
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
    "uniqueItems",
];

/// Keywords that do not affect validity. Unknown keywords are ignored too, as the drafts require.
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

/// Values of `format` that every output obeys. Others that the drafts define are refused by name, and the rest has no
/// effect.
pub const FORMATS: [&str; 10] =
    ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];
