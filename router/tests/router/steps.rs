//! `/v1/steps`: the last steps, and whose sequences each caller sees in them.

use serde_json::{Value, json};
use trunkline_base::limits::Limits;
use trunkline_settings::Speculate;

use crate::support::{Router, ShardPlan, user};

const COMPLETIONS: &str = "/v1/completions";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const ADMIN: &str = "sk-admin-0123456789";
const KEYS: &str = "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n\
                    [tenants.root]\nkeys = \"sk-admin-0123456789\"\nadmin = true\n";

fn rows(answer: &Value) -> &Vec<Value> {
    answer["data"].as_array().unwrap()
}

/// Returns the sum of a field of all sequences in these steps.
fn sum(answer: &Value, field: &str) -> u64 {
    let sequences = rows(answer).iter().flat_map(|row| row["sequences"].as_array().unwrap());
    sequences.map(|sequence| sequence[field].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn steps_tell_what_they_computed_and_can_be_read_on() {
    let router = Router::saying("abcdef").await;
    router.post(COMPLETIONS, &json!({"prompt": vec![7; 21], "max_tokens": 4})).await.ok();
    router.wait_idle().await;
    let all = router.get("/v1/steps").await.ok();
    assert_eq!(json!([sum(&all, "prefill_tokens"), sum(&all, "decode_tokens")]), json!([21, 3]), "{all}");
    let name = &rows(&all)[0]["sequences"][0]["sequence"];
    for (row, number) in rows(&all).iter().zip(1..) {
        assert_eq!((&row["number"], &row["lane"]), (&json!(number), &json!(0)));
        assert_eq!(&row["sequences"][0]["sequence"], name, "one sequence has one name");
        assert!(row["sequences"][0].get("request_id").is_none(), "without keys everybody may look");
        assert!(row["end_time"].as_f64().unwrap() > 1.7e9 && row.get("others").is_none(), "{row}");
    }
    let last = all["last"].as_u64().unwrap();
    assert_eq!(last, rows(&all).len() as u64);
    let newest = router.get(&format!("/v1/steps?after={}&lane=0", last - 1)).await.ok();
    assert_eq!(rows(&newest)[..], rows(&all)[last as usize - 1..]);
    assert_eq!(rows(&router.get("/v1/steps?limit=1").await.ok()), rows(&newest));
    assert_eq!(rows(&router.get(&format!("/v1/steps?after={last}")).await.ok()).len(), 0);
    let restarted = router.get(&format!("/v1/steps?after={}", last + 1)).await.ok();
    assert_eq!(restarted["data"], all["data"], "the number is of an earlier server");
    for query in ["limit=0", "limit=257", "lane=1", "after=x"] {
        router.get(&format!("/v1/steps?{query}")).await.fails(400, "invalid_value");
    }
}

#[tokio::test]
async fn a_lane_keeps_its_last_256_steps() {
    let router = Router::with(ShardPlan::endless()).await;
    let body = json!({"prompt": [7], "max_tokens": 300, "speculation": false});
    router.post(COMPLETIONS, &body).await.ok();
    router.wait_idle().await;
    let all = router.get("/v1/steps").await.ok();
    let numbers: Vec<_> = rows(&all).iter().map(|row| row["number"].as_u64().unwrap()).collect();
    let last = all["last"].as_u64().unwrap();
    assert!(last >= 300, "{last}");
    assert_eq!(numbers, (last - 255..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn steps_tell_accepted_drafts() {
    let text = "Each line of this text is new. No two of its words are alike, except some.";
    let router = Router::start(
        ShardPlan::saying(text),
        Limits { speculate: Speculate::Always(8), ..Limits::default() },
    )
    .await;
    let body = json!({"messages": user("x"), "prediction": {"type": "content", "content": text}});
    let usage = router.post("/v1/chat/completions", &body).await.ok()["usage"].clone();
    router.wait_idle().await;
    let details = &usage["completion_tokens_details"];
    let count = |field: &str| details[field].as_u64().unwrap();
    let accepted = count("accepted_prediction_tokens");
    let all = router.get("/v1/steps").await.ok();
    assert!(accepted > 0, "{usage}");
    assert_eq!(sum(&all, "accepted_draft_tokens"), accepted);
    assert_eq!(sum(&all, "draft_tokens"), accepted + count("rejected_prediction_tokens"));
}

#[tokio::test]
async fn a_tenant_sees_its_own_sequences_and_the_share_of_others() {
    let router = Router::start_with_keys(KEYS, ShardPlan::saying("!"), Limits::default()).await;
    for (key, id, length) in [(ALICE, "req-of-alice", 21), (BOB, "req-of-bob", 37)] {
        let headers = [("x-api-key", key), ("x-request-id", id)];
        let body = json!({"prompt": vec![7; length], "max_tokens": 1}).to_string();
        router.connect().await.request_with("POST", COMPLETIONS, &headers, body.as_bytes()).await.ok();
        router.wait_idle().await;
    }
    let look = async |key| router.ask(key, "GET", "/v1/steps", &Value::Null).await;
    for (key, own, other, length) in
        [(ALICE, "req-of-alice", "req-of-bob", 21), (BOB, "req-of-bob", "req-of-alice", 37)]
    {
        let seen = look(key).await;
        let (text, seen) = (seen.text(), seen.ok());
        assert_eq!(sum(&seen, "prefill_tokens"), length, "its own only");
        assert!(text.contains(own) && !text.contains(other), "{text}");
        let others: Vec<_> = rows(&seen).iter().filter_map(|row| row.get("others")).collect();
        // The exact length of the other prompt is not told.
        let rounded = (58 - length).next_power_of_two();
        assert_eq!(others, [&json!({"prefill_tokens": rounded, "decode_tokens": 0})]);
    }
    let all = look(ADMIN).await;
    assert!(["req-of-alice", "req-of-bob"].iter().all(|id| all.text().contains(id)), "{}", all.text());
    assert_eq!(sum(&all.ok(), "prefill_tokens"), 58);
    assert_eq!(router.get("/v1/steps").await.status, 401);
}
