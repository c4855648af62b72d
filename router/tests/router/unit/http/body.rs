use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use futures::{StreamExt as _, stream};
use trunkline_base::error::ApiError;
use trunkline_base::limits::{Limits, ServerLimits, UNCOUNTED_REQUEST_BYTES};
use trunkline_base::tenants::MemoryBudget;
use trunkline_http::read_body;

fn pieces(num: usize, num_bytes: usize) -> Body {
    Body::from_stream(stream::iter((0..num).map(move |_| Ok::<_, Infallible>(vec![b'x'; num_bytes]))))
}

fn limits(max_body_bytes: usize) -> ServerLimits {
    Limits { max_body_bytes, ..Limits::default() }.into()
}

#[tokio::test]
async fn arriving_bodies_share_a_budget_and_return_it() {
    let budget = Arc::new(MemoryBudget::new(10 << 10));
    let (limits, free) = (limits(1 << 20), || budget.free.available_permits());
    let read = async |body| read_body(body, &limits, budget.account(None)).await;
    let first = UNCOUNTED_REQUEST_BYTES >> 10;
    assert_eq!(read(pieces(first + 10, 1024)).await.unwrap().0.len(), UNCOUNTED_REQUEST_BYTES + (10 << 10));
    assert_eq!(free(), 10);
    let error = read(pieces(first + 11, 1024)).await.unwrap_err();
    assert_eq!((error.code(), error.status().as_u16()), ("too_many_bodies", 429));
    assert_eq!(free(), 10);
    let stalled = pieces(first + 4, 1024).into_data_stream().chain(stream::pending());
    let mut waiting = std::pin::pin!(read(Body::from_stream(stalled)));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert_eq!(free(), 6);
    assert!(read(pieces(first + 7, 1024)).await.is_err());
    assert_eq!(read(pieces(first + 6, 1024)).await.unwrap().0.len(), UNCOUNTED_REQUEST_BYTES + (6 << 10));
}

#[tokio::test]
async fn those_who_share_the_budget_leave_some_of_it_to_others() {
    let budget = Arc::new(MemoryBudget::new(80 << 10));
    let limits = limits(1 << 20);
    let stalled = |num_kib: usize| {
        let sent = pieces((UNCOUNTED_REQUEST_BYTES >> 10) + num_kib, 1024);
        Body::from_stream(sent.into_data_stream().chain(stream::pending()))
    };
    let read = |body, sharer: &str| read_body(body, &limits, budget.account(Some(sharer.into())));
    let mut first = Box::pin(read(stalled(40), "a"));
    assert!(futures::poll!(first.as_mut()).is_pending());
    // 70 of 80 are the most that one may hold.
    let mut second = Box::pin(read(stalled(31), "a"));
    assert!(matches!(futures::poll!(second.as_mut()), std::task::Poll::Ready(Err(ApiError::TooManyBodies))));
    let mut second = Box::pin(read(stalled(30), "a"));
    assert!(futures::poll!(second.as_mut()).is_pending());
    let mut other = Box::pin(read(stalled(8), "b"));
    assert!(futures::poll!(other.as_mut()).is_pending());
    drop((first, second));
    assert_eq!(budget.free.available_permits(), 72);
    drop(other);
    assert_eq!(budget.free.available_permits(), 80);
}

#[tokio::test]
async fn discarded_bodies_hold_no_memory() {
    let budget = Arc::new(MemoryBudget::new(64 << 10));
    let max_bytes = UNCOUNTED_REQUEST_BYTES + (32 << 10);
    let error = read_body(pieces(1000, 1024), &limits(max_bytes), budget.account(None)).await.unwrap_err();
    assert_eq!(error.code(), "body_too_large");
    assert_eq!(budget.free.available_permits(), 64);
}
