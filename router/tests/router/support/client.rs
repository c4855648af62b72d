//! A small HTTP/1.1 client that gives tests access to the raw bytes.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::DEADLINE;

/// A connection to the router.
pub struct Connection {
    pub stream: TcpStream,
    received: Vec<u8>,
}

/// A complete answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Returns the answer's JSON. Panics if the status is not 200.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Asserts that the answer is this error, in any dialect's form, and returns its message.
    #[track_caller]
    pub fn fails(&self, status: u16, code: &str) -> String {
        let json = self.json();
        // TGI's errors have no `error` object.
        let (error, message) = match &json["error"] {
            Value::String(message) => (&json, message.as_str()),
            error => (error, error["message"].as_str().unwrap_or_default()),
        };
        assert_eq!((self.status, error["code"].as_str()), (status, Some(code)), "{json}");
        message.to_owned()
    }

    /// Asserts that the answer has this status and contains `words`.
    #[track_caller]
    pub fn refuses(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{}", self.text());
        assert!(self.text().contains(words), "no {words} in {}", self.text());
    }

    /// Returns the number of prompt tokens that were found in the KV cache.
    #[track_caller]
    pub fn cached_tokens(&self) -> u64 {
        self.ok()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    }

    /// Returns the name and the data of each event.
    pub fn named_events(&self) -> Vec<(String, Value)> {
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap().to_owned();
            (name, serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap())
        };
        self.text().split_terminator("\n\n").map(event).collect()
    }

    /// Returns the lines of the answer as JSON.
    #[track_caller]
    pub fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/x-ndjson"));
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the data of the answer's events as JSON, or as a string for `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        sse_data(&self.text())
    }
}

/// Returns the data of all complete events in a text.
pub fn sse_data(text: &str) -> Vec<Value> {
    let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    events.map(|data| serde_json::from_str(data).unwrap_or_else(|_| Value::from(data))).collect()
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), received: Vec::new() }
    }

    /// Connects from this address of the machine.
    pub async fn open_from(source: IpAddr, address: SocketAddr) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        Self { stream: socket.connect(address).await.unwrap(), received: Vec::new() }
    }

    /// Sends a request and reads the complete answer. The connection stays open.
    pub async fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send(method, path, body).await;
        self.answer().await
    }

    /// Sends a request with additional headers and reads the complete answer.
    pub async fn request_with(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        self.send_with(method, path, headers, body).await;
        self.answer().await
    }

    /// Sends a request with additional headers without reading the answer.
    pub async fn send_with(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\n{headers}content-length: {length}\r\n\r\n");
        self.stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    }

    pub async fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        self.stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    }

    /// Reads until `enough` returns true for everything received. Returns false if the stream ends first.
    pub async fn read_until(&mut self, enough: impl Fn(&[u8]) -> bool) -> bool {
        let read = async {
            while !enough(&self.received) {
                if self.stream.read_buf(&mut self.received).await.unwrap() == 0 {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(DEADLINE, read).await.expect("bytes arrive in time")
    }

    /// Returns the bytes that were received but not yet parsed.
    pub fn received(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    pub async fn answer(&mut self) -> Answer {
        assert!(self.read_until(|bytes| head_end(bytes).is_some()).await, "no header: {}", self.received());
        let end = head_end(&self.received).unwrap();
        let head = String::from_utf8(self.received[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(key, value)| (key.to_lowercase(), value.to_owned()))
            .collect();
        self.received.drain(..end);
        let answer = Answer { status, headers, body: Vec::new() };
        let body = if answer.header("transfer-encoding") == Some("chunked") {
            let (body, used) = loop {
                if let Some(done) = dechunk(&self.received) {
                    break done;
                }
                let before = self.received.len();
                assert!(self.read_until(|bytes| bytes.len() > before).await, "cut off: {}", self.received());
            };
            self.received.drain(..used);
            body
        } else {
            let length: usize = answer.header("content-length").unwrap_or("0").parse().unwrap();
            assert!(self.read_until(|bytes| bytes.len() >= length).await, "cut off");
            self.received.drain(..length).collect()
        };
        Answer { body, ..answer }
    }
}

fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// Decodes a chunked body and returns it with its encoded length, or `None` before the last chunk.
fn dechunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = bytes[at..].windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[at..at + line]).unwrap(), 16).unwrap();
        let begin = at + line + 2;
        body.extend_from_slice(bytes.get(begin..begin + size)?);
        at = begin + size + 2;
        if bytes.len() < at {
            return None;
        }
        if size == 0 {
            return Some((body, at));
        }
    }
}
