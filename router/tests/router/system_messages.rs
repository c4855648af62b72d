//! System messages in the middle of a conversation, which some templates refuse.

use serde_json::json;

use crate::support::{Router, ShardPlan};

/// A template that refuses system messages that are not the first message, as that of Qwen3.5 does. Another one renders
/// the same without that rule.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
    {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
    [{{ m.role }}|{{ m.content }}]{% endfor %}";
const LENIENT: &str = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}";

#[tokio::test]
async fn later_system_messages_join_the_users_turn_of_a_template_that_refuses_them() {
    let strict = Router::start_with_template(ShardPlan::saying("ok"), STRICT).await;
    let lenient = Router::start_with_template(ShardPlan::saying("ok"), LENIENT).await;
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    for (messages, merged, kept) in [
        (
            json!([
                said("system", "s"),
                said("user", "a"),
                said("assistant", "b"),
                said("developer", "t"),
                said("user", "c")
            ]),
            "[system|s][user|a][assistant|b][user|t\nc]",
            "[system|s][user|a][assistant|b][system|t][user|c]",
        ),
        (
            json!([said("system", "s"), said("developer", "t"), said("user", "a"), said("user", "b")]),
            "[system|s\nt][user|a][user|b]",
            "[system|s][system|t][user|a][user|b]",
        ),
        (
            json!([said("user", "a"), said("system", "s"), said("assistant", "b"), said("system", "t")]),
            "[user|a\ns][assistant|b][user|t]",
            "[user|a][system|s][assistant|b][system|t]",
        ),
        (
            json!([said("system", "s"), said("user", "a"), said("assistant", "b"), said("user", "c")]),
            "[system|s][user|a][assistant|b][user|c]",
            "[system|s][user|a][assistant|b][user|c]",
        ),
    ] {
        for (router, expected) in [(&strict, merged), (&lenient, kept)] {
            let chat = json!({"messages": messages, "max_tokens": 1});
            router.post("/v1/chat/completions", &chat).await.ok();
            assert_eq!(router.last_prompt(), expected);
            router.post("/v1/responses", &json!({"input": messages, "max_output_tokens": 1})).await.ok();
            assert_eq!(router.last_prompt(), expected);
            let shown = router.post("/chat_tokenize", &json!({"messages": messages})).await.ok();
            assert_eq!(shown["templated_text"], expected);
        }
        if messages[0]["role"] == "user" {
            let anthropic =
                json!([said("user", "a"), said("system", "s"), said("assistant", "b"), said("system", "t")]);
            strict.post("/v1/messages", &json!({"messages": anthropic, "max_tokens": 1})).await.ok();
            assert_eq!(strict.last_prompt(), merged);
        }
    }
}

#[tokio::test]
async fn a_mark_for_caching_moves_with_the_system_message_that_joins_a_turn() {
    let router = Router::start_with_template(ShardPlan::saying("ok"), STRICT).await;
    let marked =
        json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]);
    let messages = json!([
        {"role": "user", "content": "a long beginning of many tokens"},
        {"role": "system", "content": marked},
        {"role": "user", "content": "and an end"},
    ]);
    let answer =
        router.post("/v1/chat/completions", &json!({"messages": messages, "max_tokens": 1})).await.ok();
    let prompt = "[user|a long beginning of many tokens\nBe brief.\nand an end]";
    assert_eq!(router.last_prompt(), prompt);
    let pinned = &answer["usage"]["prompt_tokens_details"]["pinned_tokens"];
    // A pin covers whole blocks of 8 tokens before the end of the marked text.
    let end = prompt.find("\nand").unwrap() as u64;
    assert!(pinned.as_u64().is_some_and(|pinned| pinned <= end && pinned + 8 > end), "{pinned} of {end}");
}
