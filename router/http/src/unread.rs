//! Announces that a connection closes if its request was answered before its body was read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Version};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

/// Adds `connection: close` to an answer that leaves a part of the request's body unread.
///
/// Without a key, for example, a request is refused before its body arrives. The rest of the body then stands where the
/// next request would begin, so the connection is closed. A client that is not told so may send its next request on it
/// and get no answer.
pub async fn announce_close(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() || request.version() != Version::HTTP_11 {
        return next.run(request).await;
    }
    let is_read = Arc::new(AtomicBool::new(false));
    let watched = |body| Body::new(Watched { body, has_ended: false, is_read: is_read.clone() });
    let mut response = next.run(request.map(watched)).await;
    if !is_read.load(Ordering::Acquire) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// A request body that reports when it is dropped whether it was read to its end.
struct Watched {
    body: Body,
    has_ended: bool,
    is_read: Arc<AtomicBool>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.is_read.store(self.has_ended || self.body.is_end_stream(), Ordering::Release);
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None)) {
            self.has_ended = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
