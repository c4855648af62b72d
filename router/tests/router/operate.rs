//! The metrics, and the page that shows the OpenAPI document. `integration-tests/test_docs.py` checks the names.

use serde_json::json;

use crate::support::Router;

#[tokio::test]
async fn metrics_count_requests_and_steps() {
    let router = Router::default().await;
    let body = json!({"prompt": vec![7; 20], "max_tokens": 5, "ignore_eos": true});
    for _ in 0..2 {
        router.post("/v1/completions", &body).await.ok();
    }
    router.wait_idle().await;
    let limited = router.post("/generate", &json!({"inputs": ""})).await;
    assert_eq!(limited.status, 422);

    let answer = router.get("/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = answer.text();
    for (name, value) in [
        ("trunkline_prompt_tokens_total", 40.0),
        ("trunkline_prefix_hit_tokens_total", 19.0),
        ("trunkline_output_tokens_total", 10.0),
        ("trunkline_time_to_first_token_seconds_count", 2.0),
        ("trunkline_inter_token_seconds_count", 8.0),
        ("trunkline_queue_time_seconds_count", 2.0),
        ("trunkline_sequences_ended_total{reason=\"length\"}", 2.0),
        ("trunkline_kv_blocks", 1024.0),
        ("trunkline_kv_blocks_held", 0.0),
        ("trunkline_running_sequences", 0.0),
        ("trunkline_shard_ready", 1.0),
        ("trunkline_unexpected_results_total", 0.0),
        ("vllm:num_requests_running", 0.0),
        ("trunkline_http_requests_total{route=\"/v1/completions\",method=\"POST\",status=\"200\"}", 2.0),
        ("trunkline_http_requests_total{route=\"/generate\",method=\"POST\",status=\"422\"}", 1.0),
    ] {
        assert_eq!(router.metric(name).await, value, "{name}");
    }
    assert!(text.contains("vllm:cache_config_info{block_size=\"8\",num_gpu_blocks=\"1024\""));
}

#[tokio::test]
async fn the_docs_page_loads_nothing_from_other_servers() {
    let router = Router::default().await;
    let page = router.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(!page.text().contains("http://") && !page.text().contains("https://"));
}

#[tokio::test]
async fn metrics_are_prometheus_text_unless_openmetrics_is_asked_for() {
    let router = Router::default().await;
    router.get("/livez").await;
    let prometheus = router.get("/metrics").await.text();
    assert!(prometheus.contains("# HELP trunkline_http_requests_total HTTP responses"), "{prometheus}");
    assert!(prometheus.contains("# TYPE trunkline_http_requests_total counter\n"), "{prometheus}");
    assert!(prometheus.contains("# TYPE trunkline_step_duration_seconds histogram\n"), "{prometheus}");
    assert!(!prometheus.contains("# EOF") && !prometheus.contains("# UNIT"), "{prometheus}");
    let mut connection = router.connect().await;
    for (accepted, content_type) in [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ] {
        let answer = connection.request_with("GET", "/metrics", &[("accept", accepted)], b"").await;
        assert_eq!(answer.header("content-type"), Some(content_type), "{accepted}");
        assert_eq!(answer.text().ends_with("# EOF\n"), content_type.starts_with("application"));
    }
}
