//! Every numeric field of every dialect at the edges of its type. No value may reach the shard that the contract
//! excludes.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan};
use trunkline_router::limits::Limits;

/// Numbers as JSON text, because JSON has numbers that no type here has.
const EDGES: [&str; 19] = [
    "0",
    "-0.0",
    "1",
    "-1",
    "1e-40",
    "1e-46",
    "1e-320",
    "1.1754942e-38",
    "0.9999999999",
    "1.0000001",
    "20.5",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e308",
    "1e309",
];

/// Returns the least body of each route that generates, and the object in it that has the sampling fields.
fn routes() -> [(&'static str, Value, &'static str); 6] {
    let messages = json!([{"role": "user", "content": "x"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2}), ""),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 2}), ""),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 2, "store": false}), ""),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2}), ""),
        ("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 2}}), "parameters"),
        ("/generate_stream", json!({"inputs": "x", "parameters": {"max_new_tokens": 2}}), "parameters"),
    ]
}

/// Returns the body as text with one more field.
fn with_field(body: &Value, within: &str, field: &str, value: &str) -> String {
    let mut body = body.clone();
    let marker = "the value";
    let object = if within.is_empty() { &mut body } else { &mut body[within] };
    object[field] = json!(marker);
    body.to_string().replace(&json!(marker).to_string(), value)
}

/// Returns the names of the numeric fields of a route's body.
fn numeric_fields(document: &Value, path: &str, within: &str) -> Vec<String> {
    let schema = |reference: &Value| {
        let name = reference["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
        document["components"]["schemas"][name].clone()
    };
    let content = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let mut body = schema(content);
    if !within.is_empty() {
        let property = &body["properties"][within];
        let reference =
            property["oneOf"].as_array().map_or(property.clone(), |forms| forms[forms.len() - 1].clone());
        body = schema(&reference);
    }
    let is_number = |field: &Value| {
        let names = field["type"].as_array().cloned().unwrap_or_else(|| vec![field["type"].clone()]);
        names.iter().any(|name| name == "number" || name == "integer")
    };
    let properties = body["properties"].as_object().unwrap();
    properties.iter().filter(|(_, field)| is_number(field)).map(|(name, _)| name.clone()).collect()
}

#[tokio::test]
async fn no_number_hurts_the_shard() {
    let router = Router::start(ShardPlan::default(), Limits::default()).await;
    let document = router.get("/openapi.json").await.ok();
    let mut num_taken = 0;
    for (path, body, within) in routes() {
        let fields = numeric_fields(&document, path, within);
        assert!(fields.len() >= 3, "{path}: {fields:?}");
        let mut connection = router.connect().await;
        for (index, field) in fields.iter().enumerate() {
            // The second field goes through its edges at another pace, so that pairs differ.
            let other = &fields[(index + 1) % fields.len()];
            for (at, value) in EDGES.iter().enumerate() {
                let single = with_field(&body, within, field, value);
                let pair: Value = serde_json::from_str(&with_field(&body, within, other, "0.5")).unwrap();
                let pair = with_field(&pair, within, field, EDGES[(at * 7 + index) % EDGES.len()]);
                for text in [single, pair] {
                    let answer = connection.request("POST", path, text.as_bytes()).await;
                    // A tiny `timeout` expires.
                    assert!(answer.status < 500 || answer.status == 504, "{path} {text}: {}", answer.text());
                    num_taken += u32::from(answer.status == 200);
                }
            }
        }
    }
    assert!(num_taken > 500, "many values are valid: {num_taken}");
    router.wait_idle().await;
    let stats = *router.app.served.stats.borrow();
    assert_eq!((stats.replays, stats.convictions), (0, 0), "the shard was never lost");
    let metrics = router.get("/metrics").await.text();
    assert!(!metrics.contains("reason=\"failed\""), "the shard refused nothing");
}
