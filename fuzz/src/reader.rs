//! What a reader of KV events sends on a ZeroMQ socket. Any bytes must end the connection or give messages, without
//! memory for lengths that are only announced.

use futures::FutureExt;
use tokio::io::BufReader;
use trunkline_zmq::zmtp::{MAX_FRAME_BYTES, MAX_FRAMES, Receiver};

use crate::memory::peak_bytes;

/// The memory for one message and for the buffer of a connection, with room for tables that grow.
const MAX_BYTES: usize = 2 * MAX_FRAMES * MAX_FRAME_BYTES as usize;

pub fn run(data: &[u8]) {
    let peak = peak_bytes(|| {
        let mut receiver = Receiver(BufReader::new(data));
        let received = async {
            receiver.shake_hands(&["SUB", "DEALER"]).await?;
            loop {
                let message = receiver.message().await?;
                assert!((1..=MAX_FRAMES).contains(&message.len()), "{} frames", message.len());
            }
        };
        // All bytes are there already.
        let ended: Result<(), _> = received.now_or_never().expect("nothing to wait for");
        ended.map_err(|error: trunkline_zmq::zmtp::Error| error.to_string())
    });
    assert!(peak <= MAX_BYTES, "{peak} bytes of memory for {} bytes, the limit is {MAX_BYTES}", data.len());
}

/// Returns what libzmq sends for a subscription and for a request.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    let sub = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    let dealer = b"\x04\x28\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0";
    let long = [&[2][..], &300_u64.to_be_bytes(), &[1; 300]].concat();
    vec![
        [&greeting[..], sub, b"\0\x04\x01kv@", &long].concat(),
        [&greeting[..], dealer, b"\x01\0\0\x08\0\0\0\0\0\0\0\x01"].concat(),
    ]
}

/// Returns headers of frames, some of which announce more than there is memory.
pub fn words() -> Vec<String> {
    [
        "\x02\0\0@\0\0\0\0\0",
        "\x06\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f",
        "\x01\0",
        "\0\x02\x01k",
        "\x04\x02\x01k",
        "\x05READY",
    ]
    .map(String::from)
    .to_vec()
}
