"""Schemas for structured output that together use every supported keyword and format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Keywords whose value is a schema, a list of schemas, or an object of named schemas. `items` can be a schema or a list.
ONE_SCHEMA = {"additionalItems", "additionalProperties", "else", "if", "items", "not", "propertyNames", "then"}
LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
MAPS = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}
NULL = {"type": "null"}
OURS: dict[str, Any] = {
    "nesting": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "address": {
                "type": "object",
                "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "city": {"enum": ["Bern", "Genf"]}},
                "required": ["zip", "city"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "address"],
        "additionalProperties": False,
    },
    "numbers": {
        "type": "array",
        "items": {"type": "number", "minimum": -5, "exclusiveMaximum": 7.5},
        "minItems": 2,
        "maxItems": 3,
    },
    "integers": {
        "type": "object",
        "properties": {"even": {"type": "integer", "multipleOf": 2, "minimum": 10, "maximum": 99}},
        "required": ["even"],
        "additionalProperties": False,
    },
    "alternatives": {
        "anyOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
            {"type": "null"},
        ]
    },
    "recursion": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "boolean"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 1},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["x", "é", 'a"b\\']}],
        "items": False,
        "minItems": 2,
    },
    "drafts before 2020-12": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [{"type": "null"}, {"enum": ["a", "b"]}],
        "additionalItems": {"type": "boolean"},
        "minItems": 3,
        "maxItems": 4,
    },
    "names": {
        "type": "object",
        "properties": {"kind": {"enum": ["x", "y"]}},
        "required": ["kind"],
        "patternProperties": {"^n_[a-z]{1,6}$": {"type": "integer", "minimum": 0, "maximum": 99}},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "members": {
        "type": "object",
        "additionalProperties": {"enum": [1, 2]},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "exclusive": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, "value": value},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for kind, value in [("small", {"type": "integer", "exclusiveMinimum": 3, "maximum": 9}), ("none", NULL)]
        ]
    },
    "merged": {
        "type": "array",
        "items": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 17}]},
        "minItems": 1,
        "maxItems": 3,
    },
    "conditions": {
        "type": "object",
        "properties": {"country": {"enum": ["CH", "US"]}, "zip": {"type": "string", "pattern": "^[0-9]{4,5}$"}},
        "required": ["country"],
        "additionalProperties": False,
        "if": {"properties": {"country": {"const": "US"}}},
        "then": {"required": ["zip"], "properties": {"zip": {"minLength": 5}}},
        "else": {"properties": {"zip": {"maxLength": 4}}},
    },
    "dependencies": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2, 3]}, "b": {"type": "null"}, "c": {"type": "boolean"}},
        "additionalProperties": False,
        "not": {"required": ["b"], "properties": {"c": {"const": True}}},
        "dependentRequired": {"a": ["c"]},
        "dependentSchemas": {"c": {"properties": {"a": {"not": {"const": 2}}}}},
    },
    "dependencies before 2019-09": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
        "propertyNames": {"enum": ["a", "b", "c"]},
        "dependencies": {"a": ["b"], "b": {"required": ["c"]}},
    },
    "lengths": {"type": "string", "minLength": 4, "maxLength": 9},
    **{
        " and ".join(formats): {
            "type": "object",
            "properties": {name: {"type": "string", "format": name} for name in formats},
            "required": list(formats),
            "additionalProperties": False,
        }
        for formats in [("date", "uuid"), ("date-time", "ipv4"), ("duration", "time"), ("email",), ("hostname",)]
    },
    # The format puts no end to what follows the scheme of a URI, so it needs a maximum length.
    "uri": {"type": "string", "format": "uri", "maxLength": 40},
    "ipv6": {"type": "string", "format": "ipv6"},
}


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields the schema and all its subschemas that are objects, but not values such as those of `enum`."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        inner: list[Any] = []
        if keyword in MAPS:
            inner = list(value.values())
        elif keyword in LISTS and isinstance(value, list):
            inner = value
        elif keyword in ONE_SCHEMA:
            inner = [value]
        for each in inner:
            yield from subschemas(each)
