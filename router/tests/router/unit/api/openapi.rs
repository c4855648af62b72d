use std::collections::HashSet;

use serde_json::Value;
use trunkline_router::api::openapi::ApiDoc;
use trunkline_router::tenants;
use utoipa::OpenApi as _;

fn document() -> Value {
    serde_json::to_value(ApiDoc::openapi()).unwrap()
}

/// Collects every `$ref` below `value`.
fn references<'a>(value: &'a Value, found: &mut HashSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_referenced_schema_is_defined() {
    let document = document();
    let mut found = HashSet::new();
    references(&document, &mut found);
    assert!(found.len() > 20);
    let chat = &document["components"]["schemas"]["ChatCompletionRequest"]["properties"];
    assert_eq!(chat["top_logprobs"]["maximum"], 20);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} is not there");
    }
}

#[test]
fn exactly_the_routes_that_need_a_key_document_401() {
    for (path, item) in document()["paths"].as_object().unwrap() {
        for operation in item.as_object().unwrap().values() {
            let told = operation["responses"].get("401").is_some();
            assert_eq!(told, !tenants::PUBLIC.contains(&path.as_str()), "{path}");
        }
    }
}

#[test]
fn streams_are_documented() {
    let document = document();
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/",
        "/invocations",
    ] {
        let content = &document["paths"][path]["post"]["responses"]["200"]["content"];
        assert!(content.get("text/event-stream").is_some(), "{path}");
        assert!(content.get("application/json").is_some(), "{path}");
    }
}
