//! The id of an HTTP request.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;

use crate::trace::RequestTrace;

/// The longest id that is accepted from a client, in bytes.
const MAX_BYTES: usize = 128;

/// Names a request in the log, in the answer's `x-request-id` header and in internal errors. It carries the request's
/// record, which ends with the last clone. Cheap to clone.
///
/// The outermost middleware puts it into the request's extensions.
#[derive(Clone)]
pub struct RequestId {
    id: Arc<str>,
    trace: Option<Arc<RequestTrace>>,
}

impl RequestId {
    pub fn random() -> Self {
        Self { id: crate::random::id().into(), trace: None }
    }

    /// Accepts an id that a client or a proxy chose if it is short and harmless in a log and in a header.
    pub fn from_client(id: &str) -> Option<Self> {
        let is_harmless = (1..=MAX_BYTES).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte));
        is_harmless.then(|| Self { id: id.into(), trace: None })
    }

    pub fn with_trace(self, trace: RequestTrace) -> Self {
        Self { trace: Some(Arc::new(trace)), ..self }
    }

    /// The record of a request to a route that generates.
    pub fn trace(&self) -> Option<&RequestTrace> {
        self.trace.as_deref()
    }

    /// Returns the id of `request`, or a new one if the request did not pass the middleware.
    pub fn of(request: &Request) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::random)
    }

    /// Returns the id without the request's record, so that holding it does not keep the record from ending.
    pub fn name(&self) -> Arc<str> {
        self.id.clone()
    }

    pub fn as_str(&self) -> &str {
        &self.id
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({:?})", self.id)
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for RequestId {}
