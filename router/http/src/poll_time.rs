//! Measures how long a request holds a thread of the HTTP runtime at a time.
//!
//! A thread that runs a handler polls nothing else, so one long poll delays every other client. The time is the CPU
//! time of the thread, which does not grow when other processes take the cores.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use prometheus_client::metrics::histogram::Histogram;

use trunkline_base::clock::thread_time;

/// The longest poll of one request. Dropping it records the time.
pub struct LongestPoll {
    longest: Duration,
    histogram: Histogram,
}

impl LongestPoll {
    pub fn new(histogram: Histogram) -> Self {
        Self { longest: Duration::ZERO, histogram }
    }

    fn measure<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        let begin = thread_time();
        let outcome = poll();
        self.longest = self.longest.max(thread_time().saturating_sub(begin));
        outcome
    }

    /// Awaits `future` and measures its polls.
    pub async fn of_future<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| self.measure(|| future.as_mut().poll(cx))).await
    }

    /// Wraps a body so that the polls that write it are measured.
    pub fn of_body(self, body: Body) -> Body {
        Body::new(MeasuredBody { body, longest: self })
    }
}

impl Drop for LongestPoll {
    fn drop(&mut self) {
        self.histogram.observe(self.longest.as_secs_f64());
    }
}

struct MeasuredBody {
    body: Body,
    longest: LongestPoll,
}

impl HttpBody for MeasuredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { body, longest } = self.get_mut();
        longest.measure(|| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
