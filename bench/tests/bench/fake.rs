//! A server that streams as many events as it is told, when it is told, and remembers what it was asked.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16, &'static str),
    /// Events with output, each with the time that passes before it, and then the end.
    Stream(Vec<Duration>, End),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// Usage with so many cached tokens, and `[DONE]`.
    Whole { cached: u64 },
    /// The last event, and no usage.
    Uncounted,
    /// The connection is cut.
    Cut,
    /// An event with an error.
    Error,
    /// Nothing more comes.
    Stall,
}

/// A request that came, and when each event of its answer was written.
#[derive(Clone, Debug)]
pub struct Asked {
    pub body: Value,
    pub authorization: Option<String>,
    pub connection: usize,
    pub at: Instant,
    pub written: Vec<Instant>,
}

pub struct Fake {
    pub url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts a server whose answer depends on the number of the request (the two probes are 0 and 1) and its body.
    pub async fn start(reply: impl Fn(usize, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (reply, log) = (Arc::new(reply), Arc::clone(&asked));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (reply, log) = (Arc::clone(&reply), Arc::clone(&log));
                // A client that leaves in the middle is no failure of the test.
                connections.spawn(async move { serve(stream, number, &*reply, &log).await.ok() });
            }
        });
        Self { url, asked, task }
    }

    /// Returns the number of requests, with the probes.
    pub fn num_asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// Returns the requests after the two probes.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().skip(2).cloned().collect()
    }
}

/// Streams `count` events at once.
pub fn at_once(count: u64) -> Reply {
    Reply::Stream(vec![Duration::ZERO; count as usize], End::Whole { cached: 0 })
}

/// Streams as many events as the request asks for.
pub fn as_asked(body: &Value) -> Reply {
    at_once(body["max_tokens"].as_u64().unwrap())
}

async fn serve(
    stream: TcpStream,
    connection: usize,
    reply: &(dyn Fn(usize, &Value) -> Reply + Send + Sync),
    log: &Mutex<Vec<Asked>>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let (mut length, mut authorization, mut first) = (0, None, String::new());
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap()
                }
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    authorization = Some(value.to_owned());
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        if first.starts_with("GET") {
            whole(&mut stream, 200, &json!({"data": [{"id": "fake"}]}).to_string()).await?;
            continue;
        }
        let body: Value = serde_json::from_slice(&body).unwrap();
        let number = {
            let mut log = log.lock().unwrap();
            let at = Instant::now();
            log.push(Asked { body: body.clone(), authorization, connection, at, written: Vec::new() });
            log.len() - 1
        };
        match reply(number, &body) {
            Reply::Status(status, text) => whole(&mut stream, status, text).await?,
            Reply::Stream(pauses, end) => {
                stream_events(&mut stream, &body, &pauses, end, |at| {
                    log.lock().unwrap()[number].written.push(at)
                })
                .await?;
                if end == End::Cut {
                    return Ok(());
                }
            }
        }
    }
}

async fn whole(stream: &mut BufReader<TcpStream>, status: u16, text: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nserver: fake/1\r\nretry-after: 0\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all((head + text).as_bytes()).await
}

async fn stream_events(
    stream: &mut BufReader<TcpStream>,
    body: &Value,
    pauses: &[Duration],
    end: End,
    mut on_write: impl FnMut(Instant),
) -> io::Result<()> {
    let is_chat = body["messages"].is_array();
    stream.write_all(b"HTTP/1.1 200 OK\r\nserver: fake/1\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    if is_chat {
        event(stream, &json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]}).to_string())
            .await?;
    }
    for (number, pause) in pauses.iter().enumerate() {
        tokio::time::sleep(*pause).await;
        let finish = (number + 1 == pauses.len() && end != End::Cut).then_some("length");
        let text = format!(" t{number}");
        let choice = if is_chat {
            json!({"delta": {"content": text}, "finish_reason": finish})
        } else {
            json!({"text": text, "finish_reason": finish})
        };
        on_write(Instant::now());
        event(stream, &json!({"choices": [choice]}).to_string()).await?;
    }
    match end {
        End::Whole { cached } => {
            let details = json!({"cached_tokens": cached});
            let (prompt, output) = (words(body), pauses.len());
            let usage = json!({"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details});
            event(stream, &json!({"choices": [], "usage": usage}).to_string()).await?;
            event(stream, "[DONE]").await?;
        }
        End::Uncounted => {}
        End::Error => event(stream, &json!({"error": {"message": "the shard is lost"}}).to_string()).await?,
        End::Cut => return Ok(()),
        End::Stall => std::future::pending().await,
    }
    stream.write_all(b"0\r\n\r\n").await
}

async fn event(stream: &mut BufReader<TcpStream>, data: &str) -> io::Result<()> {
    let event = format!("data: {data}\n\n");
    stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await
}

/// Counts a token for each word.
fn words(body: &Value) -> usize {
    let text = |value: &Value| value.as_str().map_or(0, |text| text.split_whitespace().count());
    match &body["messages"] {
        Value::Array(messages) => messages.iter().map(|message| text(&message["content"])).sum(),
        _ => text(&body["prompt"]),
    }
}
