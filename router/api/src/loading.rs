//! The stream of a request that waits for its model: comments tell its progress until the answer begins, so that
//! neither the client nor a proxy takes the connection for a dead one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, ready};
use hyper::body::Frame;
use tokio::time::{Interval, interval};

use super::app::App;
use super::respond::ErrorForm;
use super::stream::event_stream;
use trunkline_base::error::ApiError;
use trunkline_generation::models::{Models, Target};
use trunkline_http::{Events, StreamForm};

/// The time between two comments.
const TICK: Duration = Duration::from_secs(1);

/// Returns a stream of comments that the events of `answer` follow, or its error as an event.
pub(crate) fn stream<E: ErrorForm>(
    app: &Arc<App>,
    target: Target,
    form: StreamForm,
    answer: impl Future<Output = Result<Response, ApiError>> + Send + 'static,
) -> Response {
    let (models, metrics) = (app.models.clone(), app.metrics.clone());
    let answer = async move {
        answer.await.map_or_else(
            |error| {
                metrics.observe_failure(error.class(), error.code());
                let mut events = Events::new(form);
                match E::EVENT {
                    Some(name) => events.named(name, &E::from_error(&error)),
                    None => events.json(&E::from_error(&error)),
                }
                Body::from(events.take())
            },
            Response::into_body,
        )
    };
    let ticks = interval(TICK);
    let body = LoadingBody { answer: answer.boxed(), begun: None, models, target, form, ticks };
    event_stream(Body::new(body), form)
}

struct LoadingBody {
    answer: BoxFuture<'static, Body>,
    /// The body of the answer once there is one.
    begun: Option<Body>,
    models: Arc<Models>,
    target: Target,
    form: StreamForm,
    ticks: Interval,
}

impl hyper::body::Body for LoadingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let body = self.get_mut();
        if body.begun.is_none()
            && let Poll::Ready(begun) = body.answer.poll_unpin(cx)
        {
            body.begun = Some(begun);
        }
        if let Some(begun) = &mut body.begun {
            return Pin::new(begun).poll_frame(cx);
        }
        ready!(body.ticks.poll_tick(cx));
        let mut events = Events::new(body.form);
        events.note(&format!("model {} is {}", body.target.name(), body.models.shown(&body.target)));
        Poll::Ready(Some(Ok(Frame::data(events.take()))))
    }

    fn is_end_stream(&self) -> bool {
        self.begun.as_ref().is_some_and(hyper::body::Body::is_end_stream)
    }
}
