//! Log lines with the names of the Elastic Common Schema (<https://www.elastic.co/docs/reference/ecs>), flat and with
//! dots, as Elastic's logging libraries write them.

use serde_json::{Map, Value, json};

use crate::Line;

/// The version of the schema: the first one with `gen_ai`.
const VERSION: &str = "9.1.0";
const SERVICE: &str = "trunkline";
/// The field with the time that an event took, in milliseconds.
const DURATION: &str = "ms";
/// The outcome of a request whose client left.
const ABORTED: &str = "aborted";

/// Our fields that the schema has, with their names there. All others are below [`SERVICE`].
const NAMES: [(&str, &str); 8] = [
    ("request_id", "http.request.id"),
    ("status", "http.response.status_code"),
    ("prompt_tokens", "gen_ai.usage.input_tokens"),
    ("output_tokens", "gen_ai.usage.output_tokens"),
    ("trace_id", "trace.id"),
    ("span_id", "span.id"),
    ("code", "error.code"),
    ("error", "error.message"),
];

impl Line<'_> {
    pub(crate) fn ecs(self) -> String {
        let mut object = Map::new();
        // The order of the first three is the specification's, and people read them first.
        object.insert("@timestamp".into(), self.timestamp().into());
        object.insert("log.level".into(), self.level.to_lowercase().into());
        object.insert("message".into(), self.message.into());
        object.insert("ecs.version".into(), VERSION.into());
        object.insert("log.logger".into(), self.target.into());
        object.insert("process.pid".into(), std::process::id().into());
        object.insert("service.name".into(), SERVICE.into());
        if let Some(outcome) = self.outcome() {
            object.insert("event.outcome".into(), outcome.into());
        }
        for (key, value) in self.fields {
            let (name, value) = renamed(key, value);
            object.entry(name).or_insert(value);
        }
        Value::Object(object).to_string()
    }

    /// Returns the outcome of the request that the line is about, as seen from the server.
    fn outcome(&self) -> Option<&'static str> {
        let field = |name| self.fields.iter().find(|(key, _)| *key == name).map(|(_, value)| value);
        match (field("code"), field("outcome")) {
            (Some(_), _) => Some("failure"),
            (None, Some(outcome)) => Some(if outcome == ABORTED { "unknown" } else { "success" }),
            (None, None) => None,
        }
    }
}

fn renamed(key: &str, value: Value) -> (String, Value) {
    if let (DURATION, Some(ms)) = (key, value.as_u64()) {
        return ("event.duration".into(), json!(ms.saturating_mul(1_000_000)));
    }
    match NAMES.iter().find(|(ours, _)| *ours == key) {
        Some((_, name)) => ((*name).into(), value),
        None => (format!("{SERVICE}.{key}"), value),
    }
}
