//! Fields of a request that the server does not know: the client and the operator hear of them.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Names the fields of the request that the server ignored.
pub const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-ignored-fields");
/// The most fields of a request that are named.
const MAX_NAMED: usize = 16;
/// The longest name that is shown. A longer one is no field of any server.
const MAX_NAME_BYTES: usize = 48;
/// The most names that are remembered, so that the log has each once.
const MAX_REMEMBERED: usize = 256;

static LOGGED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

/// The unknown fields of one request.
#[derive(Debug, Default)]
pub struct IgnoredFields {
    names: Vec<String>,
}

impl IgnoredFields {
    /// Notes a field. Only names that look like names are kept, because a key may be a part of a prompt.
    pub fn note(&mut self, name: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let is_name = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain);
        if is_name && self.names.len() < MAX_NAMED {
            self.names.push(name.to_owned());
        }
    }

    /// Names the fields in the answer and, the first time, in the log.
    pub fn report(self, path: &str, response: &mut Response) {
        if self.names.is_empty() {
            return;
        }
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            if logged.len() < MAX_REMEMBERED && logged.insert(name.clone()) {
                tracing::warn!(
                    field = %name, path, "a request has a field that this server does not know and ignores"
                );
            }
        }
        drop(logged);
        if let Ok(names) = HeaderValue::try_from(self.names.join(", ")) {
            response.headers_mut().insert(IGNORED_FIELDS, names);
        }
    }
}
