//! Many streams read by one thread: it counts events and looks at nothing else in them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::stamps::message_of;

/// A route that streams, and how many events of an answer bring no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's chats: the role; the finish reason, `[DONE]`.
    Chat,
    /// Anthropic's messages: the message, a ping, the block; their ends.
    Messages,
    /// OpenAI's responses: the answer twice, the item, the part; the ends of text, part, item and answer.
    Responses,
}

impl Api {
    /// Events before the first token.
    fn num_before(self) -> u64 {
        match self {
            Self::Chat => 1,
            Self::Messages => 3,
            Self::Responses => 4,
        }
    }

    /// Events of an answer that bring no token.
    pub fn num_empty(self) -> u64 {
        match self {
            Self::Chat => 3,
            Self::Messages => 6,
            Self::Responses => 8,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }

    fn body(self, text: &str, num_tokens: u32) -> serde_json::Value {
        let messages = serde_json::json!([{"role": "user", "content": text}]);
        match self {
            Self::Chat => serde_json::json!({
                "messages": messages, "max_tokens": num_tokens, "ignore_eos": true, "stream": true,
            }),
            Self::Messages => {
                serde_json::json!({"messages": messages, "max_tokens": num_tokens, "stream": true})
            }
            Self::Responses => serde_json::json!({
                "input": messages, "max_output_tokens": num_tokens, "stream": true, "store": false,
            }),
        }
    }
}
/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Longest run.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// What a chunked body ends with.
const BODY_END: &[u8] = b"\r\n0\r\n\r\n";

/// What each stream asks for.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How it is asked for.
    pub api: Api,
    /// Answers, one after the other on one connection.
    pub answers: u32,
    /// Tokens of each.
    pub answer_tokens: u32,
}

/// Connections whose first request is sent.
pub struct Streams {
    runtime: Runtime,
    streams: Vec<Stream>,
}

/// What came.
pub struct Outcome {
    pub took: Duration,
    pub tokens: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    pub reads: u64,
    /// By stream, when each token was read.
    pub arrivals: Vec<Vec<Instant>>,
}

impl Streams {
    /// Opens `num` connections and sends a request on each.
    pub fn open(address: SocketAddr, num: usize, load: Load) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let streams = runtime.block_on(async {
            let mut streams = Vec::new();
            for index in 0..num {
                streams.push(Stream::open(address, index, load).await?);
            }
            anyhow::Ok(streams)
        })?;
        Ok(Self { runtime, streams })
    }

    /// Waits until each stream's first event, which brings no token, is there.
    pub fn wait_for_first_events(&mut self) -> anyhow::Result<()> {
        self.runtime.block_on(async {
            for stream in &mut self.streams {
                while stream.events == 0 {
                    stream.read().await?;
                }
            }
            Ok(())
        })
    }

    /// Reads all answers to their ends.
    pub fn run(&mut self) -> anyhow::Result<Outcome> {
        let begin = Instant::now();
        let streams = std::mem::take(&mut self.streams);
        let all = async {
            let mut set = JoinSet::new();
            for stream in streams {
                set.spawn(stream.run());
            }
            let mut done = Vec::new();
            while let Some(stream) = set.join_next().await {
                done.push(stream??);
            }
            anyhow::Ok(done)
        };
        let mut done = self
            .runtime
            .block_on(async { tokio::time::timeout(RUN_LIMIT, all).await })
            .with_context(|| format!("the streams did not end in {} s", RUN_LIMIT.as_secs()))??;
        let took = begin.elapsed();
        done.sort_by_key(|stream| stream.index);
        Ok(Outcome {
            took,
            tokens: done.iter().map(|stream| stream.arrivals.len() as u64).sum(),
            bytes: done.iter().map(|stream| stream.bytes).sum(),
            reads: done.iter().map(|stream| stream.reads).sum(),
            arrivals: done.into_iter().map(|stream| stream.arrivals).collect(),
        })
    }
}

struct Stream {
    index: usize,
    socket: TcpStream,
    load: Load,
    buffer: Vec<u8>,
    /// Events of this answer.
    events: u64,
    /// The bytes read last, as many as an end of an event or of a body may be cut into.
    tail: Vec<u8>,
    bytes: u64,
    reads: u64,
    arrivals: Vec<Instant>,
}

impl Stream {
    async fn open(address: SocketAddr, index: usize, load: Load) -> anyhow::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let arrivals = Vec::with_capacity((load.answers * load.answer_tokens) as usize);
        let buffer = vec![0; READ_BYTES];
        let mut stream =
            Self { index, socket, load, buffer, events: 0, tail: Vec::new(), bytes: 0, reads: 0, arrivals };
        stream.ask().await?;
        Ok(stream)
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        let (api, num_tokens) = (self.load.api, self.load.answer_tokens);
        let body = api.body(&message_of(self.index), num_tokens).to_string();
        let head = "HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n";
        let request = format!("POST {} {head}content-length: {}\r\n\r\n{body}", api.path(), body.len());
        self.socket.write_all(request.as_bytes()).await?;
        Ok(())
    }

    async fn run(mut self) -> anyhow::Result<Self> {
        for answer in 1..=self.load.answers {
            while !self.tail.ends_with(BODY_END) {
                self.read().await?;
            }
            let (events, wanted) =
                (self.events, u64::from(self.load.answer_tokens) + self.load.api.num_empty());
            ensure!(events == wanted, "stream {}: {events} events, not {wanted}", self.index);
            if answer < self.load.answers {
                self.events = 0;
                self.tail.clear();
                self.ask().await?;
            }
        }
        Ok(self)
    }

    /// One read, and the events that it completes.
    async fn read(&mut self) -> anyhow::Result<()> {
        let num = self.socket.read(&mut self.buffer).await?;
        ensure!(num > 0, "stream {} was closed in the middle", self.index);
        let now = Instant::now();
        let bytes = &self.buffer[..num];
        let cut = self.tail.last() == Some(&b'\n') && bytes[0] == b'\n';
        let events = count_event_ends(bytes) + u64::from(cut);
        let keep = bytes.len().saturating_sub(BODY_END.len());
        self.tail.extend_from_slice(&bytes[keep..]);
        self.tail.drain(..self.tail.len().saturating_sub(BODY_END.len()));
        self.bytes += num as u64;
        self.reads += 1;
        let first = self.load.api.num_before();
        let tokens = first..first + u64::from(self.load.answer_tokens);
        for event in self.events..self.events + events {
            if tokens.contains(&event) {
                self.arrivals.push(now);
            }
        }
        self.events += events;
        Ok(())
    }
}

/// Empty lines of an event stream: JSON and chunk headers have none.
fn count_event_ends(bytes: &[u8]) -> u64 {
    bytes.iter().zip(&bytes[1..]).map(|(a, b)| u64::from(*a == b'\n' && *b == b'\n')).sum()
}
