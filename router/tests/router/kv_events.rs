//! The events of `/v1/kv/events`, as readers see them.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_base::limits::Limits;
use trunkline_engine::kv_events::MAX_LISTENERS;
use trunkline_object::Remote;

use crate::faulty::FaultyStore;
use crate::support::{Connection, DEADLINE, Router, ShardPlan, eventually};

const PATH: &str = "/v1/kv/events";
const ALICE: &str = "sk-alice-0123456789";
const BOB: &str = "sk-bob-0123456789ab";
const ADMIN: &str = "sk-admin-0123456789";
const KEYS: &str = "[tenants.alice]\nkeys = \"sk-alice-0123456789\"\n[tenants.bob]\nkeys = \"sk-bob-0123456789ab\"\n\
                    [tenants.root]\nkeys = \"sk-admin-0123456789\"\nadmin = true\n";

/// An event as a reader receives it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    id: Option<String>,
    name: String,
    data: Value,
}

/// An open stream of events.
struct Stream {
    connection: Connection,
}

impl Stream {
    async fn open(router: &Router, key: Option<&str>, last_id: Option<&str>) -> Self {
        let mut connection = router.connect().await;
        let headers = [("x-api-key", key), ("last-event-id", last_id)];
        let headers: Vec<_> = headers.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        connection.send_with("GET", PATH, &headers, b"").await;
        // The first comment shows that the server is listening for events.
        assert!(connection.read_until(|bytes| contains(bytes, ":\n\n")).await);
        assert!(connection.received().contains("content-type: text/event-stream"));
        Self { connection }
    }

    /// Reads until `enough` returns true, and returns all events.
    async fn events(&mut self, enough: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        assert!(self.connection.read_until(|bytes| enough(&parse(bytes))).await, "the stream ended");
        parse(self.connection.received().as_bytes())
    }

    /// Reads to the end of the stream, and returns all events.
    async fn rest(&mut self) -> Vec<Seen> {
        assert!(self.connection.read_until(|bytes| contains(bytes, "\r\n0\r\n\r\n")).await);
        parse(self.connection.received().as_bytes())
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

/// Parses the events in an answer. Chunks contain only complete events.
fn parse(bytes: &[u8]) -> Vec<Seen> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let field = |event: &str, name: &str| {
        event.lines().find_map(|line| line.strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let whole = text.rsplit_once("\n\n").map_or("", |(whole, _)| whole);
    let seen = |event: &str| {
        let data = serde_json::from_str(&field(event, "data:")?).unwrap();
        Some(Seen { id: field(event, "id:"), name: field(event, "event:")?, data })
    };
    whole.split("\n\n").filter_map(seen).collect()
}

fn num_stored(events: &[Seen]) -> usize {
    events.iter().filter(|event| event.name == "BlockStored").count()
}

async fn complete(router: &Router, key: &str, prompt: &[u32]) {
    router.ask(key, "POST", "/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await.ok();
    router.wait_idle().await;
}

#[tokio::test]
async fn a_reader_resumes_after_its_last_event() {
    let router = Router::saying("!").await;
    let mut stream = Stream::open(&router, None, None).await;
    // Blocks have 8 tokens. The prompt has two full blocks and a partial one without a key.
    let prompt: Vec<u32> = (1..20).collect();
    complete(&router, "", &prompt).await;
    let events = stream.events(|events| num_stored(events) == 2).await;
    assert_eq!(events[0].name, "AllBlocksCleared", "earlier events are unknown");
    let (first, second) = (&events[1], &events[2]);
    assert_eq!(json!([first.data["parent"], first.data["depth"]]), json!([null, 0]));
    assert_eq!((&second.data["parent"], &second.data["depth"]), (&first.data["key"], &json!(1)));
    assert_eq!(first.data["tier"], "device");
    assert!(events.iter().all(|event| event.data.get("token_ids").is_none()), "there are no keys");

    let page = router.get("/v1/kv/tree").await.ok();
    let node = &page["data"][0];
    assert_eq!(node["namespace"], first.data["namespace"]);
    let path = format!("/v1/kv/tree/{}", node["id"].as_str().unwrap());
    router.connect().await.request("DELETE", &path, b"").await.ok();
    let is_removal = |event: &&Seen| event.name == "BlockRemoved";
    let events = stream.events(|events| events.iter().filter(is_removal).count() == 2).await;
    let removed: Vec<&Value> = events.iter().filter(is_removal).map(|event| &event.data["key"]).collect();
    assert_eq!(removed, [&second.data["key"], &first.data["key"]], "from the end on");

    drop(stream);
    let mut again = Stream::open(&router, None, first.id.as_deref()).await;
    let rest = again.events(|rest| rest.len() == events.len() - 2).await;
    assert_eq!(rest, events[2..]);
    for unknown in ["", "x-1", "0"] {
        let mut lost = Stream::open(&router, None, Some(unknown)).await;
        let events = lost.events(|events| !events.is_empty()).await;
        assert_eq!((events.len(), events[0].name.as_str()), (1, "AllBlocksCleared"));
    }
}

#[tokio::test]
async fn a_tenant_receives_only_its_own_events_and_tokens() {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), Limits::default()).await;
    let mut streams = Vec::new();
    for key in [ALICE, BOB, ADMIN] {
        streams.push(Stream::open(&router, Some(key), None).await);
    }
    let prompts: [Vec<u32>; 2] = [(1..20).collect(), (101..110).collect()];
    complete(&router, ALICE, &prompts[0]).await;
    complete(&router, BOB, &prompts[1]).await;
    let tokens = |events: &[Seen]| -> Vec<u64> {
        let stored = events.iter().filter(|event| event.name == "BlockStored");
        stored
            .flat_map(|event| event.data["token_ids"].as_array().unwrap())
            .map(|id| id.as_u64().unwrap())
            .collect()
    };
    let of_admin = streams[2].events(|events| num_stored(events) == 3).await;
    assert_eq!(tokens(&of_admin), (1..17).chain(101..109).collect::<Vec<u64>>());
    let namespaces: BTreeSet<&str> =
        of_admin.iter().filter_map(|event| event.data["namespace"].as_str()).collect();
    assert_eq!(namespaces.len(), 2);
    assert_eq!(
        tokens(&streams[1].events(|events| num_stored(events) == 1).await),
        (101..109).collect::<Vec<u64>>()
    );
    // Bob's events come after all of Alice's. If they were sent to her, she would have them by now.
    complete(&router, ALICE, &(31..40).collect::<Vec<u32>>()).await;
    let of_alice = streams[0].events(|events| num_stored(events) >= 3).await;
    assert_eq!(tokens(&of_alice), (1..17).chain(31..39).collect::<Vec<u64>>());
    // After the keys are reloaded, only listeners with a current key receive events.
    router.app.admission.access.reload().unwrap();
    complete(&router, BOB, &(41..50).collect::<Vec<u32>>()).await;
    assert_eq!(tokens(&streams[1].rest().await), (101..109).collect::<Vec<u64>>());
    assert!(contains(streams[1].connection.received().as_bytes(), "reconnect"));
}

#[tokio::test]
async fn losing_the_shard_clears_all_blocks_and_a_drain_ends_the_stream() {
    let mut router = Router::default().await;
    let mut stream = Stream::open(&router, None, None).await;
    complete(&router, "", &(1..20).collect::<Vec<u32>>()).await;
    stream.events(|events| num_stored(events) == 2).await;
    router.kill_shard();
    let events =
        stream.events(|events| events.last().is_some_and(|last| last.name == "AllBlocksCleared")).await;
    assert!(events.len() >= 4);
    router.terminate();
    stream.rest().await;
    tokio::time::timeout(DEADLINE, &mut router.running).await.unwrap().unwrap().unwrap();
    assert!(!stream.connection.received().contains("event: error"));
}

/// The most listeners of one tenant or, without keys, of one address.
const MAX_OWN_LISTENERS: usize = MAX_LISTENERS / 8 * 7;

#[tokio::test]
async fn a_tenant_cannot_take_the_places_of_all_listeners() {
    let router = Router::start_with_keys(KEYS, ShardPlan::default(), Limits::default()).await;
    let mut streams = Vec::new();
    for _ in 0..MAX_OWN_LISTENERS {
        streams.push(Stream::open(&router, Some(ALICE), None).await);
    }
    let answer = router.ask(ALICE, "GET", PATH, &Value::Null).await;
    let message = answer.fails(429, "too_many_listeners");
    assert!(message.starts_with("56 of the 64 listeners are yours"), "{message}");
    assert_eq!(answer.header("retry-after"), Some("1"));
    streams.push(Stream::open(&router, Some(BOB), None).await);
    // A place that is returned can be taken again.
    streams.truncate(MAX_OWN_LISTENERS - 1);
    let is_taken = async || {
        let mut next = router.connect().await;
        next.send_with("GET", PATH, &[("x-api-key", ALICE)], b"").await;
        assert!(next.read_until(|bytes| contains(bytes, "\r\n\r\n")).await);
        next.received().starts_with("HTTP/1.1 200")
    };
    eventually("the returned place", is_taken).await;
}

#[tokio::test]
async fn without_keys_an_address_cannot_take_the_places_of_all_listeners() {
    let router = Router::default().await;
    let mut streams = Vec::new();
    for _ in 0..MAX_OWN_LISTENERS {
        streams.push(Stream::open(&router, None, None).await);
    }
    router.get(PATH).await.fails(429, "too_many_listeners");
    let mut other = router.connect_from_other().await;
    other.send("GET", PATH, b"").await;
    assert!(other.read_until(|bytes| contains(bytes, ":\n\n")).await);
    assert!(other.received().starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn uploads_and_downloads_are_published() {
    let store = FaultyStore::default();
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str| {
        let place = Some((folder.path().join(name), 64));
        let plan = ShardPlan { store: place, device_time_us: 1_000_000, ..ShardPlan::saying("!") };
        let remote = Remote::new(Arc::new(store.clone()), "kv/");
        Router::start_with_objects(plan, remote).await
    };
    let of_objects = |events: &[Seen], name: &str| -> Vec<Value> {
        let of_objects = events.iter().filter(|event| event.name == name && event.data["tier"] == "object");
        of_objects.map(|event| event.data["key"].clone()).collect()
    };
    let body = json!({"prompt": (0..100).collect::<Vec<u32>>(), "max_tokens": 1});
    let one = start("one").await;
    let mut stream = Stream::open(&one, None, None).await;
    one.post("/v1/completions", &body).await.ok();
    let events = stream.events(|events| of_objects(events, "BlockStored").len() == 12).await;
    let put = of_objects(&events, "BlockStored");
    assert_eq!(of_objects(&events, "BlockRemoved"), [put[0].clone()], "it was asked for before it was there");
    let last = events.iter().rfind(|event| event.data["tier"] == "object").unwrap();
    assert_eq!((&last.data["depth"], last.data.get("token_ids")), (&Value::Null, None));

    let two = start("two").await;
    let mut stream = Stream::open(&two, None, None).await;
    two.post("/v1/completions", &body).await.ok();
    let events = stream.events(|events| of_objects(events, "BlockStored").len() == 12).await;
    let got: BTreeSet<String> = of_objects(&events, "BlockStored").iter().map(Value::to_string).collect();
    assert_eq!(got, put.iter().map(Value::to_string).collect());
}
