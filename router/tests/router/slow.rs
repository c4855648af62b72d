//! Clients that send slowly, do not read, or leave. What they hold is bounded, and no other client waits for them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use trunkline_base::limits::{Limits, ServerLimits};

use crate::support::{Connection, DEADLINE, Router, ShardPlan, eventually, user, with};

const COMPLETIONS: &str = "/v1/completions";
const CHATS: &str = "/v1/chat/completions";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const KEYS: &str =
    "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n";
/// The memory for whole answers in these tests. It has room for a few answers of [`large_text`].
const ANSWERS_BYTES: usize = 4 << 20;

fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Returns a request for a stream with events of about 2 KB, too large for the sockets' buffers.
fn large_stream(max_tokens: u32) -> Vec<u8> {
    let body = json!({"messages": user("x"), "max_tokens": max_tokens, "stream": true, "logprobs": true,
                      "top_logprobs": 20});
    post(CHATS, &body.to_string())
}

/// Returns a body for `/tokenize` whose answer has about 700 kB, too many for the sockets' buffers.
fn large_text() -> Value {
    json!({"inputs": "x".repeat(16_000)})
}

fn answer_limits() -> ServerLimits {
    ServerLimits { max_answers_bytes: ANSWERS_BYTES, ..ServerLimits::default() }
}

/// Waits until no whole answer holds memory.
async fn wait_answers(router: &Router) {
    let (free, all) = (&router.app.admission.answers.free, router.app.limits.max_answers_bytes);
    eventually("the memory of answers", async || free.available_permits() * 1024 >= all).await;
}

/// Connects with the smallest receive buffer that the kernel allows.
async fn connect_narrow(router: &Router) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(router.address).await.unwrap()
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected_and_frees_everything() {
    let limits = Limits { client_stall_timeout: Duration::from_millis(200), ..Limits::default() };
    let router = Router::start(ShardPlan::endless(), limits).await;
    let mut slow = connect_narrow(&router).await;
    slow.write_all(&large_stream(900)).await.unwrap();
    // The output fits into the request's buffer, so the request is not aborted for being too slow. On a busy machine
    // the connection is closed before the output is complete, which makes no difference to the client.
    router.wait("its tokens", |app| app.served.stats.borrow().output_tokens > 0).await;
    router.wait_idle().await;
    router.wait_places().await;
    assert_eq!(router.metric("trunkline_stalled_connections_total").await, 1.0);
    let mut rest = Vec::new();
    let ended =
        tokio::time::timeout(DEADLINE, slow.read_to_end(&mut rest)).await.expect("the connection ends");
    // The answer is incomplete: the connection is reset, or the last chunk is missing.
    assert!(ended.is_err() || !rest.ends_with(b"0\r\n\r\n"), "{} bytes", rest.len());
}

#[tokio::test]
async fn the_bytes_that_wait_for_a_client_are_bounded() {
    let router = Router::with(ShardPlan::endless()).await;
    let mut slow = connect_narrow(&router).await;
    // The stream is much longer than all buffers together.
    slow.write_all(&large_stream(8000)).await.unwrap();
    router.wait("tokens", |app| app.served.stats.borrow().output_tokens > 100).await;
    router.wait_idle().await;
    assert_eq!(router.metric("trunkline_aborts_total").await, 1.0);
    let tokens = router.app.served.stats.borrow().output_tokens as usize;
    // In addition to the channel's 1,024 tokens, there are hyper's buffer, one write and the kernel's two buffers.
    let bytes_of_a_token = 1_000;
    assert!(tokens < 1_024 + (1 << 20) / bytes_of_a_token, "{tokens} tokens");
}

#[tokio::test]
async fn a_slow_body_takes_no_place() {
    let limits = Limits { max_concurrent_requests: Some(2), ..Limits::default() };
    let router = Router::start(ShardPlan::default(), limits).await;
    let whole = post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1}).to_string());
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut connection = router.connect().await;
        connection.stream.write_all(&whole[..whole.len() - 1]).await.unwrap();
        slow.push(connection);
    }
    router.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1})).await.ok();
    assert_eq!(router.app.admission.open.available_permits(), 2);
    let mut last = slow.pop().unwrap();
    last.stream.write_all(&whole[whole.len() - 1..]).await.unwrap();
    assert_eq!(last.answer().await.status, 200);
}

/// The size of the largest body in the next tests. The memory for arriving bodies has room for 32 of them.
const LARGEST_BODY: usize = 256 << 10;

fn reading_limits() -> ServerLimits {
    let requests = Limits { max_body_bytes: LARGEST_BODY, ..Limits::default() };
    ServerLimits { min_requests_bytes: 0, ..requests.into() }
}

/// Returns a request for one token whose body has the largest size.
fn largest(key: &str) -> Vec<u8> {
    let mut body = json!({"prompt": "x", "max_tokens": 1}).to_string();
    body.extend(std::iter::repeat_n(' ', LARGEST_BODY - body.len()));
    format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-length: {LARGEST_BODY}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Sends the largest body again and again, all but the last byte, until one is refused. Returns the connections.
async fn fill_with_bodies(router: &Router, key: &str) -> Vec<Connection> {
    let whole = largest(key);
    let mut stalled = Vec::new();
    loop {
        assert!(stalled.len() < 60, "the memory suffices for more bodies than it should");
        let mut connection = router.connect().await;
        connection.stream.write_all(&whole[..whole.len() - 1]).await.unwrap();
        stalled.push(connection);
        let mut next = router.connect().await;
        next.stream.write_all(&whole).await.unwrap();
        let answer = next.answer().await;
        if answer.status != 200 {
            answer.fails(429, "too_many_bodies");
            assert_eq!(answer.header("retry-after"), Some("1"));
            return stalled;
        }
    }
}

#[tokio::test]
async fn a_tenant_whose_bodies_stall_leaves_memory_to_others() {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), reading_limits()).await;
    let stalled = fill_with_bodies(&router, ALICE).await;
    let mut other = router.connect().await;
    other.stream.write_all(&largest(BOB)).await.unwrap();
    other.answer().await.ok();
    // Small bodies are always read.
    let small = json!({"prompt": "x", "max_tokens": 1});
    for key in [ALICE, BOB] {
        router.ask(key, "POST", COMPLETIONS, &small).await.ok();
    }
    drop(stalled);
}

#[tokio::test]
async fn without_keys_an_address_whose_bodies_stall_leaves_memory_to_others() {
    let router = Router::start(ShardPlan::default(), reading_limits()).await;
    let stalled = fill_with_bodies(&router, "").await;
    let mut other = router.connect_from_other().await;
    other.stream.write_all(&largest("")).await.unwrap();
    other.answer().await.ok();
    router.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1})).await.ok();
    drop(stalled);
}

#[tokio::test]
async fn a_body_that_arrives_during_a_drain_is_refused() {
    let mut router = Router::start(ShardPlan::default(), reading_limits()).await;
    let free = router.app.admission.requests.free.clone();
    let all = free.available_permits();
    let whole = largest("");
    let mut connection = router.connect().await;
    connection.stream.write_all(&whole[..whole.len() - 1]).await.unwrap();
    eventually("the body", async || free.available_permits() < all).await;
    router.terminate();
    let refused = connection.answer().await;
    refused.fails(503, "draining");
    assert!(refused.header("retry-after").is_some());
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn two_hundred_slow_connections_do_not_delay_others() {
    // All sequences run at the same time, so a normal request never waits for the tokens of a slow one.
    let plan = ShardPlan {
        num_blocks: 16_384,
        max_step_sequences: 256,
        max_step_tokens: 512,
        ..ShardPlan::endless()
    };
    let router = Router::with(plan).await;
    let body = json!({"prompt": vec![7; 40], "max_tokens": 5}).to_string();
    let (whole, large) = (post(COMPLETIONS, &body), large_stream(300));
    let mut slow = Vec::new();
    for number in 0..200 {
        let mut stream = connect_narrow(&router).await;
        let sent = match number % 3 {
            0 => &whole[..20],
            1 => &whole[..whole.len() - 1 - number % 50],
            _ => &large[..],
        };
        stream.write_all(sent).await.unwrap();
        slow.push((stream, sent.len()));
    }
    // Meanwhile the slow clients send or read one byte each.
    for round in 0..5 {
        for (number, (stream, sent)) in slow.iter_mut().enumerate() {
            if number % 3 == 2 {
                // Some connections may already be closed.
                let _ = tokio::time::timeout(Duration::from_millis(1), stream.read_u8()).await;
            } else if number % 3 == 0 || *sent + 1 < whole.len() {
                stream.write_all(&whole[*sent..=*sent]).await.unwrap();
                *sent += 1;
            }
        }
        let answer = router.post(COMPLETIONS, &json!({"prompt": [round + 1, 2], "max_tokens": 3})).await.ok();
        assert_eq!(answer["choices"][0]["text"], "xxx");
        assert_eq!(router.get("/readyz").await.status, 200);
    }
    // One client of each kind continues normally.
    let (mut stream, sent) = slow.swap_remove(0);
    stream.write_all(&whole[sent..]).await.unwrap();
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await.unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    drop((stream, slow));
    router.wait_idle().await;
    router.wait_places().await;
}

#[tokio::test]
async fn a_thousand_starts_and_drops_leave_every_gauge_at_zero() {
    let plan = ShardPlan { num_blocks: 4_096, ..ShardPlan::endless() };
    let router = Router::with(plan).await;
    for number in 0..1_000_u32 {
        let body = json!({
            "prompt": vec![number; 1 + (7 * number % 90) as usize], "max_tokens": 50 + number % 900,
            "stream": number % 2 == 0, "n": 1 + number % 3,
        });
        let whole = post(COMPLETIONS, &body.to_string());
        let mut stream = TcpStream::connect(router.address).await.unwrap();
        // Some clients leave in the middle of the body, some after it, and some after the first byte of the answer.
        let sent = if number % 5 == 0 { whole.len() / 2 } else { whole.len() };
        stream.write_all(&whole[..sent]).await.unwrap();
        if number % 5 == 1 && number % 2 == 0 {
            let first = tokio::time::timeout(DEADLINE, stream.read_u8()).await.expect("an answer");
            assert_eq!(first.unwrap(), b'H');
        }
    }
    router.post(COMPLETIONS, &json!({"prompt": "x", "max_tokens": 1})).await.ok();
    router.wait_idle().await;
    router.wait_places().await;
    // The last plan only ends sequences that the previous one computed.
    router.wait("no step to be under way", |app| app.served.stats.borrow().steps_in_flight == 0).await;
    for gauge in [
        "trunkline_running_sequences",
        "trunkline_queued_sequences",
        "trunkline_steps_in_flight",
        "trunkline_kv_blocks_held",
        "trunkline_kv_blocks_pinned",
        "trunkline_kv_blocks_late",
        "trunkline_kv_usage_ratio",
        "trunkline_object_waiting_blocks",
        "trunkline_unexpected_results_total",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    ] {
        assert_eq!(router.metric(gauge).await, 0.0, "{gauge}");
    }
    assert!(router.metric("trunkline_kv_blocks").await > 0.0);
}

#[tokio::test]
async fn a_client_that_does_not_read_a_whole_answer_is_disconnected_and_its_memory_returns() {
    let limits = Limits { client_stall_timeout: Duration::from_millis(200), ..Limits::default() };
    let router = Router::start(ShardPlan::endless(), limits).await;
    let mut slow = connect_narrow(&router).await;
    let body = json!({"messages": user("x"), "max_tokens": 900, "logprobs": true, "top_logprobs": 20});
    slow.write_all(&post(CHATS, &body.to_string())).await.unwrap();
    let free = &router.app.admission.answers.free;
    let all = free.available_permits();
    router.wait("some tokens", |app| app.served.stats.borrow().output_tokens > 200).await;
    eventually("a whole answer", async || free.available_permits() < all).await;
    wait_answers(&router).await;
    router.wait_idle().await;
    assert_eq!(router.metric("trunkline_stalled_connections_total").await, 1.0);
}

#[tokio::test]
async fn clients_that_do_not_read_whole_answers_hold_bounded_memory_and_others_are_served() {
    let router = Router::start(ShardPlan::default(), answer_limits()).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = connect_narrow(&router).await;
        stream.write_all(&post("/tokenize", &large_text().to_string())).await.unwrap();
        slow.push(stream);
    }
    // Until the slow clients hold the memory, another one may find enough of it.
    let refused = loop {
        let answer = router.post("/tokenize", &large_text()).await;
        if answer.status != 200 {
            break answer;
        }
    };
    refused.fails(503, "too_many_answers");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let short = json!({"prompt": "x", "max_tokens": 1});
    for _ in 0..3 {
        router.post(COMPLETIONS, &short).await.ok();
    }
    assert_eq!(router.get("/readyz").await.status, 200);
    // A client that has read a part of its answer still holds it.
    slow.truncate(5);
    for stream in &mut slow {
        stream.read_u8().await.unwrap();
    }
    drop(slow);
    wait_answers(&router).await;
    let answer = router.post("/tokenize", &large_text()).await.ok();
    assert_eq!(answer.as_array().unwrap().len(), 16_000);
    wait_answers(&router).await;
}

#[tokio::test]
async fn a_tenant_whose_clients_do_not_read_leaves_memory_to_others() {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), answer_limits()).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = connect_narrow(&router).await;
        let body = large_text().to_string();
        let head = format!("x-api-key: {ALICE}\r\ncontent-length: {}\r\n\r\n", body.len());
        let whole = format!("POST /tokenize HTTP/1.1\r\nhost: x\r\n{head}{body}");
        stream.write_all(whole.as_bytes()).await.unwrap();
        slow.push(stream);
    }
    let small = json!({"inputs": "x".repeat(4_000)});
    loop {
        let answer = router.ask(ALICE, "POST", "/tokenize", &large_text()).await;
        if answer.status != 200 {
            answer.fails(503, "too_many_answers");
            break;
        }
    }
    for _ in 0..3 {
        assert_eq!(router.ask(BOB, "POST", "/tokenize", &small).await.status, 200);
    }
    drop(slow);
    wait_answers(&router).await;
}

#[tokio::test]
async fn an_answer_that_cannot_fit_is_refused_or_ends() {
    let router = Router::start(ShardPlan::endless(), answer_limits()).await;
    let endless = json!({"prompt": [1, 2], "max_tokens": 5000, "logprobs": 5});
    // These tokens are certain, so nothing is computed.
    for fields in [json!({"ignore_eos": true}), json!({"min_tokens": 5000})] {
        router.post(COMPLETIONS, &with(endless.clone(), fields)).await.fails(400, "answer_too_large");
    }
    assert_eq!(router.app.served.stats.borrow().output_tokens, 0);
    // These are not, so the output ends when it has become too large.
    let problem = router.post(COMPLETIONS, &endless).await.fails(400, "answer_too_large");
    assert!(problem.contains("hint: set `stream`"), "{problem}");
    router.wait_idle().await;
    let tokens = router.app.served.stats.borrow().output_tokens;
    assert!(tokens > 0 && tokens < 5000, "{tokens} tokens");
    router.post("/tokenize", &json!({"inputs": "x".repeat(100_000)})).await.fails(422, "answer_too_large");
    wait_answers(&router).await;
    let streamed = with(endless, json!({"stream": true, "max_tokens": 4000}));
    assert!(router.post(COMPLETIONS, &streamed).await.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn what_an_answer_repeats_of_its_prompt_is_charged_for_each_output() {
    let limits = ServerLimits { max_answers_bytes: 1 << 20, ..ServerLimits::default() };
    let router = Router::start(ShardPlan::saying("x"), limits).await;
    let (text, long) = ("a".repeat(500), "a".repeat(8_000));
    let of_tgi =
        |fields: Value| with(json!({"do_sample": true, "max_new_tokens": 1, "details": true}), fields);
    for (path, one, many, count) in [
        (
            "/generate",
            json!({"inputs": text, "parameters": of_tgi(json!({"decoder_input_details": true}))}),
            32,
            "best_of",
        ),
        (
            "/generate",
            json!({"inputs": long, "parameters": of_tgi(json!({"return_full_text": true}))}),
            120,
            "best_of",
        ),
        (COMPLETIONS, json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 1}), 32, "n"),
        (COMPLETIONS, json!({"prompt": text, "prompt_logprobs": 1, "max_tokens": 1}), 32, "n"),
        (COMPLETIONS, json!({"prompt": long, "return_token_ids": true, "max_tokens": 1}), 60, "n"),
        (COMPLETIONS, json!({"prompt": long, "echo": true, "max_tokens": 1}), 120, "n"),
    ] {
        router.post(path, &one).await.ok();
        router.wait_idle().await;
        let num_tokens = router.app.served.stats.borrow().output_tokens;
        let mut body = one.clone();
        let fields = if count == "n" { &mut body } else { &mut body["parameters"] };
        fields[count] = many.into();
        let refused = router.post(path, &body).await;
        refused.fails(if path == COMPLETIONS { 400 } else { 422 }, "answer_too_large");
        assert_eq!(
            router.app.served.stats.borrow().output_tokens,
            num_tokens,
            "{body:.80}: something was computed"
        );
    }
    wait_answers(&router).await;
}
