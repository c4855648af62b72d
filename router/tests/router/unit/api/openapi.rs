use std::collections::HashSet;

use serde_json::Value;
use trunkline_api::dialect::Dialect;
use trunkline_api::openapi::ApiDoc;
use trunkline_api::route::{Events, ModelField, ROUTES, Route};
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

/// Returns the documented rows of the table with their operations in the document.
fn rows(document: &Value) -> impl Iterator<Item = (&'static Route, &Value)> {
    ROUTES.iter().filter(|route| route.is_documented()).map(|route| {
        let method = route.method.as_str().to_lowercase();
        (route, &document["paths"][route.shown_path()][method])
    })
}

#[test]
fn the_document_has_the_operations_of_the_table() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let num_operations: usize = paths.values().map(|item| item.as_object().unwrap().len()).sum();
    assert_eq!(rows(&document).filter(|(_, operation)| operation.is_object()).count(), num_operations);
    assert_eq!(rows(&document).count(), num_operations);
}

#[test]
fn exactly_the_routes_that_need_a_key_document_401() {
    for (route, operation) in rows(&document()) {
        assert_eq!(operation["responses"].get("401").is_some(), route.needs_key(), "{}", route.path);
    }
}

#[test]
fn exactly_the_routes_whose_body_may_name_a_model_have_the_field() {
    let document = document();
    for (route, operation) in rows(&document) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) else { continue };
        let has_field = document["components"]["schemas"][name]["properties"].get("model").is_some();
        // The bodies of platforms contain one of several requests.
        if !["/invocations", "/vertex"].contains(&route.path) {
            assert_eq!(route.model == ModelField::Named, has_field, "{}", route.path);
        }
    }
}

#[test]
fn streams_are_documented() {
    let document = document();
    let mut streams = rows(&document).filter(|(route, _)| route.events() != Events::Never).peekable();
    assert!(streams.peek().is_some());
    for (route, operation) in streams {
        let content = &operation["responses"]["200"]["content"];
        let is_ollamas = route.dialect == Dialect::Ollama;
        let form = if is_ollamas { "application/x-ndjson" } else { "text/event-stream" };
        assert!(content.get(form).is_some(), "{}", route.path);
        assert!(content.get("application/json").is_some(), "{}", route.path);
    }
}
