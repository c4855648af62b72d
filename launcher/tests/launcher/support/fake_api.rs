//! A server that speaks just enough of OpenAI's API. What it answers depends on the last message.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::wait_for;

/// The key without which `locked` is not answered.
pub const KEY: &str = "key-of-a-test-only";

/// Runs until the test program ends.
pub struct FakeApi {
    pub url: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    bodies: Vec<Value>,
    /// Streams whose client left before their end.
    left: usize,
}

impl FakeApi {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Seen::default()));
        let all = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&all);
                // A client that leaves ends its thread.
                thread::spawn(move || serve(stream, &seen));
            }
        });
        Self { url, seen }
    }

    /// Returns the messages of the request with this number.
    pub fn messages(&self, number: usize) -> Value {
        self.body(number)["messages"].clone()
    }

    pub fn body(&self, number: usize) -> Value {
        wait_for(&format!("request {number}"), || self.seen.lock().unwrap().bodies.get(number).cloned())
    }

    pub fn wait_until_left(&self) {
        wait_for("the client to leave", || (self.seen.lock().unwrap().left > 0).then_some(()));
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Seen>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut out = stream;
    let (mut path, mut length, mut has_key) = (String::new(), 0, false);
    let mut lines = reader.by_ref().lines();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            break;
        }
        if path.is_empty() {
            path = line.split(' ').nth(1)?.to_owned();
        } else if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            length = value.parse().ok()?;
        } else if line == format!("authorization: Bearer {KEY}") {
            has_key = true;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let whole = |out: &mut TcpStream, status: &str, body: &str| {
        write!(out, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
            .ok()
    };
    match path.as_str() {
        "/readyz" => return whole(&mut out, "200 OK", "{}"),
        "/v1/models" => {
            return whole(&mut out, "200 OK", r#"{"data":[{"id":"fake/small"},{"id":"fake/coder"}]}"#);
        }
        "/metrics" => {
            let text = "trunkline_running_sequences 3\ntrunkline_output_tokens_total 7\ntrunkline_lane_ready{lane=\"0\"} 1\n";
            return whole(&mut out, "200 OK", text);
        }
        "/v1/chat/completions" => {}
        _ => return whole(&mut out, "404 Not Found", "{}"),
    }
    let body: Value = serde_json::from_slice(&body).ok()?;
    let last = body["messages"].as_array()?.last()?.clone();
    let count = {
        let mut seen = seen.lock().unwrap();
        seen.bodies.push(body);
        seen.bodies.len()
    };
    let text = last["content"].as_str()?.to_owned();
    if text == "locked" && !has_key {
        return whole(&mut out, "401 Unauthorized", r#"{"error": {"message": "no key"}}"#);
    }
    if text == "refuse" {
        let error = json!({"error": {"message": "`temperature` is 101, the limit is 100"}});
        return whole(&mut out, "400 Bad Request", &error.to_string());
    }
    write!(out, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .ok()?;
    let outcome = answer(&mut out, last["role"].as_str()?, &text, count);
    if outcome.is_none() {
        seen.lock().unwrap().left += 1;
    }
    outcome
}

fn chunk(out: &mut TcpStream, text: &str) -> Option<()> {
    write!(out, "{:x}\r\n{text}\r\n", text.len()).ok()
}

fn delta(out: &mut TcpStream, delta: &Value) -> Option<()> {
    chunk(out, &format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]})))
}

fn answer(out: &mut TcpStream, role: &str, text: &str, count: usize) -> Option<()> {
    let mut finish = "stop";
    match text.split_once(' ').unwrap_or((text, "")) {
        ("count", _) => {
            for number in 0u64.. {
                delta(out, &json!({"content": format!("{number} ")}))?;
                // The client must be able to press a key in between.
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        ("break", _) if count == 1 => {
            delta(out, &json!({"content": "half of "}))?;
            // The end of the connection without the last chunk.
            return Some(());
        }
        ("wait", _) => {
            chunk(out, ": model coder is loading, 40 %, for 3 s\n\n")?;
            // Until the client leaves.
            out.read_exact(&mut [0]).ok()?;
        }
        ("think", _) => {
            delta(out, &json!({"reasoning_content": "hm, "}))?;
            delta(out, &json!({"content": "**so**"}))?;
        }
        ("add", _) => {
            let function = json!({"name": "add", "arguments": "{\"a\": 2}"});
            delta(out, &json!({"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}))?;
            finish = "tool_calls";
        }
        _ => {
            let answer =
                if role == "tool" { format!("the tool said {text}") } else { format!("you said {text}") };
            for c in answer.chars() {
                delta(out, &json!({"content": c.to_string()}))?;
            }
        }
    }
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
    let details = json!({"cached_tokens": 8});
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": details});
    chunk(
        out,
        &format!("data: {end}\n\ndata: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": usage})),
    )?;
    chunk(out, "")
}
