//! The id of an HTTP request.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;

/// The longest id that is accepted from a client, in bytes.
const MAX_BYTES: usize = 128;

/// Names a request in the log, in the answer's `x-request-id` header and in internal errors. Cheap to clone.
///
/// The outermost middleware puts it into the request's extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

impl RequestId {
    pub fn random() -> Self {
        Self(crate::random::id().into())
    }

    /// Accepts an id that a client or a proxy chose if it is short and harmless in a log and in a header.
    pub fn from_client(id: &str) -> Option<Self> {
        let is_harmless = (1..=MAX_BYTES).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
        is_harmless.then(|| Self(id.into()))
    }

    /// Returns the id of `request`, or a new one if the request did not pass the middleware.
    pub fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::random)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
