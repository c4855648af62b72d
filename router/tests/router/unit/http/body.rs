use std::convert::Infallible;

use axum::body::Body;
use futures::{StreamExt as _, stream};
use tokio::sync::Semaphore;
use trunkline_router::http::read_body;

use crate::support::DEADLINE;

fn pieces(num: usize, num_bytes: usize) -> Body {
    Body::from_stream(stream::iter((0..num).map(move |_| Ok::<_, Infallible>(vec![b'x'; num_bytes]))))
}

#[tokio::test]
async fn arriving_bodies_share_a_budget_and_return_it() {
    let budget = Semaphore::new(10);
    assert_eq!(read_body(pieces(100, 100), 1 << 20, DEADLINE, &budget).await.unwrap().len(), 10_000);
    assert_eq!(budget.available_permits(), 10);
    let error = read_body(pieces(101, 102), 1 << 20, DEADLINE, &budget).await.unwrap_err();
    assert_eq!((error.code(), error.status().as_u16()), ("too_many_bodies", 429));
    assert_eq!(budget.available_permits(), 10);
    let waiting = read_body(
        Body::from_stream(pieces(4, 1024).into_data_stream().chain(stream::pending())),
        1 << 20,
        DEADLINE,
        &budget,
    );
    let mut waiting = std::pin::pin!(waiting);
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert_eq!(budget.available_permits(), 6);
    assert!(read_body(pieces(7, 1024), 1 << 20, DEADLINE, &budget).await.is_err());
    assert_eq!(read_body(pieces(6, 1024), 1 << 20, DEADLINE, &budget).await.unwrap().len(), 6 << 10);
}

#[tokio::test]
async fn discarded_bodies_hold_no_memory() {
    let budget = Semaphore::new(2);
    let error = read_body(pieces(100, 1024), 2048, DEADLINE, &budget).await.unwrap_err();
    assert_eq!(error.code(), "body_too_large");
    assert_eq!(budget.available_permits(), 2);
}
