use std::io;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use trunkline_router::http::stall::StallGuard;

#[tokio::test]
async fn a_write_that_finds_no_room_fails_and_one_that_does_goes_on() {
    let (near, mut far) = tokio::io::duplex(4);
    let num_stalled = Counter::default();
    let limit = Duration::from_millis(20);
    let mut near = StallGuard::new(near, limit, num_stalled.clone());
    let reading = tokio::spawn(async move {
        let mut bytes = [0; 6];
        far.read_exact(&mut bytes).await.unwrap();
        (bytes, far)
    });
    near.write_all(b"abcdef").await.unwrap();
    let (bytes, _far) = reading.await.unwrap();
    assert_eq!((&bytes, num_stalled.get()), (b"abcdef", 0));
    let error = near.write_all(b"ghijkl").await.unwrap_err();
    assert_eq!((error.kind(), num_stalled.get()), (io::ErrorKind::TimedOut, 1));
}
