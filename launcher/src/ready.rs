//! The message for the user when the server is ready.

use std::path::Path;

use serde_json::{Value, json};
use trunkline_settings::Answers;

use crate::listen::Listener;

/// What a client needs to reach the server.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    pub listener: &'a Listener,
    /// The certificate, if the server accepts only TLS.
    pub tls_cert: Option<&'a Path>,
    /// What stands for the key in a command, if the server needs one.
    pub key: Option<&'static str>,
}

impl Reach<'_> {
    /// Returns the URL under which this machine reaches the server.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.tls_cert.is_some() { "https" } else { "http" }, self.listener.local())
    }
}

/// Returns the two lines for stdout when the server is ready: the address, and a command to try.
///
/// `num_others` models are loaded when they are asked for.
pub fn banner(to: Reach<'_>, model_name: &str, answers: Answers, num_others: usize) -> String {
    let url = to.url();
    let Reach { listener, tls_cert, key } = to;
    let reach = if listener.is_loopback() {
        "reachable only from this machine; `--hostname 0.0.0.0` opens it to the network".to_owned()
    } else {
        format!("listening on {}:{}", listener.hostname, listener.port)
    };
    let cert =
        tls_cert.map_or_else(String::new, |cert| format!(" --cacert {}", quoted(&cert.to_string_lossy())));
    // In double quotes, so that the shell puts in a variable.
    let key = key.map_or_else(String::new, |key| format!(" -H \"authorization: Bearer {key}\""));
    let (path, body) = example(model_name, answers);
    let body = quoted(&body.to_string());
    let others = match num_others {
        0 => String::new(),
        1 => "; another model is loaded when it is asked for".to_owned(),
        _ => format!("; {num_others} other models are loaded when they are asked for"),
    };
    format!(
        "{model_name} is ready at {url} ({reach}{others})\n\
         curl{cert} {url}{path}{key} -H 'content-type: application/json' -d {body}\n"
    )
}

/// Returns the path and the body of a request that the model answers.
fn example(model: &str, answers: Answers) -> (&'static str, Value) {
    let text = "What is a trunk line?";
    match answers {
        Answers::Text => {
            let messages = json!([{"role": "user", "content": text}]);
            ("/v1/chat/completions", json!({"model": model, "messages": messages, "max_tokens": 64}))
        }
        Answers::Embeddings => ("/v1/embeddings", json!({"model": model, "input": text})),
        Answers::Scores => {
            let documents = ["It connects two telephone exchanges.", "Elephants drink with it."];
            ("/v1/rerank", json!({"model": model, "query": text, "documents": documents}))
        }
        Answers::Classes => ("/v1/classify", json!({"model": model, "input": text})),
    }
}

/// Quotes an argument for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
