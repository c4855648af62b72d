//! The endpoint and the topic under which events are published.

use std::str::FromStr;

/// The ZeroMQ endpoint. As in vLLM, the server listens if the host is `*`, `0.0.0.0` or contains `::`, and connects
/// otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The address to listen on, in the form `tcp://ADDRESS:PORT`. Readers connect to it.
    Bind(String),
    /// The address of a reader that collects events from many servers.
    Connect(String),
}

/// The reason why events cannot be published.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error(
        "is `{text}`, expected `tcp://HOST:PORT`; hint: `tcp://*:5557` listens, `tcp://HOST:5557` connects"
    )]
    Form { text: String },
    /// Readers could not split the topic into its parts.
    #[error("the {part} of KV events is `{name}`, which {problem}; hint: {hint}")]
    Topic {
        /// The part of the topic: the pod's or the model's name.
        part: &'static str,
        name: String,
        /// The predicate of a sentence about the name.
        problem: &'static str,
        hint: &'static str,
    },
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form { text: text.chars().take(128).collect() };
        let (host, port) =
            text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(form)?;
        let port: u16 = port.parse().map_err(|_| form())?;
        let is_v6 = host.starts_with('[') && host.ends_with(']');
        if host.is_empty() || (!is_v6 && host.contains([':', '[', ']', '/'])) {
            return Err(form());
        }
        Ok(match host {
            "*" => Self::Bind(format!("tcp://0.0.0.0:{port}")),
            "0.0.0.0" => Self::Bind(format!("tcp://{host}:{port}")),
            _ if host.contains("::") => Self::Bind(format!("tcp://{host}:{port}")),
            _ if host.contains('*') || port == 0 => return Err(form()),
            _ => Self::Connect(format!("tcp://{host}:{port}")),
        })
    }
}

/// The topic by which readers filter: `kv@POD@MODEL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic(String);

impl Topic {
    pub fn new(pod: &str, model: &str) -> Result<Self, EndpointError> {
        let parts = [("pod name", pod, "set `POD_NAME`"), ("model name", model, "set `--served-model-name`")];
        for (part, name, hint) in parts {
            let problem = match name {
                "" => "is empty",
                _ if name.contains('@') => "has an `@`, which separates the parts of the topic",
                _ => continue,
            };
            return Err(EndpointError::Topic { part, name: name.to_owned(), problem, hint });
        }
        Ok(Self(format!("kv@{pod}@{model}")))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The endpoints and the topic of a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedEvents {
    pub endpoint: Endpoint,
    /// The address on which batches are sent again, in the form `tcp://ADDRESS:PORT`.
    pub replay: Option<String>,
    pub topic: Topic,
}
