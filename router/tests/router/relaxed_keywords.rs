//! Keywords that no grammar holds are left out and named, or refuse a strict schema.

use serde_json::{Value, json};

use crate::support::{Router, user};

const HEADER: &str = "x-relaxed-keywords";

fn schema() -> Value {
    json!({"type": "object", "properties": {"a": {"type": "array", "items": {"const": 1}, "uniqueItems": true}},
        "required": ["a"], "additionalProperties": false})
}

/// Returns the bodies of requests with the schema, by route.
fn requests(strict: Option<bool>) -> Vec<(&'static str, Value)> {
    let named = |mut value: Value| {
        if let Some(strict) = strict {
            value["strict"] = strict.into();
        }
        value
    };
    let chat = |fields: Value| {
        let mut body = json!({"messages": user("a"), "max_tokens": 4});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let function = named(json!({"name": "f", "parameters": schema()}));
    let tool = named(json!({"name": "f", "input_schema": schema()}));
    vec![
        (
            "/v1/chat/completions",
            chat(
                json!({"response_format": {"type": "json_schema", "json_schema": named(json!({"name": "x", "schema": schema()}))}}),
            ),
        ),
        (
            "/v1/chat/completions",
            chat(json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"})),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 16,
                "text": {"format": named(json!({"type": "json_schema", "name": "x", "schema": schema()}))}}),
        ),
        ("/v1/messages", chat(json!({"tools": [tool], "tool_choice": {"type": "any"}}))),
    ]
}

#[tokio::test]
async fn the_answer_names_keywords_that_were_left_out() {
    let router = Router::saying("no json at all").await;
    let generate = json!({"inputs": "a", "parameters": {"max_new_tokens": 4, "grammar": {"type": "json", "value": schema()}}});
    let others = [("/generate", generate)];
    for (route, mut body) in requests(None).into_iter().chain(requests(Some(false))).chain(others) {
        let answer = router.post(route, &body).await;
        assert_eq!((answer.status, answer.header(HEADER)), (200, Some("uniqueItems")), "{route}");
        if route != "/generate" {
            body["stream"] = true.into();
            assert_eq!(router.post(route, &body).await.header(HEADER), Some("uniqueItems"), "{route}");
        }
    }
    let free = json!({"messages": user("a"), "max_tokens": 4});
    assert_eq!(router.post("/v1/chat/completions", &free).await.header(HEADER), None);
}
