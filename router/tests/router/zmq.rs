//! The ZeroMQ sockets of KV events. Readers are plain TCP connections, so that they can break the protocol; libzmq
//! reads in `integration-tests/test_kv_events.py`.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use trunkline_engine::kv_events::Topic;
use trunkline_zmq::{Kept, MAX_KEPT_BATCHES, MAX_KEPT_BYTES, MAX_READERS, MAX_UNREAD_BATCHES, ZmqPublisher};

use crate::support::{DEADLINE, Router};

const TOPIC: &str = "kv@pod@model";
/// Flags of a frame's header.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// A frame that announces 2^46 bytes.
const HUGE: [u8; 9] = [LONG, 0, 0, 0x40, 0, 0, 0, 0, 0];

/// A reader that speaks ZMTP 3.0 (<https://rfc.zeromq.org/spec/23/>).
struct Reader(TcpStream);

impl Reader {
    /// Connects and says nothing.
    async fn silent(address: &str) -> Self {
        Self(TcpStream::connect(address.strip_prefix("tcp://").unwrap()).await.unwrap())
    }

    async fn connect(address: &str, socket_type: &str) -> Self {
        let mut reader = Self::silent(address).await;
        reader.shake_hands(socket_type).await;
        reader
    }

    async fn subscribed(address: &str, prefix: &str) -> Self {
        let mut reader = Self::connect(address, "SUB").await;
        reader.subscribe(prefix).await;
        reader
    }

    async fn shake_hands(&mut self, socket_type: &str) {
        self.0.write_all(&greeting()).await.unwrap();
        self.0.write_all(&frame(COMMAND, &ready(socket_type))).await.unwrap();
        let mut theirs = [0; 64];
        self.read(&mut theirs).await;
        assert_eq!((theirs[0], theirs[9] & 1, theirs[10], &theirs[12..17]), (0xff, 1, 3, &b"NULL\0"[..]));
        let (flags, body) = self.frame().await;
        assert_eq!((flags & COMMAND, &body[..6]), (COMMAND, &b"\x05READY"[..]));
    }

    async fn send(&mut self, frames: &[&[u8]]) {
        for (index, body) in frames.iter().enumerate() {
            let flags = if index + 1 < frames.len() { MORE } else { 0 };
            self.0.write_all(&frame(flags, body)).await.unwrap();
        }
    }

    async fn subscribe(&mut self, prefix: &str) {
        self.send(&[&[b"\x01", prefix.as_bytes()].concat()]).await;
    }

    async fn read(&mut self, bytes: &mut [u8]) {
        tokio::time::timeout(DEADLINE, self.0.read_exact(bytes)).await.expect("bytes in time").unwrap();
    }

    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut header = [0; 2];
        self.read(&mut header).await;
        let mut length = u64::from(header[1]);
        if header[0] & LONG != 0 {
            let mut rest = [0; 7];
            self.read(&mut rest).await;
            length = rest.iter().fold(length, |length, &byte| length << 8 | u64::from(byte));
        }
        let mut body = vec![0; usize::try_from(length).unwrap()];
        self.read(&mut body).await;
        (header[0], body)
    }

    async fn message(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.frame().await;
            frames.push(body);
            if flags & MORE == 0 {
                return frames;
            }
        }
    }

    /// Receives a batch, and returns its number and payload.
    async fn batch(&mut self) -> (u64, Vec<u8>) {
        let frames: [Vec<u8>; 3] = self.message().await.try_into().expect("three frames");
        let [topic, number, batch] = frames;
        assert_eq!(topic, TOPIC.as_bytes());
        (u64::from_be_bytes(number.try_into().unwrap()), batch)
    }

    /// Asks for the batches from `first` on. Returns their numbers and payloads.
    async fn replay(&mut self, first: u64) -> Vec<(u64, Vec<u8>)> {
        self.send(&[b"", &first.to_be_bytes()]).await;
        let mut batches = Vec::new();
        loop {
            let frames: [Vec<u8>; 4] = self.message().await.try_into().expect("four frames");
            let [delimiter, topic, number, batch] = frames;
            assert!(delimiter.is_empty());
            let number = u64::from_be_bytes(number.try_into().unwrap());
            if number == u64::MAX {
                assert!(topic.is_empty() && batch.is_empty());
                return batches;
            }
            assert_eq!(topic, TOPIC.as_bytes());
            batches.push((number, batch));
        }
    }

    /// Reads until the other side closes the connection, which must be soon.
    async fn until_closed(mut self) {
        let closed = async {
            // A reset closes it, too.
            while self.0.read(&mut [0; 4096]).await.is_ok_and(|num_bytes| num_bytes > 0) {}
        };
        tokio::time::timeout(DEADLINE, closed).await.expect("the connection is closed");
    }
}

fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

fn ready(socket_type: &str) -> Vec<u8> {
    let length = u32::try_from(socket_type.len()).unwrap();
    [b"\x05READY\x0bSocket-Type", &length.to_be_bytes()[..], socket_type.as_bytes()].concat()
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(length) => [&[flags, length], body].concat(),
        Err(_) => [&[flags | LONG], &(body.len() as u64).to_be_bytes()[..], body].concat(),
    }
}

/// Starts a publisher with both sockets, and returns their addresses.
async fn publisher() -> (ZmqPublisher, String, String) {
    let mut publisher = ZmqPublisher::bind("tcp://127.0.0.1:0".into(), TOPIC).await.unwrap();
    let replay = publisher.replay_on("tcp://127.0.0.1:0".into()).await.unwrap();
    let address = publisher.address().unwrap().to_owned();
    (publisher, address, replay)
}

/// Publishes until the reader's subscription has arrived, and returns the number of the first batch that it received.
async fn await_subscription(publisher: &ZmqPublisher, reader: &mut Reader) -> u64 {
    let probe = async {
        loop {
            publisher.publish(b"probe".to_vec());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        (number, _) = reader.batch() => number,
        () = probe => unreachable!("it never ends"),
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}

/// A length that is only announced must not be reserved: an allocation that fails ends the process.
#[tokio::test]
async fn an_announced_length_reserves_no_memory() {
    let (publisher, events, replay) = publisher().await;
    for (address, socket_type) in [(&events, "SUB"), (&replay, "DEALER")] {
        let before_greeting = HUGE.to_vec();
        let after_greeting = [&greeting(), &HUGE[..]].concat();
        let as_command = [&greeting(), &[LONG | COMMAND][..], &HUGE[1..]].concat();
        let beyond_memory = [&greeting(), &[LONG][..], &(1_u64 << 62).to_be_bytes()].concat();
        for bytes in [before_greeting, after_greeting, as_command, beyond_memory] {
            let mut reader = Reader::silent(address).await;
            reader.0.write_all(&bytes).await.unwrap();
            // The greeting has 64 bytes, and none of them is a length.
            reader.0.write_all(&[0; 64]).await.unwrap();
            reader.until_closed().await;
        }
        let mut reader = Reader::connect(address, socket_type).await;
        reader.0.write_all(&HUGE).await.unwrap();
        reader.until_closed().await;
    }
    let mut reader = Reader::subscribed(&events, "kv@").await;
    await_subscription(&publisher, &mut reader).await;
    assert!(!Reader::connect(&replay, "DEALER").await.replay(0).await.is_empty());
}

#[tokio::test]
async fn readers_that_do_not_read_hold_only_what_is_kept() {
    let (publisher, address, replay) = publisher().await;
    let mut slow = Reader::subscribed(&address, "kv@").await;
    await_subscription(&publisher, &mut slow).await;
    let mut quick = Reader::subscribed(&address, "kv@").await;
    let mut last = await_subscription(&publisher, &mut quick).await;
    let mut greedy = Reader::connect(&replay, "DEALER").await;
    let before = resident_bytes();
    for _ in 0..(6 * MAX_KEPT_BYTES) >> 20 {
        publisher.publish(vec![7; 1 << 20]);
        // Each of many requests would be answered with all that is kept.
        greedy.send(&[b"", &0_u64.to_be_bytes()]).await;
        // Subscriptions to other topics need no memory.
        slow.subscribe(&"x".repeat(200)).await;
        loop {
            let (number, batch) = quick.batch().await;
            assert_eq!(number, last + 1, "a reader that keeps up misses nothing");
            last = number;
            if batch.len() == 1 << 20 {
                break;
            }
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 3 * MAX_KEPT_BYTES, "{grown} bytes more, although only {MAX_KEPT_BYTES} are kept");
    // The slow reader goes on with what is still kept, and sees the gap in the numbers.
    let (mut number, _) = slow.batch().await;
    let mut gap = 0;
    while number < last {
        let (next, _) = slow.batch().await;
        gap = gap.max(next - number - 1);
        number = next;
    }
    assert!(gap > 0, "the batches that are not kept are gone");
}

#[tokio::test]
async fn a_reader_gets_the_batches_that_match_its_subscriptions() {
    let (publisher, address, _) = publisher().await;
    let mut reader = Reader::connect(&address, "XSUB").await;
    // No subscription at all, others' topics, and what is no subscription.
    for prefix in ["kv@pod@model!", "kv@other", "x"] {
        reader.subscribe(prefix).await;
    }
    reader.send(&[b"\x01kv@", b"in two frames"]).await;
    reader.send(&[b"\x02kv@"]).await;
    reader.send(&[b""]).await;
    reader.0.write_all(&frame(COMMAND, b"\x04PING\0\0")).await.unwrap();
    publisher.publish(b"unseen".to_vec());
    // One that is given up counts no longer, as often as it is given up.
    reader.subscribe("kv@pod").await;
    for _ in 0..2 {
        reader.send(&[b"\0kv@pod"]).await;
    }
    publisher.publish(b"unseen".to_vec());
    for prefix in ["kv@pod", ""] {
        reader.subscribe(prefix).await;
    }
    await_subscription(&publisher, &mut reader).await;
    reader.send(&[b"\0kv@pod"]).await;
    publisher.publish(b"seen".to_vec());
    while reader.batch().await.1 != b"seen" {}
}

#[tokio::test]
async fn missed_batches_are_sent_again() {
    let mut publisher = ZmqPublisher::connect("tcp://127.0.0.1:1".into(), TOPIC);
    let address = publisher.replay_on("tcp://127.0.0.1:0".into()).await.unwrap();
    for batch in 0..=5_u8 {
        publisher.publish(vec![batch; 300]);
    }
    let mut reader = Reader::connect(&address, "DEALER").await;
    let all: Vec<_> = (0..=5).map(|batch| (u64::from(batch), vec![batch; 300])).collect();
    assert_eq!(reader.replay(0).await, all);
    assert_eq!(reader.replay(4).await, all[4..]);
    assert_eq!(reader.replay(6).await, []);

    // What is no request changes nothing.
    for frames in
        [vec![&b""[..]], vec![b"", b"123"], vec![b"x", b"12345678"], vec![b"", b"12345678", b"more"]]
    {
        reader.send(&frames).await;
    }
    publisher.publish(b"later".to_vec());
    assert_eq!(reader.replay(6).await, [(6, b"later".to_vec())]);

    // Two readers are answered apart.
    let mut other = Reader::connect(&address, "REQ").await;
    let (ours, theirs) = tokio::join!(reader.replay(1), other.replay(5));
    assert_eq!((ours.len(), theirs.len()), (6, 2));
}

#[tokio::test]
async fn readers_that_break_the_protocol_are_disconnected() {
    let (_publisher, events, replay) = publisher().await;
    let mut old = greeting();
    old[10] = 2;
    let mut secret = greeting();
    secret[12..17].copy_from_slice(b"CURVE");
    let truncated = [&greeting()[..], &frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x09SUB")].concat();
    let message = [&greeting()[..], &frame(0, &ready("SUB"))].concat();
    let other = [&greeting()[..], &frame(COMMAND, &ready("PULL"))].concat();
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".repeat(4), old, secret, truncated, message, other] {
        let mut reader = Reader::silent(&events).await;
        reader.0.write_all(&bytes).await.unwrap();
        reader.until_closed().await;
    }
    let mut reader = Reader::connect(&replay, "DEALER").await;
    // A message without an end. The connection may be gone before all of it is written.
    let endless = frame(MORE, b"x").repeat(1000);
    drop(reader.0.write_all(&endless).await);
    reader.until_closed().await;
}

#[tokio::test]
async fn readers_that_do_nothing_are_disconnected() {
    let (publisher, events, replay) = publisher().await;
    let mut unread = Reader::subscribed(&events, "").await;
    await_subscription(&publisher, &mut unread).await;
    let mut greedy = Reader::connect(&replay, "DEALER").await;
    (0..8).for_each(|_| publisher.publish(vec![0; 1 << 20]));
    greedy.send(&[b"", &0_u64.to_be_bytes()]).await;
    let mut greeted = Reader::silent(&events).await;
    greeted.0.write_all(&greeting()).await.unwrap();
    // The sender gives up although these read nothing, so what is left in the sockets ends early.
    let stalled = [unread, greedy].map(|mut reader| async move {
        let mut is_gone = async || reader.0.write_all(&frame(0, b"\x01")).await.is_err();
        while !is_gone().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let all = async {
        tokio::join!(Reader::silent(&replay).await.until_closed(), greeted.until_closed(), join_all(stalled))
    };
    tokio::time::timeout(DEADLINE, all).await.expect("all are disconnected");
}

#[tokio::test]
async fn a_socket_serves_a_limited_number_of_readers() {
    let (publisher, address, _) = publisher().await;
    let mut readers = Vec::new();
    for _ in 0..MAX_READERS {
        readers.push(Reader::subscribed(&address, "").await);
    }
    let mut waiting = Reader::silent(&address).await;
    {
        let mut handshake = std::pin::pin!(waiting.shake_hands("SUB"));
        let probe = async {
            for reader in &mut readers {
                await_subscription(&publisher, reader).await;
            }
        };
        tokio::select! {
            () = &mut handshake => panic!("one reader too many"),
            () = probe => {}
        }
        readers.pop();
        handshake.await;
    }
    waiting.subscribe("").await;
    await_subscription(&publisher, &mut waiting).await;
}

#[tokio::test]
async fn the_publisher_connects_again_to_its_reader() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let publisher = ZmqPublisher::connect(format!("tcp://{}", listener.local_addr().unwrap()), TOPIC);
    let mut last = None;
    for _ in 0..3 {
        let mut reader = Reader(listener.accept().await.unwrap().0);
        reader.shake_hands("SUB").await;
        reader.subscribe("kv@").await;
        let number = await_subscription(&publisher, &mut reader).await;
        assert!(last.is_none_or(|last| number > last));
        last = Some(number);
    }
}

#[tokio::test]
async fn dropping_the_publisher_closes_its_connections() {
    let (publisher, address, replay) = publisher().await;
    let mut subscriber = Reader::subscribed(&address, "").await;
    await_subscription(&publisher, &mut subscriber).await;
    let mut reader = Reader::connect(&replay, "DEALER").await;
    assert!(!reader.replay(0).await.is_empty());
    drop(publisher);
    subscriber.until_closed().await;
    reader.until_closed().await;
    assert!(TcpStream::connect(address.strip_prefix("tcp://").unwrap()).await.is_err());
}

#[test]
fn kept_batches_are_bounded() {
    let kept = Kept::default();
    kept.set_max_batches(MAX_KEPT_BATCHES);
    let batch = Bytes::from(vec![0; 1 << 20]);
    (0..100).for_each(|number| kept.push(number, batch.clone()));
    let num_kept = (MAX_KEPT_BYTES >> 20) as u64;
    assert_eq!(kept.next(0).map(|(number, _)| number), Some(100 - num_kept));
    (100..100 + 2 * MAX_KEPT_BATCHES as u64).for_each(|number| kept.push(number, Bytes::new()));
    assert_eq!(kept.next(0).map(|(number, _)| number), Some(100 + MAX_KEPT_BATCHES as u64));
    assert_eq!(kept.next(u64::MAX), None);

    let without_replay = Kept::default();
    (0..2 * MAX_UNREAD_BATCHES as u64).for_each(|number| without_replay.push(number, Bytes::new()));
    assert_eq!(without_replay.next(0).map(|(number, _)| number), Some(MAX_UNREAD_BATCHES as u64));
}

#[tokio::test]
async fn batches_of_a_router_are_published_under_its_topic() {
    let router = Router::default().await;
    let topic = Topic::new("pod", "model").unwrap();
    let publisher = ZmqPublisher::bind("tcp://127.0.0.1:0".into(), topic.as_str()).await.unwrap();
    let address = publisher.address().unwrap().to_owned();
    router.app.served.kv_events.publish_to(Box::new(move |batch| publisher.publish(batch)));
    let mut reader = Reader::subscribed(&address, "kv@").await;
    // A subscription takes a while to arrive, so blocks are stored until a batch is received.
    let probe = async {
        for begin in (0..).map(|round: u32| round % 200) {
            let prompt: Vec<u32> = (begin..begin + 20).collect();
            router.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.ok();
        }
    };
    let batches = async {
        let name = b"BlockStored";
        let mut last = None;
        loop {
            let (number, batch) = reader.batch().await;
            assert!(last.is_none_or(|last| number == last + 1), "a batch is missing");
            last = Some(number);
            assert_eq!(batch[0], 0x93);
            if batch.windows(name.len()).any(|window| window == name) {
                break;
            }
        }
    };
    tokio::select! {
        () = batches => {}
        () = probe => unreachable!("it never ends"),
    }
}
