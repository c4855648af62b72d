//! Several shards behind one router, each on a lane of its own.

use std::time::Duration;

use serde_json::{Value, json};
use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_engine::shard::ShardStatus;

use crate::lifecycle::{comparable, counting, kinds, streaming};
use crate::mock::MockShard;
use crate::support::{Router, ShardPlan, lane_socket};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn complete(router: &Router, prompt: &[u32]) -> u64 {
    let answer = router.post(COMPLETIONS, &json!({"prompt": prompt, "max_tokens": 2})).await;
    router.wait_idle().await;
    answer.cached_tokens()
}

/// Returns the number of sequences that a shard was told to start.
fn num_starts(shard: &MockShard) -> usize {
    shard.plans.lock().unwrap().iter().map(|plan| plan.starts.len()).sum()
}

#[tokio::test]
async fn streams_without_a_common_prefix_are_spread_over_the_lanes() {
    let router = Router::start_lanes(2, vec![ShardPlan::endless().held(), ShardPlan::endless().held()]).await;
    let mut streams = Vec::new();
    for first in 1..3 {
        let body = json!({"prompt": vec![first; 9], "max_tokens": 100, "stream": true});
        streams.push(router.begin(COMPLETIONS, &body).await);
    }
    router.wait_running(2).await;
    let running = |lane: usize| router.app.served.lanes.borrow()[lane].num_running;
    assert_eq!([running(0), running(1)], [1, 1]);
}

#[tokio::test]
async fn a_conversation_returns_to_the_lane_that_has_its_prefix() {
    let router = Router::start_lanes(2, vec![ShardPlan::saying("!"), ShardPlan::saying("!")]).await;
    let histories: Vec<Vec<u32>> = (0..4).map(|first| vec![first + 1; 65]).collect();
    for history in &histories {
        assert_eq!(complete(&router, history).await, 0);
    }
    for _ in 0..2 {
        for history in histories.iter().rev() {
            assert_eq!(complete(&router, history).await, 64);
        }
    }
    let lanes = router.get("/v1/kv").await.ok()["lanes"].clone();
    let lanes = lanes.as_array().unwrap();
    assert_eq!(lanes.iter().map(|lane| lane["hit_tokens"].as_u64().unwrap()).sum::<u64>(), 8 * 64);
    assert!(lanes.iter().all(|lane| lane["connected"] == true), "{lanes:?}");
}

#[tokio::test]
async fn every_kind_of_answer_goes_on_with_another_lane() {
    for (path, body) in kinds() {
        let mut router = Router::start_lanes(2, vec![counting()]).await;
        let expected = router.post(path, &body).await;
        assert_eq!(expected.status, 200, "{}", expected.text());
        // The lane with few permits takes the request, and is killed in the middle of the answer.
        router.start_other(counting().held()).await;
        router.kill_shard();
        router.wait("the loss", |app| matches!(app.served.shards.borrow()[0], ShardStatus::Lost(_))).await;
        let mut connection = router.begin(path, &body).await;
        let second = router.others.pop().unwrap();
        second.steps.add_permits(9);
        router.wait("the steps", |_| second.steps.available_permits() == 0).await;
        router.start_shard(counting()).await;
        second.kill();
        let answer = connection.answer().await;
        let is_same = comparable(&answer) == comparable(&expected);
        assert!(is_same, "{path}:\n{}\ninstead of\n{}", answer.text(), expected.text());
        router.wait_idle().await;
        assert!(router.app.served.stats.borrow().replays > 0);
        assert_eq!(router.get("/readyz").await.status, 200);
    }
}

#[tokio::test]
async fn a_shard_that_hangs_beside_a_good_one_loses_its_streams_to_it() {
    let short = Duration::from_millis(10);
    let mut limits = ServerLimits::from(Limits { stuck_step_timeout: short, ..Limits::default() });
    (limits.timeouts.health_interval, limits.timeouts.health) = (short, 100 * short);
    let stuck = ShardPlan { step_running_ms: 61_000, ..counting().held() };
    let mut router = Router::start_lanes_with(limits, 2, stuck).await;
    let body = json!({"prompt": "count", "max_tokens": 20});
    let mut connection = router.begin(COMPLETIONS, &body).await;
    router.wait_running(1).await;
    router.start_other(counting()).await;
    assert_eq!(connection.answer().await.status, 200);
    // The link does not return to a shard that is as before.
    assert_eq!(router.app.served.lanes.borrow()[0].losses, 1);
    assert!(matches!(router.app.served.shards.borrow()[0], ShardStatus::Lost(_)));
    assert_eq!(router.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_server_is_ready_while_one_lane_serves() {
    let mut router = Router::start_lanes(2, vec![ShardPlan::saying("!"), ShardPlan::saying("!")]).await;
    let lost = |router: &Router, lane: usize| {
        matches!(router.app.served.shards.borrow()[lane], ShardStatus::Lost(_))
    };
    router.others.pop().unwrap().kill();
    router.wait("the loss of lane 1", |_| lost(&router, 1)).await;
    assert_eq!(router.get("/readyz").await.status, 200);
    assert_eq!(complete(&router, &[1; 10]).await, 0);
    router.kill_shard();
    router.wait("the loss of lane 0", |_| lost(&router, 0)).await;
    router.get("/readyz").await.fails(503, "shard_away");
}

#[tokio::test]
async fn a_shard_that_differs_from_the_others_is_refused_until_it_is_alike() {
    let mut router = Router::start_lanes(2, vec![ShardPlan::saying("!")]).await;
    let socket = lane_socket(router.socket.parent().unwrap(), 1);
    let wrong = MockShard::start(&socket, ShardPlan { block_size: 16, ..ShardPlan::saying("!") });
    router.wait("an answer", |app| app.served.health.borrow()[1].last != Default::default()).await;
    assert_eq!(complete(&router, &[1; 10]).await, 0);
    assert!(matches!(router.app.served.shards.borrow()[1], ShardStatus::Loading));
    wrong.kill();
    std::fs::remove_file(&socket).unwrap();
    router.start_other(ShardPlan::saying("!")).await;
}

#[tokio::test]
async fn nodes_of_each_lane_are_listed_and_removed() {
    let router = Router::start_lanes(2, vec![ShardPlan::saying("!"), ShardPlan::saying("!")]).await;
    let pages = async || {
        let mut pages = Vec::new();
        for lane in 0..2 {
            pages.push(router.get(&format!("/v1/kv/tree?lane={lane}")).await.ok()["data"].clone());
        }
        pages
    };
    for first in 1..5 {
        complete(&router, &[first; 17]).await;
    }
    let before = pages().await;
    let nodes = |pages: &[Value]| pages.iter().map(|page| page.as_array().unwrap().len()).collect::<Vec<_>>();
    let num_before = nodes(&before).iter().sum::<usize>();
    assert!(num_before >= 4);
    let lane = usize::from(nodes(&before)[1] > 0);
    let id = before[lane][0]["id"].as_str().unwrap();
    assert_eq!(id.contains('.'), lane > 0, "{id}");
    let removed = router.connect().await.request("DELETE", &format!("/v1/kv/tree/{id}"), b"").await.ok();
    assert!(removed["removed_blocks"].as_u64().unwrap() > 0);
    assert!(nodes(&pages().await).iter().sum::<usize>() < num_before);
    router.get("/v1/kv/tree?lane=2").await.fails(400, "invalid_value");
}

#[tokio::test]
async fn metrics_have_a_label_for_the_lane() {
    let router = Router::start_lanes(2, vec![ShardPlan::saying("!"), ShardPlan::saying("!")]).await;
    complete(&router, &[1; 10]).await;
    let metrics = router.get("/metrics").await.text();
    let value = |line: &str| metrics.lines().find_map(|found| found.strip_prefix(line)).map(str::trim);
    for lane in 0..2 {
        assert_eq!(value(&format!("trunkline_lane_ready{{lane=\"{lane}\"}}")), Some("1.0"), "{metrics}");
    }
    let steps =
        |lane| value(&format!("trunkline_lane_steps_total{{lane=\"{lane}\"}}")).unwrap().parse::<u64>();
    assert!(steps(0).unwrap() + steps(1).unwrap() >= 2);
}

#[tokio::test]
async fn an_idle_lane_takes_what_a_full_one_cannot() {
    let full = ShardPlan { max_step_sequences: 1, ..ShardPlan::endless().held() };
    let router = Router::start_lanes(2, vec![full, ShardPlan::saying("!")]).await;
    let _stream = router.begin(CHAT, &streaming(100)).await;
    router.wait_running(1).await;
    let busy = num_starts(router.shard());
    let answer = router.post(CHAT, &json!({"messages": [{"role": "user", "content": "a"}]})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(num_starts(router.shard()), busy, "the other lane answered");
}
