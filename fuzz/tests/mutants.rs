//! Runs every target on mutants of its seeds: `TRUNKLINE_FUZZ_CASES` of them, beginning with number `TRUNKLINE_SEED`.

#[path = "../../router/kv/tests/kv/draw.rs"]
mod draw;

use std::panic::catch_unwind;

use serde_json::json;
use trunkline_fuzz::TARGETS;
use trunkline_fuzz::body::{answer_of, memory_of};
use trunkline_fuzz::mutant::mutant;
use trunkline_fuzz::seeds::{entry, write};

/// Runs a target on `num_cases` mutants in the first tier, and on 20 times as many in the second.
fn check(name: &str, num_cases: u64) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let (seeds, words) = ((target.seeds)(), (target.words)());
    for seed in &seeds {
        (target.run)(seed);
    }
    let first = draw::first_seed();
    for case in first..first + draw::count("TRUNKLINE_FUZZ_CASES", num_cases, 20 * num_cases) {
        let input = mutant(case, &seeds, &words);
        if catch_unwind(|| (target.run)(&input)).is_err() {
            panic!("case {case} of `{name}` (TRUNKLINE_SEED={case}): {:?}", String::from_utf8_lossy(&input));
        }
    }
}

#[test]
fn body() {
    check("body", 2_000);
}

#[test]
fn json_values_take_bounded_memory() {
    const NUM_BYTES: usize = 8_000_000;
    let user = r#""messages":[{"role":"user","content":"x"}]"#;
    let call = |arguments: &str| {
        format!(
            r#""messages":[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
        )
    };
    // The largest lists of the values that take the most memory.
    for item in ["0,", "[0],", "{\"\":0},", "\"\","] {
        let list = format!("[{}0]", item.repeat(NUM_BYTES / item.len()));
        let in_text = serde_json::Value::from(format!("{{\"a\":{list}}}")).to_string();
        let in_text = if in_text.len() <= 8 << 20 { in_text } else { "\"\"".to_owned() };
        for (route, fields) in [
            ("/v1/chat/completions", format!("{user},\"response_format\":{list}")),
            ("/v1/chat/completions", format!("{user},\"metadata\":{list}")),
            ("/v1/chat/completions", format!("{user},\"chat_template_kwargs\":{{\"a\":{list}}}")),
            ("/v1/chat/completions", format!("{user},\"tool_choice\":{list}")),
            ("/v1/chat/completions", call(&format!("{{\"a\":{list}}}"))),
            ("/v1/chat/completions", call(&in_text)),
            ("/v1/responses", format!("\"input\":\"x\",\"metadata\":{{\"a\":{list}}}")),
            ("/v1/responses", format!("\"input\":\"x\",\"include\":{list}")),
            ("/v1/messages", format!("{user},\"max_tokens\":1,\"output_format\":{list}")),
            (
                "/v1/messages/count_tokens",
                format!("{user},\"tools\":[{{\"name\":\"f\",\"input_schema\":{list}}}]"),
            ),
            ("/generate", format!("\"inputs\":\"x\",\"parameters\":{{\"grammar\":{list}}}")),
        ] {
            let (status, peak) = memory_of(route, format!("{{{fields}}}"));
            assert!(!status.is_server_error(), "{route} answers {status}");
            assert!(peak < 8 * NUM_BYTES, "{peak} bytes for {route} with {item} in {}", &fields[..60]);
        }
    }
}

#[test]
fn a_handler_copies_nothing_that_is_stored() {
    const NUM_BYTES: usize = 4 << 20;
    const ROUTES: [&str; 2] = ["/v1/responses", "/v1/responses/input_tokens"];
    // The template writes no reasoning, so it may be longer than the context.
    let thought = json!({"type": "reasoning", "content": "r".repeat(NUM_BYTES)});
    let long = json!({"input": [thought, {"role": "user", "content": "x"}], "metadata": {"a": "m".repeat(NUM_BYTES / 2)}});
    let long = answer_of("/v1/responses", &long);
    let reference = json!({"type": "item_reference", "id": long["output"][0]["id"]});
    for route in ROUTES {
        for body in [
            json!({"input": "x", "previous_response_id": long["id"], "store": false}),
            json!({"input": vec![reference.clone(); 100], "store": false}),
        ] {
            let (status, peak) = memory_of(route, body.to_string());
            assert_eq!(status, 200, "{route}");
            assert!(peak < NUM_BYTES / 4, "{peak} bytes for {route}");
        }
    }
}

#[test]
fn template() {
    check("template", 4_000);
}

#[test]
fn event() {
    check("event", 10_000);
}

#[test]
fn reply() {
    check("reply", 40_000);
}

#[test]
fn gguf() {
    check("gguf", 40_000);
}

#[test]
fn vocabulary() {
    check("vocabulary", 4_000);
}

#[test]
fn keys() {
    check("keys", 10_000);
}

#[test]
fn reader() {
    check("reader", 40_000);
}

#[test]
fn every_target_has_seeds_and_its_words_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    for target in TARGETS {
        let (corpus, dictionary) = (folder.path().join(target.name), folder.path().join("words"));
        write(target.name, &corpus, &dictionary).unwrap();
        assert_eq!(std::fs::read_dir(corpus).unwrap().count(), (target.seeds)().len(), "{}", target.name);
        assert!(!(target.seeds)().is_empty(), "{}", target.name);
        let lines = std::fs::read_to_string(dictionary).unwrap().lines().count();
        assert_eq!(lines, (target.words)().len(), "{}", target.name);
    }
    assert_eq!(entry(b"a\"\\\r\n\xff"), "\"a\\\"\\\\\\x0D\\x0A\\xFF\"\n");
    assert!(write("nothing", folder.path(), folder.path()).unwrap_err().contains("\"body\""));
}
