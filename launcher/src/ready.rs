//! The message for the user when the server is ready.

use serde_json::json;

use crate::listen::Listener;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// Returns the two lines for stdout when the server is ready: the address, and a command to try.
pub fn banner(listener: &Listener, scheme: Scheme, model_name: &str) -> String {
    let url = format!("{}://{}", scheme.name(), listener.local());
    let reach = if listener.is_loopback() {
        "reachable only from this machine; `--hostname 0.0.0.0` opens it to the network".to_owned()
    } else {
        format!("listening on {}:{}", listener.hostname, listener.port)
    };
    let messages = json!([{"role": "user", "content": "What is a trunk line?"}]);
    let body = json!({"model": model_name, "messages": messages, "max_tokens": 64});
    let body = body.to_string().replace('\'', r"'\''");
    format!(
        "{model_name} is ready at {url} ({reach})\n\
         curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
    )
}
