//! The bodies of requests.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::workload::{Content, Scale, text};

/// The route that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Endpoint {
    /// /v1/completions
    Completions,
    /// /v1/chat/completions
    Chat,
}

impl Endpoint {
    pub fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }
}

/// Makes the bodies of requests to one server.
#[derive(Clone, Debug)]
pub struct Composer {
    pub endpoint: Endpoint,
    pub model: String,
    /// True if outputs may end before they have their length.
    pub stop_early: bool,
    /// Fields of `--extra-body`, which replace others.
    pub extra: Map<String, Value>,
    pub scale: Scale,
}

/// A conversation so far.
#[derive(Clone, Debug)]
pub enum Conversation {
    Text(String),
    Messages(Vec<Value>),
}

impl Composer {
    pub fn begin(&self) -> Conversation {
        match self.endpoint {
            Endpoint::Completions => Conversation::Text(String::new()),
            Endpoint::Chat => Conversation::Messages(Vec::new()),
        }
    }

    pub fn ask(&self, conversation: &mut Conversation, content: &Content) {
        let text = match content {
            Content::Pieces(pieces) => {
                let mut text = String::new();
                for piece in pieces {
                    text::write(*piece, self.scale, &mut text);
                }
                text
            }
            Content::Text(text) => text.clone(),
            Content::Messages(added) => match conversation {
                Conversation::Messages(messages) => return messages.extend_from_slice(added),
                // The plan sends messages only to the chat endpoint.
                Conversation::Text(_) => return,
            },
        };
        match conversation {
            Conversation::Text(before) => before.push_str(&text),
            Conversation::Messages(messages) => messages.push(json!({"role": "user", "content": text})),
        }
    }

    pub fn answer(conversation: &mut Conversation, text: &str) {
        match conversation {
            Conversation::Text(before) => before.push_str(text),
            Conversation::Messages(messages) => messages.push(json!({"role": "assistant", "content": text})),
        }
    }

    /// Returns the body of a request. The fields in `extra` replace all others; one that is null leaves its field out.
    pub fn body(&self, conversation: &Conversation, output_tokens: u32, extra: &Map<String, Value>) -> Bytes {
        let mut fields = Map::new();
        fields.insert("model".to_owned(), json!(self.model));
        match conversation {
            Conversation::Text(prompt) => fields.insert("prompt".to_owned(), json!(prompt)),
            Conversation::Messages(messages) => fields.insert("messages".to_owned(), json!(messages)),
        };
        fields.insert("max_tokens".to_owned(), json!(output_tokens));
        fields.insert("temperature".to_owned(), json!(0));
        fields.insert("stream".to_owned(), json!(true));
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        if !self.stop_early {
            fields.insert("ignore_eos".to_owned(), json!(true));
        }
        for (name, value) in self.extra.iter().chain(extra) {
            match value {
                Value::Null => fields.remove(name),
                value => fields.insert(name.clone(), value.clone()),
            };
        }
        Bytes::from(Value::Object(fields).to_string())
    }
}
