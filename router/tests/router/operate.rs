//! The metrics, the OpenAPI document and the page that shows it.

use serde_json::{Value, json};

use crate::support::Router;

/// The names of all samples without labels. A change of this list can break dashboards.
const METRICS: &[&str] = &[
    "trunkline_aborts_total",
    "trunkline_dropped_window_parts_total",
    "trunkline_evicted_blocks_total",
    "trunkline_fair_preemptions_total",
    "trunkline_grammar_compile_seconds_bucket",
    "trunkline_grammar_compile_seconds_count",
    "trunkline_grammar_compile_seconds_sum",
    "trunkline_grammar_hits_total",
    "trunkline_grammar_mask_seconds_bucket",
    "trunkline_grammar_mask_seconds_count",
    "trunkline_grammar_mask_seconds_sum",
    "trunkline_http_requests_total",
    "trunkline_inter_token_seconds_bucket",
    "trunkline_inter_token_seconds_count",
    "trunkline_inter_token_seconds_sum",
    "trunkline_kv_blocks",
    "trunkline_kv_blocks_cached",
    "trunkline_kv_blocks_free",
    "trunkline_kv_blocks_held",
    "trunkline_kv_blocks_late",
    "trunkline_kv_blocks_pinned",
    "trunkline_kv_usage_ratio",
    "trunkline_kv_window_parts",
    "trunkline_kv_window_parts_free",
    "trunkline_kv_window_parts_needed",
    "trunkline_object_declined_total",
    "trunkline_object_downloaded_blocks_total",
    "trunkline_object_downloaded_bytes_total",
    "trunkline_object_dropped_blocks_total",
    "trunkline_object_failures_total",
    "trunkline_object_known_blocks_total",
    "trunkline_object_misses_total",
    "trunkline_object_timeouts_total",
    "trunkline_object_uploaded_blocks_total",
    "trunkline_object_uploaded_bytes_total",
    "trunkline_object_waiting_blocks",
    "trunkline_output_tokens_total",
    "trunkline_pins_dropped_total",
    "trunkline_pins_refused_total",
    "trunkline_pins_total",
    "trunkline_preemptions_total",
    "trunkline_prefix_hit_tokens_total",
    "trunkline_prefix_waits_total",
    "trunkline_promotions_total",
    "trunkline_prompt_tokens_total",
    "trunkline_queue_time_seconds_bucket",
    "trunkline_queue_time_seconds_count",
    "trunkline_queue_time_seconds_sum",
    "trunkline_queued_sequences",
    "trunkline_rejections_total",
    "trunkline_request_output_tokens_bucket",
    "trunkline_request_output_tokens_count",
    "trunkline_request_output_tokens_sum",
    "trunkline_request_prompt_tokens_bucket",
    "trunkline_request_prompt_tokens_count",
    "trunkline_request_prompt_tokens_sum",
    "trunkline_restore_failures_total",
    "trunkline_restored_blocks_total",
    "trunkline_restores_declined_total",
    "trunkline_restores_given_up_total",
    "trunkline_running_sequences",
    "trunkline_scheduled_tokens_total",
    "trunkline_sequences_convicted_total",
    "trunkline_sequences_ended_total",
    "trunkline_sequences_replayed_total",
    "trunkline_shard_ready",
    "trunkline_stalled_connections_total",
    "trunkline_step_duration_seconds_bucket",
    "trunkline_step_duration_seconds_count",
    "trunkline_step_duration_seconds_sum",
    "trunkline_step_tokens_bucket",
    "trunkline_step_tokens_count",
    "trunkline_step_tokens_sum",
    "trunkline_steps_in_flight",
    "trunkline_steps_total",
    "trunkline_store_blocks",
    "trunkline_store_blocks_pinned",
    "trunkline_store_evicted_blocks_total",
    "trunkline_store_failures_total",
    "trunkline_store_slots",
    "trunkline_stored_blocks_total",
    "trunkline_time_to_first_token_seconds_bucket",
    "trunkline_time_to_first_token_seconds_count",
    "trunkline_time_to_first_token_seconds_sum",
    "trunkline_tls_reload_failures_total",
    "trunkline_tls_reloads_total",
    "trunkline_unexpected_results_total",
    "vllm:cache_config_info",
    "vllm:kv_cache_usage_perc",
    "vllm:lora_requests_info",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
];

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
    let mut names: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split([' ', '{']).next().unwrap())
        .collect();
    names.sort_unstable();
    names.dedup();
    let absent = ["trunkline_rejections_total"];
    let expected: Vec<&str> = METRICS.iter().copied().filter(|name| !absent.contains(name)).collect();
    assert_eq!(names, expected);

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
async fn openapi_describes_every_route_and_resolves() {
    let router = Router::default().await;
    let api = router.get("/openapi.json").await.ok();
    let paths: Vec<&String> = api["paths"].as_object().unwrap().keys().collect();
    for path in [
        "/",
        "/generate",
        "/generate_stream",
        "/health",
        "/info",
        "/livez",
        "/metrics",
        "/ping",
        "/readyz",
        "/tokenize",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{id}",
    ] {
        assert!(paths.iter().any(|known| *known == path), "{path} is missing");
    }
    let mut references = Vec::new();
    collect(&api, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        assert!(api.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
    }
    let chat = &api["components"]["schemas"]["ChatCompletionRequest"]["properties"];
    assert_eq!(chat["top_logprobs"]["maximum"], 20);
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => references.push(reference.clone()),
                    _ => collect(value, references),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

#[tokio::test]
async fn the_docs_page_loads_nothing_from_other_servers() {
    let router = Router::default().await;
    let page = router.get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(!page.text().contains("http://") && !page.text().contains("https://"));
    assert_eq!(router.get("/").await.header("location"), Some("/docs"));
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
