//! Parts, items and blocks of a message, with every combination of their fields.

use std::sync::{Mutex, OnceLock, PoisonError};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::draw;
use crate::support::Router;

/// The types of parts, items and blocks in all dialects, and one that no dialect knows.
const KINDS: [&str; 17] = [
    "text",
    "refusal",
    "input_text",
    "output_text",
    "reasoning_text",
    "summary_text",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "tool_reference",
    "image",
    "message",
    "reasoning",
    "other",
];

/// Texts whose ends are at different places in UTF-8.
fn texts() -> impl Strategy<Value = String> {
    select(vec!["", "a", "é", "🙂", "ab\n", "é🙂a", "<|end|>"]).prop_map(str::to_owned)
}

/// A part with any of the fields that a part may have in any dialect.
fn parts() -> impl Strategy<Value = Value> {
    let names = [
        "text",
        "refusal",
        "thinking",
        "data",
        "title",
        "context",
        "source",
        "tool_name",
        "id",
        "tool_use_id",
        "name",
        "role",
    ];
    let fields = names.map(|_| prop::option::of(texts()));
    let lists = (prop::option::of(vec(text_parts(), 0..3)), prop::option::of(vec(text_parts(), 0..3)));
    (select(&KINDS[..]), fields, lists, any::<[bool; 3]>()).prop_map(move |(kind, texts, lists, has)| {
        let mut part = Map::from_iter([("type".to_owned(), json!(kind))]);
        let texts = names.into_iter().zip(texts);
        part.extend(texts.filter_map(|(name, text)| Some((name.to_owned(), json!(text?)))));
        let lists = ["content", "summary"].into_iter().zip([lists.0, lists.1]);
        part.extend(lists.filter_map(|(name, list)| Some((name.to_owned(), json!(list?)))));
        let [is_marked, has_input, is_document] = has;
        if is_marked {
            part.insert("cache_control".into(), json!({"type": "ephemeral"}));
        }
        if has_input {
            part.insert("input".into(), json!({"a": 1}));
        }
        if is_document {
            part.insert("source".into(), json!({"type": "text", "data": "é"}));
        }
        Value::Object(part)
    })
}

/// A part whose type and fields are mostly those of a text.
fn text_parts() -> impl Strategy<Value = Value> {
    let kinds = select(vec!["text", "refusal", "text", "refusal", "output_text", "summary_text"]);
    (kinds, prop::option::of(texts()), prop::option::of(texts()), any::<bool>()).prop_map(
        |(kind, text, refusal, is_marked)| {
            let mut part = json!({"type": kind});
            for (name, value) in [("text", text), ("refusal", refusal)] {
                if let Some(value) = value {
                    part[name] = value.into();
                }
            }
            if is_marked {
                part["cache_control"] = json!({"type": "ephemeral"});
            }
            part
        },
    )
}

fn config(few: u64) -> ProptestConfig {
    ProptestConfig {
        cases: draw::count("TRUNKLINE_CASES", few, 30 * few) as u32,
        rng_seed: RngSeed::Fixed(draw::first_seed()),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Sends a body to a router that all cases share. Returns the status, the answer and the prompt.
fn post(path: &str, body: &Value) -> (u16, Value, String) {
    static ROUTER: OnceLock<Mutex<(Runtime, Router)>> = OnceLock::new();
    let router = ROUTER.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let router = runtime.block_on(Router::saying("ok"));
        Mutex::new((runtime, router))
    });
    // The last prompt is that of this case. A failed case leaves the router as it was.
    let (runtime, router) = &*router.lock().unwrap_or_else(PoisonError::into_inner);
    runtime.block_on(async {
        let answer = router.post(path, body).await;
        let prompt = if answer.status == 200 { router.last_prompt() } else { String::new() };
        (answer.status, answer.json(), prompt)
    })
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn every_combination_of_a_parts_fields_is_answered(
        parts in vec(prop_oneof![parts(), text_parts()], 1..4),
        role in select(vec!["user", "assistant", "system"]),
    ) {
        let list = json!([{"role": "user", "content": "x"}, {"role": role, "content": parts}]);
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": list, "max_tokens": 1})),
            ("/v1/messages", json!({"messages": list, "max_tokens": 1})),
            ("/v1/responses", json!({"input": list, "max_output_tokens": 1, "store": false})),
            ("/v1/responses", json!({"input": parts, "max_output_tokens": 1, "store": false})),
        ] {
            let (status, answer, _) = post(path, &body);
            prop_assert!(matches!(status, 200 | 400 | 404), "{path} {body}: {status} {answer}");
        }
    }

    #[test]
    fn the_text_of_a_part_is_that_of_its_type(parts in vec(text_parts(), 1..4)) {
        let content = json!([{"role": "assistant", "content": parts}]);
        let (status, answer, prompt) =
            post("/v1/chat/completions", &json!({"messages": content, "max_tokens": 1}));
        let field_of = |part: &Value| part["type"].as_str().filter(|kind| matches!(*kind, "text" | "refusal"))
            .and_then(|kind| Some(part.get(kind)?.as_str()?.to_owned()));
        let joined: Option<String> = parts.iter().map(field_of).collect();
        match joined {
            None => prop_assert_eq!(status, 400, "{}", answer),
            Some(joined) => {
                prop_assert_eq!(status, 200, "{}", answer);
                // The prompt's text shows control tokens as other characters, and these as they are.
                prop_assert!(prompt.contains(&format!("assistant\n{joined}")), "{joined} in {prompt}");
            }
        }
    }
}
