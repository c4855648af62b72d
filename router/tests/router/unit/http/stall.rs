use std::io;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline_http::stall::StallGuard;

use crate::support::DEADLINE;

#[tokio::test]
async fn a_write_that_finds_room_in_time_succeeds() {
    let (near, mut far) = tokio::io::duplex(4);
    let num_stalled = Counter::default();
    let mut near = StallGuard::new(near, DEADLINE, num_stalled.clone());
    let reading = tokio::spawn(async move {
        let mut bytes = [0; 6];
        far.read_exact(&mut bytes).await.unwrap();
        bytes
    });
    near.write_all(b"abcdef").await.unwrap();
    assert_eq!((&reading.await.unwrap(), num_stalled.get()), (b"abcdef", 0));
}

#[tokio::test]
async fn a_write_that_finds_no_room_fails_and_is_counted() {
    let (near, _far) = tokio::io::duplex(4);
    let num_stalled = Counter::default();
    let mut near = StallGuard::new(near, Duration::from_millis(20), num_stalled.clone());
    let error = near.write_all(b"ghijkl").await.unwrap_err();
    assert_eq!((error.kind(), num_stalled.get()), (io::ErrorKind::TimedOut, 1));
}
