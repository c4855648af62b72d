//! Every number of every dialect, in lists and nested objects too, at the edges of its type. No value may reach the
//! shard that the contract excludes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan};
use trunkline_base::limits::Limits;

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

/// Returns the least body of each route with numbers, and the object in it that has the sampling fields.
fn routes() -> [(&'static str, Value, &'static str); 7] {
    let messages = json!([{"role": "user", "content": "x"}]);
    [
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 2}), ""),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 2}), ""),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 2, "store": false}), ""),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 2}), ""),
        ("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 2}}), "parameters"),
        ("/generate_stream", json!({"inputs": "x", "parameters": {"max_new_tokens": 2}}), "parameters"),
        ("/detokenize", json!({}), ""),
    ]
}

/// A step to a value in a body: into a field of an object, or into the only item of a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    Item,
}

/// Returns the body as text with one more value.
fn with_value(body: &Value, within: &str, path: &[Step], value: &str) -> String {
    let marker = json!("the value");
    let nested = path[1..].iter().rev().fold(marker.clone(), |inner, step| match step {
        Step::Field(name) => json!({name.as_str(): inner}),
        Step::Item => json!([inner]),
    });
    let Step::Field(name) = &path[0] else { unreachable!("a body is an object") };
    let mut body = body.clone();
    let object = if within.is_empty() { &mut body } else { &mut body[within] };
    object[name.as_str()] = nested;
    body.to_string().replace(&marker.to_string(), value)
}

/// Adds the paths of the numbers in a schema, those in lists, in nested objects and in each of several forms too.
fn add_numbers(document: &Value, schema: &Value, path: &[Step], found: &mut BTreeSet<Vec<Step>>) {
    // Schemas that contain themselves end here.
    if path.len() > 5 {
        return;
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return add_numbers(document, &document["components"]["schemas"][name], path, found);
    }
    let is_number = |name: &Value| name == "number" || name == "integer";
    if is_number(&schema["type"])
        || schema["type"].as_array().is_some_and(|names| names.iter().any(is_number))
    {
        found.insert(path.to_vec());
    }
    for forms in ["oneOf", "anyOf", "allOf"] {
        for form in schema[forms].as_array().into_iter().flatten() {
            add_numbers(document, form, path, found);
        }
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        add_numbers(document, field, &[path, &[Step::Field(name.clone())]].concat(), found);
    }
    if schema["items"].is_object() {
        add_numbers(document, &schema["items"], &[path, &[Step::Item]].concat(), found);
    }
    if schema["additionalProperties"].is_object() {
        let any = Step::Field("5".into());
        add_numbers(document, &schema["additionalProperties"], &[path, &[any]].concat(), found);
    }
}

/// Returns the paths of the numbers of a route's body, in the object `within` it.
fn numbers(document: &Value, route: &str, within: &str) -> Vec<Vec<Step>> {
    let body = &document["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let mut found = BTreeSet::new();
    add_numbers(document, body, &[], &mut found);
    if within.is_empty() {
        return found.into_iter().collect();
    }
    let inside =
        |path: Vec<Step>| (path.first() == Some(&Step::Field(within.into()))).then(|| path[1..].to_vec());
    found.into_iter().filter_map(inside).collect()
}

#[tokio::test]
async fn no_number_hurts_the_shard() {
    let router = Router::start(ShardPlan::default(), Limits::default()).await;
    let document = router.get("/openapi.json").await.ok();
    let mut num_taken = 0;
    for (path, body, within) in routes() {
        let fields = numbers(&document, path, within);
        assert!(!fields.is_empty(), "{path}");
        let mut connection = router.connect().await;
        for (index, field) in fields.iter().enumerate() {
            // The second field goes through its edges at another pace, so that pairs differ.
            let other = &fields[(index + 1) % fields.len()];
            for (at, value) in EDGES.iter().enumerate() {
                let single = with_value(&body, within, field, value);
                let pair: Value = serde_json::from_str(&with_value(&body, within, other, "0.5")).unwrap();
                let pair = with_value(&pair, within, field, EDGES[(at * 7 + index) % EDGES.len()]);
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
    for path in
        ["/v1/kv/tree?limit", "/v1/kv/tree?after", "/v1/kv/tree?depth", "/v1/responses/x/input_items?limit"]
    {
        for value in EDGES {
            let answer = router.get(&format!("{path}={value}")).await;
            assert!(answer.status < 500, "{path} {value}: {}", answer.text());
        }
    }
    router.wait_idle().await;
    let stats = *router.app.served.stats.borrow();
    assert_eq!((stats.replays, stats.convictions), (0, 0), "the shard was never lost");
    let metrics = router.get("/metrics").await.text();
    assert!(!metrics.contains("reason=\"failed\""), "the shard refused nothing");
}
