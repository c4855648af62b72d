//! HTTP client of a server: short questions, and the stream of a reply.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use ureq::http::Request;
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

use crate::error::Error;
use crate::sse::{self, Event};
use crate::status::StatusLine;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer that a server gives at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, except streams.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// What `/readyz` says before the first shard is ready, and how often it is asked.
const LOADING: &str = "model_loading";
const LOADING_INTERVAL: Duration = Duration::from_millis(250);
const READ_BYTES: usize = 16 << 10;
/// Events that may wait for a terminal that is slower than the server, which then waits.
const MAX_PENDING_EVENTS: usize = 1024;

/// Says why a connection failed for lack of trust; `None` for another failure.
pub type Explain = Arc<dyn Fn(&ureq::Error) -> Option<String> + Send + Sync>;

/// A server, and what a connection to it needs.
#[derive(Clone)]
pub struct Endpoint {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    pub url: String,
    pub key: Option<String>,
    pub tls: TlsConfig,
    pub explain: Explain,
}

/// A model of `GET /v1/models`, without fields that are not shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Model {
    pub id: String,
    /// Set for adapters.
    pub parent: Option<String>,
    pub max_model_len: Option<u64>,
    pub status: Option<ModelStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ModelStatus {
    pub value: String,
    pub detail: Option<String>,
    #[serde(default)]
    pub memory_bytes: u64,
    #[serde(default)]
    pub pinned: bool,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Failure {
    error: FailureBody,
}

/// The error in an answer, whose form depends on the dialect.
#[derive(Deserialize)]
#[serde(untagged)]
enum FailureBody {
    OpenAi { message: String },
    Plain(String),
}

/// A reply that is read by a thread. Dropping it closes the connection, so the server stops computing.
pub struct Stream {
    agent: Option<Agent>,
    /// The events, and at the end why there are no more. The end of the channel is the end of the stream.
    pub events: Receiver<Result<Event, Error>>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.shutdown();
        }
    }
}

impl Endpoint {
    fn agent(&self) -> Agent {
        Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            // A redirect would send the key to another server.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(self.tls.clone())
            .build()
            .into()
    }

    fn request(&self, path: &str) -> ureq::http::request::Builder {
        let request = Request::builder().uri(format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn away(&self, source: ureq::Error) -> Error {
        match (self.explain)(&source) {
            Some(reason) => Error::Untrusted(reason),
            None => Error::Away { url: self.url.clone(), source: Box::new(source) },
        }
    }

    /// Returns the status and the body of the answer to `GET path`.
    pub fn get(&self, path: &str) -> Result<(u16, Vec<u8>), Error> {
        let request = self.request(path).body(()).map_err(|error| self.away(error.into()))?;
        let agent = self.agent();
        let request = agent.configure_request(request).timeout_global(Some(ANSWER_TIMEOUT)).build();
        let mut answer = agent.run(request).map_err(|error| self.away(error))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        Ok((status, body.map_err(|error| self.away(error))?))
    }

    /// Waits while the server loads its model, and shows what it says. `stop` is set by Ctrl-C.
    pub fn wait_until_ready(&self, stop: &AtomicBool) -> Result<(), Error> {
        let mut status = StatusLine::new();
        loop {
            let (code, body) = self.get("/readyz")?;
            let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
            // Other servers may have no such route; what is wrong with this one, its answers will say.
            if code != 503 || answer["code"] != LOADING {
                return Ok(());
            }
            status.set(answer["error"].as_str().unwrap_or(LOADING));
            thread::sleep(LOADING_INTERVAL);
            if stop.swap(false, Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
        }
    }

    pub fn models(&self) -> Result<Vec<Model>, Error> {
        let (status, body) = self.get("/v1/models")?;
        if status != 200 {
            return Err(self.refusal(status, &body));
        }
        let models: Models = serde_json::from_slice(&body)
            .map_err(|error| Error::Foreign { url: self.url.clone(), problem: error.to_string() })?;
        Ok(models.data)
    }

    /// Asks for a reply in a stream.
    pub fn stream(&self, body: String) -> Stream {
        let agent = self.agent();
        let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
        let (endpoint, its_agent) = (self.clone(), agent.clone());
        thread::spawn(move || {
            if let Err(error) = endpoint.read_stream(&its_agent, body, &sender) {
                // Nobody listens any more.
                let _ = sender.send(Err(error));
            }
        });
        Stream { agent: Some(agent), events }
    }

    fn read_stream(
        &self,
        agent: &Agent,
        body: String,
        sender: &SyncSender<Result<Event, Error>>,
    ) -> Result<(), Error> {
        let request = self.request("/v1/chat/completions").method("POST");
        let request = request.header("content-type", "application/json").body(body);
        let request = request.map_err(|error| self.away(error.into()))?;
        let mut answer = agent.run(request).map_err(|error| self.away(error))?;
        let status = answer.status().as_u16();
        if status != 200 {
            let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
            return Err(self.refusal(status, &body.unwrap_or_default()));
        }
        self.read_events(answer.into_body(), sender)
    }

    fn read_events(&self, body: Body, sender: &SyncSender<Result<Event, Error>>) -> Result<(), Error> {
        let lost = |reason: String| Error::Lost { url: self.url.clone(), received: 0, reason };
        let mut reader = body.into_reader();
        let (mut parser, mut events, mut buffer) = (sse::Parser::default(), Vec::new(), [0; READ_BYTES]);
        loop {
            let count = reader.read(&mut buffer).map_err(|error| lost(error.to_string()))?;
            if count == 0 {
                return Ok(());
            }
            let outcome = parser.push(&buffer[..count], &mut events);
            for event in events.drain(..) {
                if sender.send(Ok(event)).is_err() {
                    return Ok(());
                }
            }
            outcome.map_err(|_| lost("it sent a line of more than 16 MiB".to_owned()))?;
        }
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Error {
        let url = self.url.clone();
        match (status, serde_json::from_slice::<Failure>(body)) {
            (401, _) => Error::Unauthorized { url },
            (_, Ok(Failure { error: FailureBody::OpenAi { message } | FailureBody::Plain(message) })) => {
                Error::Refused { url, status, message }
            }
            (_, Err(_)) => Error::Foreign { url, problem: format!("status {status}") },
        }
    }
}
