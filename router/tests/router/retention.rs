//! Prompts that are pinned on request.

use serde_json::{Value, json};

use crate::support::{Router, ShardPlan};

const COMPLETIONS: &str = "/v1/completions";

/// The pool's size in blocks of 8 tokens. A quarter of them may be pinned.
const NUM_BLOCKS: u32 = 32;

async fn router() -> Router {
    Router::with(ShardPlan { num_blocks: NUM_BLOCKS, ..ShardPlan::default() }).await
}

/// Sends distinct prompts that fill the pool four times.
async fn flood(router: &Router) {
    for round in 0..16 {
        let body = json!({"prompt": vec![20 + round; 60], "max_tokens": 1});
        router.post(COMPLETIONS, &body).await.ok();
    }
}

#[tokio::test]
async fn a_prompt_is_pinned_on_request_if_there_is_room() {
    let router = router().await;
    let mut body = json!({"prompt": vec![7; 41], "max_tokens": 1});
    router.post(COMPLETIONS, &body).await.ok();
    flood(&router).await;
    assert_eq!(router.post(COMPLETIONS, &body).await.cached_tokens(), 0);
    body["cache_retention"] = json!({"priority": "high", "ttl_s": 3600});
    router.post(COMPLETIONS, &body).await.ok();
    flood(&router).await;
    assert_eq!(router.metric("trunkline_kv_blocks_pinned").await, 5.0);
    assert_eq!(router.post(COMPLETIONS, &body).await.cached_tokens(), 40);
    let again = router.post(COMPLETIONS, &body).await.ok();
    assert_eq!(again["usage"]["prompt_tokens_details"], json!({"cached_tokens": 40, "pinned_tokens": 40}));
    // 5 of 8 possible blocks are pinned.
    let other = json!({"prompt": vec![8; 41], "max_tokens": 1, "prompt_cache_retention": "24h"});
    let refused = router.post(COMPLETIONS, &other).await.ok();
    assert_eq!(refused["usage"]["prompt_tokens_details"], json!({"cached_tokens": 0, "pinned_tokens": 0}));
    flood(&router).await;
    assert_eq!(router.post(COMPLETIONS, &other).await.cached_tokens(), 0);
    // The counters are published after the answer. The pinned blocks stay held, so the scheduler never becomes idle.
    router.wait("two refused pins", |app| app.served.stats.borrow().pins_refused == 2).await;
    assert_eq!(router.metric("trunkline_pins_refused_total").await, 2.0);
    assert_eq!(router.metric("trunkline_kv_blocks_pinned").await, 5.0);
}

#[tokio::test]
async fn low_priority_prompts_are_evicted_first_and_never_stored() {
    let folder = tempfile::tempdir().unwrap();
    let store = Some((folder.path().join("store"), 64));
    let router = Router::with(ShardPlan { num_blocks: NUM_BLOCKS, store, ..ShardPlan::default() }).await;
    let ask = async |token: u32, priority: &str| {
        let retention = json!({"priority": priority});
        let body = json!({"prompt": vec![token; 41], "max_tokens": 1, "cache_retention": retention});
        let answer = router.post(COMPLETIONS, &body).await;
        router.wait_idle().await;
        answer.cached_tokens()
    };
    assert_eq!(ask(7, "normal").await, 0);
    let num_written = router.metric("trunkline_stored_blocks_total").await;
    for token in 20..40 {
        assert_eq!(ask(token, "low").await, 0);
    }
    assert_eq!(router.metric("trunkline_stored_blocks_total").await, num_written);
    // Twenty prompts of five blocks exceed the pool. The older prompt is still cached, and so is the last one.
    assert_eq!(ask(39, "low").await, 40);
    assert_eq!(ask(20, "low").await, 0);
    assert_eq!(ask(7, "normal").await, 40);
    assert_eq!(router.metric("trunkline_restored_blocks_total").await, 0.0);
}

#[tokio::test]
async fn a_streams_usage_reports_pinned_tokens() {
    let router = router().await;
    let mut body = json!({"prompt": vec![7; 41], "max_tokens": 2, "stream": true});
    body["stream_options"] = json!({"include_usage": true});
    body["cache_retention"] = json!({"priority": "high"});
    let text = router.post(COMPLETIONS, &body).await.text();
    assert!(text.contains("\"pinned_tokens\":40"), "{text}");
    body["cache_retention"] = json!({"priority": "normal"});
    let text = router.post(COMPLETIONS, &body).await.text();
    assert!(text.contains("\"cached_tokens\":40") && !text.contains("pinned_tokens"), "{text}");
}

#[tokio::test]
async fn a_sequence_that_could_not_run_otherwise_takes_pinned_blocks() {
    let router = router().await;
    let body = json!({"prompt": vec![7; 41], "max_tokens": 1, "cache_retention": {"priority": "high"}});
    router.post(COMPLETIONS, &body).await.ok();
    let all = json!({"prompt": vec![9; NUM_BLOCKS as usize * 8 - 8], "max_tokens": 4});
    router.post(COMPLETIONS, &all).await.ok();
    assert_eq!(router.metric("trunkline_pins_dropped_total").await, 1.0);
    assert_eq!(router.metric("trunkline_kv_blocks_pinned").await, 0.0);
}

#[tokio::test]
async fn a_mark_in_the_messages_pins_the_prompt_before_it() {
    let router = router().await;
    let system = "s".repeat(40);
    let part = json!({"type": "text", "text": system, "cache_control": {"type": "ephemeral", "ttl": "1h"}});
    let mut body = json!({
        "messages": [{"role": "system", "content": [part]}, {"role": "user", "content": "u".repeat(40)}],
        "max_tokens": 1,
    });
    let answer = router.post("/v1/chat/completions", &body).await.ok();
    router.wait("the prompt to be pinned", |app| app.served.stats.borrow().pins_granted == 1).await;
    let num_pinned = router.metric("trunkline_kv_blocks_pinned").await;
    let num_prompt_blocks = answer["usage"]["prompt_tokens"].as_f64().unwrap() / 8.0;
    assert!((5.0..num_prompt_blocks - 4.0).contains(&num_pinned), "{num_pinned} of {num_prompt_blocks}");
    let details = &answer["usage"]["prompt_tokens_details"];
    assert!(details["pinned_tokens"].as_u64().unwrap() >= 40, "{details}");
    // A field of the request goes before its marks.
    body["cache_retention"] = json!({"priority": "normal"});
    let answer = router.post("/v1/chat/completions", &body).await.ok();
    let details = &answer["usage"]["prompt_tokens_details"];
    assert!(details.get("pinned_tokens").is_none(), "{details}");
}

#[tokio::test]
async fn a_mark_is_at_the_end_of_the_text_that_the_prompt_has() {
    let router = router().await;
    let mark = json!({"type": "ephemeral"});
    let ask = async |part: Value| {
        let body = json!({"messages": [{"role": "assistant", "content": [part]}], "max_tokens": 1});
        let answer = router.post("/v1/chat/completions", &body).await.ok();
        answer["usage"]["prompt_tokens_details"]["pinned_tokens"].as_u64().unwrap()
    };
    // A part has the text of its type; the other field is another part's.
    let part = json!({"type": "refusal", "refusal": "n".repeat(40), "text": "", "cache_control": mark});
    assert_eq!(ask(part).await, 48);
    // The other field ends inside a character of the text.
    let part = json!({"type": "refusal", "refusal": "é", "text": "a", "cache_control": mark});
    ask(part).await;
}
