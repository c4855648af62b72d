//! HTTP client of a running server's `/v1/kv` routes.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use trunkline_bench::client::tls::Trust;
use trunkline_settings::KEY_VARIABLE;
use ureq::Agent;
use ureq::http::{Method, Request};

use super::trust::{TrustError, explain, tls_config};

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for a complete answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The same where a model is loaded or unloaded.
const LOAD_TIMEOUT: Duration = Duration::from_secs(3600);
/// The same for an answer that a server gives at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer that is read; a page of nodes has less than 1 MiB.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// Nodes per page, the most that a server allows.
const PAGE: usize = 1_000;
const MAX_NODES: usize = 1_000_000;

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("`--url` is `{url}`; expected `http://HOST:PORT` or `https://HOST:PORT`")]
    Url { url: String },
    #[error("the variable `{variable}` named by `--api-key-env` {problem}; hint: export it with the API key")]
    Key {
        variable: String,
        /// The problem, to follow the variable's name.
        problem: &'static str,
    },
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error(
        "no answer from `{url}`: {source}; hint: check that the server is running, for example with `curl \
         {url}/readyz`{}",
        if url.starts_with("http:") { ", and that it does not need `https://`" } else { "" }
    )]
    Away {
        url: String,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error(
        "`{url}` requires a valid API key; hint: name the environment variable that contains it with `--api-key-env`"
    )]
    Unauthorized { url: String },
    #[error("`{url}` answered {status}: {message}")]
    Refused { url: String, status: u16, message: String },
    #[error(
        "`{url}` did not answer like a Trunkline server: {problem}; hint: check the URL and that both have the same version"
    )]
    Foreign { url: String, problem: String },
}

impl ServerError {
    pub fn is_users_mistake(&self) -> bool {
        matches!(
            self,
            Self::Url { .. }
                | Self::Key { .. }
                | Self::Trust(TrustError::File { .. })
                | Self::Unauthorized { .. }
        )
    }
}

/// The answer of `GET /v1/kv`, without fields that are not shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Totals {
    pub block_size: u64,
    pub device: Device,
    pub host: Option<Disk>,
    pub disk: Option<Disk>,
    /// Only whether there is one.
    pub object_store: Option<IgnoredAny>,
    /// Only how many there are. Older servers have one and do not list it.
    #[serde(default)]
    pub lanes: Vec<IgnoredAny>,
    #[serde(default)]
    pub tenants: Vec<Tenant>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Device {
    pub blocks: u64,
    pub held: u64,
    pub cached: u64,
    pub bytes: u64,
    pub used_bytes: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Disk {
    pub slots: u64,
    pub blocks: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Tenant {
    pub tenant: Option<String>,
    pub device_blocks: u64,
    pub device_share_blocks: u64,
    pub device_pinned: u64,
    pub disk_blocks: Option<u64>,
    pub disk_pinned: Option<u64>,
}

/// An adapter of `GET /lora-adapters`, without fields that are not shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Adapter {
    pub name: String,
    pub state: String,
    pub rank: Option<u32>,
    pub num_bytes: Option<u64>,
    pub problem: Option<String>,
}

/// A model of `GET /v1/models`, without fields that are not shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Model {
    pub id: String,
    /// Set for adapters.
    pub parent: Option<String>,
    pub status: Option<ModelStatus>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelStatus {
    pub value: String,
    pub detail: Option<String>,
    pub memory_bytes: u64,
    pub pinned: bool,
}

/// A node of `GET /v1/kv/tree`.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    pub id: String,
    /// The number of the parent; [`Server::nodes`] adds that of the lane.
    pub parent: Option<u64>,
    pub first_token: u64,
    pub tokens: u64,
    pub blocks: u64,
    pub bytes: u64,
    pub stored: u64,
    pub hits: u64,
    pub age_ms: u64,
    #[serde(default)]
    pub held: u64,
    #[serde(default)]
    pub pinned: u64,
    #[serde(default)]
    pub disk_pinned: u64,
    #[serde(default)]
    pub pin_ends_in_ms: Option<u64>,
    #[serde(default)]
    pub prompt_cache_keys: Vec<String>,
    #[serde(default)]
    pub text: Option<String>,
}

impl Node {
    /// Returns the number by which children refer to this node, as [`node_number`] makes it.
    pub fn number(&self) -> Option<u64> {
        parse_number(self.id.split_once('-')?.0)
    }

    /// Returns the key of the last block, which is the same on disk.
    pub(crate) fn key(&self) -> &str {
        self.id.split_once('-').map_or("", |(_, key)| key)
    }
}

/// Returns a number for a node that no node of another lane has.
fn node_number(lane: u64, number: u64) -> Option<u64> {
    (number <= u32::MAX.into()).then_some(lane << 32 | number)
}

/// Returns the number of the node whose id begins with this text, such as `10`, or `1.10` on lane 1.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let (lane, number) = text.split_once('.').unwrap_or(("0", text));
    node_number(lane.parse::<u32>().ok()?.into(), number.parse().ok()?)
}

#[derive(Deserialize)]
struct Page {
    data: Vec<Node>,
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Removed {
    removed_blocks: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pinned {
    pub pinned_tokens: u64,
    pub disk_pinned_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Unpinned {
    unpinned_blocks: u64,
}

#[derive(Deserialize)]
struct Failure {
    error: FailureBody,
}

#[derive(Deserialize)]
struct FailureBody {
    message: String,
}

pub struct Server {
    agent: Agent,
    url: String,
    key: Option<String>,
    trust: Trust,
}

impl Server {
    /// Creates a client of the server at `url` with the API key in `key_variable`, or else in `TRUNKLINE_API_KEY`.
    pub fn new(url: &str, key_variable: Option<&str>, trust: Trust) -> Result<Self, ServerError> {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.trim_end_matches('/'));
        // User, path and query would be ignored.
        if host.is_none_or(|host| host.is_empty() || host.contains(['/', '?', '#', '@', ' '])) {
            return Err(ServerError::Url { url: url.to_owned() });
        }
        let key = match key_variable {
            None => std::env::var(KEY_VARIABLE).ok(),
            Some(variable) => {
                let fail = |problem| ServerError::Key { variable: variable.to_owned(), problem };
                Some(std::env::var(variable).map_err(|_| fail("is not set"))?)
                    .filter(|key| !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic()))
                    .map(Some)
                    .ok_or_else(|| fail("contains no API key"))?
            }
        };
        let agent = Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            // A redirect would send the key to another server.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls_config(&trust)?)
            .build();
        Ok(Self { agent: agent.into(), url: url.trim_end_matches('/').to_owned(), key, trust })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(crate) fn totals(&self) -> Result<Totals, ServerError> {
        self.ask(Method::GET, "/v1/kv", String::new())
    }

    pub(crate) fn adapters(&self) -> Result<Vec<Adapter>, ServerError> {
        self.ask(Method::GET, "/lora-adapters", String::new())
    }

    pub(crate) fn models(&self) -> Result<Vec<Model>, ServerError> {
        self.ask(Method::GET, "/v1/models", String::new()).map(|models: Models| models.data)
    }

    /// Loads, unloads, pins or unpins a model, and waits until that is done.
    pub(crate) fn manage(&self, model: &str, action: &str) -> Result<(), ServerError> {
        let path = format!("/v1/models/{model}/{action}");
        self.ask_patiently(Method::POST, &path, String::new(), LOAD_TIMEOUT).map(|_: Model| ())
    }

    /// Fetches all nodes that the key may see, of all lanes.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>, ServerError> {
        let mut nodes = Vec::new();
        for lane in 0..self.totals()?.lanes.len().max(1) as u64 {
            self.add_nodes(lane, &mut nodes)?;
        }
        Ok(nodes)
    }

    fn add_nodes(&self, lane: u64, nodes: &mut Vec<Node>) -> Result<(), ServerError> {
        let of_lane = if lane == 0 { String::new() } else { format!("&lane={lane}") };
        let first = format!("/v1/kv/tree?limit={PAGE}{of_lane}");
        let mut path = first.clone();
        loop {
            let page: Page = self.ask(Method::GET, &path, String::new())?;
            let is_empty = page.data.is_empty();
            nodes.extend(page.data.into_iter().map(|node| Node {
                parent: node.parent.and_then(|parent| node_number(lane, parent)),
                ..node
            }));
            match page.next {
                None => return Ok(()),
                Some(next) if is_empty => {
                    let problem = format!("an empty page names {next} as the next page");
                    return Err(ServerError::Foreign { url: self.url.clone(), problem });
                }
                Some(_) if nodes.len() >= MAX_NODES => {
                    let problem = format!("the tree has more than {MAX_NODES} nodes");
                    return Err(ServerError::Foreign { url: self.url.clone(), problem });
                }
                Some(next) => path = format!("{first}&after={next}"),
            }
        }
    }

    /// Fetches the text of a node; `None` if the server reveals no text.
    pub(crate) fn node_text(&self, node: &Node) -> Result<Option<String>, ServerError> {
        match self.ask::<Node>(Method::GET, &format!("/v1/kv/tree/{}?text=true", node.id), String::new()) {
            Ok(node) => Ok(node.text),
            // A server without API keys reveals no text.
            Err(ServerError::Refused { status: 403, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a node and everything that continues it; returns the number of removed blocks.
    pub(crate) fn remove(&self, node: &Node) -> Result<u64, ServerError> {
        let path = format!("/v1/kv/tree/{}", node.id);
        self.ask(Method::DELETE, &path, String::new()).map(|removed: Removed| removed.removed_blocks)
    }

    /// Pins the path that ends with a node.
    pub(crate) fn pin(&self, node: &Node, ttl_s: u64) -> Result<Pinned, ServerError> {
        let body = serde_json::json!({"ttl_s": ttl_s}).to_string();
        self.ask(Method::POST, &format!("/v1/kv/tree/{}/pin", node.id), body)
    }

    /// Removes the pins of a node and of everything that continues it; returns the number of unpinned blocks.
    pub(crate) fn unpin(&self, node: &Node) -> Result<u64, ServerError> {
        let path = format!("/v1/kv/tree/{}/pin", node.id);
        self.ask(Method::DELETE, &path, String::new()).map(|unpinned: Unpinned| unpinned.unpinned_blocks)
    }

    /// Returns the status and the body of the answer to `GET path`, which must come soon.
    pub(crate) fn probe(&self, path: &str) -> Result<(u16, Vec<u8>), ServerError> {
        self.fetch(Method::GET, path, String::new(), PROBE_TIMEOUT)
    }

    fn ask<T: DeserializeOwned>(&self, method: Method, path: &str, body: String) -> Result<T, ServerError> {
        self.ask_patiently(method, path, body, ANSWER_TIMEOUT)
    }

    fn ask_patiently<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
        patience: Duration,
    ) -> Result<T, ServerError> {
        let foreign = |problem: String| ServerError::Foreign { url: self.url.clone(), problem };
        let (status, body) = self.fetch(method, path, body, patience)?;
        match status {
            200 => serde_json::from_slice(&body).map_err(|error| foreign(error.to_string())),
            401 => Err(ServerError::Unauthorized { url: self.url.clone() }),
            _ => match serde_json::from_slice::<Failure>(&body) {
                Ok(Failure { error: FailureBody { message } }) => {
                    Err(ServerError::Refused { url: self.url.clone(), status, message })
                }
                Err(_) => Err(foreign(format!("status {status}"))),
            },
        }
    }

    fn fetch(
        &self,
        method: Method,
        path: &str,
        body: String,
        patience: Duration,
    ) -> Result<(u16, Vec<u8>), ServerError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let request = request
            .header("content-type", "application/json")
            .body(body)
            .map_err(|_| ServerError::Url { url: self.url.clone() })?;
        let away = |source| match explain(&self.trust, &self.url, &source) {
            Some(untrusted) => untrusted.into(),
            None => ServerError::Away { url: self.url.clone(), source: Box::new(source) },
        };
        let request = self.agent.configure_request(request).timeout_global(Some(patience)).build();
        let mut answer = self.agent.run(request).map_err(away)?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_vec().map_err(away)?;
        Ok((status, body))
    }
}
