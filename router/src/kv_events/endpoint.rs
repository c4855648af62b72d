//! Where events are published, and under which name.

use std::str::FromStr;

/// As vLLM: with `*` or `::` in it, or an address of this machine, it is listened on, else connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// Readers come here. In the form `tcp://ADDRESS:PORT`.
    Bind(String),
    /// A reader that collects from many servers waits there.
    Connect(String),
}

/// Why events cannot be published there.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    /// The flag.
    #[error(
        "is `{text}`, expected `tcp://HOST:PORT`; hint: `tcp://*:5557` listens, `tcp://HOST:5557` connects"
    )]
    Form {
        /// What was given.
        text: String,
    },
    /// Readers could not take the topic apart.
    #[error("the {part} of KV events is `{name}`, which {problem}; hint: {hint}")]
    Topic {
        /// Which part.
        part: &'static str,
        /// What it is.
        name: String,
        /// Why not.
        problem: &'static str,
        /// A way out.
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

/// What readers filter by: `kv@POD@MODEL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic(String);

impl Topic {
    /// Of this pod and model.
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

    /// As it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
