//! The client: one thread that reads many streams and only counts their events.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::stamps::message_of;

/// A route that streams. Some events of a response carry no token; they are listed for each route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's chat completions. Before the tokens: the role. After them: the finish reason and `[DONE]`.
    Chat,
    /// Anthropic's messages. Before the tokens: the message, a ping and the block. After them: their ends.
    Messages,
    /// OpenAI's responses. Before the tokens: the response twice, the item and the part. After them: the ends of text,
    /// part, item and response.
    Responses,
}

impl Api {
    /// Returns the number of events before the first token.
    fn num_before(self) -> u64 {
        match self {
            Self::Chat => 1,
            Self::Messages => 3,
            Self::Responses => 4,
        }
    }

    /// Returns the number of events of a response that carry no token.
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
/// The size of the read buffer.
const READ_BYTES: usize = 64 << 10;
/// The longest time that all streams may take.
const RUN_LIMIT: Duration = Duration::from_secs(120);
/// The bytes that end a chunked body.
const BODY_END: &[u8] = b"\r\n0\r\n\r\n";

/// The requests of each stream.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub api: Api,
    /// The number of requests, which one connection sends one after the other.
    pub answers: u32,
    /// The number of tokens in each response.
    pub answer_tokens: u32,
}

/// Connections that have sent their first request.
pub struct Streams {
    runtime: Runtime,
    streams: Vec<Stream>,
}

/// The measurements of the client.
pub struct Outcome {
    pub took: Duration,
    pub tokens: u64,
    /// The number of received bytes, with chunk headers.
    pub bytes: u64,
    pub reads: u64,
    /// The time at which each token was read, by stream.
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

    /// Waits for each stream's first event, which carries no token.
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

    /// Reads all responses to their ends.
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
    /// The number of events of the current response.
    events: u64,
    /// The last bytes that were read, because the end of an event or of a body may be split between two reads.
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
        let head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
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

    /// Reads once and counts the events that are now complete.
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

/// Counts the empty lines, each of which ends an event. JSON and chunk headers have none.
fn count_event_ends(bytes: &[u8]) -> u64 {
    bytes.iter().zip(&bytes[1..]).map(|(a, b)| u64::from(*a == b'\n' && *b == b'\n')).sum()
}
