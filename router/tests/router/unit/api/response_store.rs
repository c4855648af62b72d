use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_api::response_store::{Messages, ResponseStore, Turn};
use trunkline_api::responses::ResponseObject;
use trunkline_text::ChatMessage;

use crate::draw;

fn store_turn(store: &ResponseStore, owner: Option<&str>, before: Option<Arc<Turn>>, id: &str, text: &str) {
    let response = ResponseObject { id: id.into(), ..ResponseObject::default() };
    let input = vec![ChatMessage::new("user", text)].into();
    store.put(owner, before, input, Messages::default(), response.stored(response.json()));
}

fn put(store: &ResponseStore, id: &str, before: Option<&str>, text: &str) {
    let before = before.map(|id| store.get(None, id).unwrap().0);
    store_turn(store, None, before, id, text);
}

#[test]
fn conversations_branch_and_share_their_beginning() {
    let store = ResponseStore::new(1 << 20);
    put(&store, "a", None, "1");
    put(&store, "b", Some("a"), "2");
    put(&store, "c", Some("a"), "3");
    let texts = |id| {
        let conversation = store.get(None, id).unwrap().0.conversation();
        conversation.into_iter().map(|message| message.content.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((texts("b"), texts("c")), (vec!["1".into(), "2".into()], vec!["1".into(), "3".into()]));
    // An evicted response is still part of the conversations that continue it.
    assert!(store.remove(None, "a") && !store.remove(None, "a"));
    assert_eq!(texts("b"), ["1", "2"]);
    assert!(store.get(None, "a").is_none());
}

#[test]
fn the_least_recently_used_response_is_evicted_and_all_bytes_are_freed() {
    let store = ResponseStore::new(100_000);
    for idx in 0..100 {
        put(&store, &format!("r{idx}"), None, &"x".repeat(10_000));
        assert!(store.num_bytes() <= 100_000);
        assert!(store.get(None, "r0").is_some(), "it is used again and again");
    }
    assert!(store.get(None, "r50").is_none() && store.get(None, "r99").is_some());
    // A chain of any length is dropped without a stack frame for each turn.
    let store = ResponseStore::new(usize::MAX);
    put(&store, "0", None, "x");
    for idx in 1..40_000 {
        put(&store, &idx.to_string(), Some(&(idx - 1).to_string()), "x");
        assert!(store.remove(None, &(idx - 1).to_string()));
    }
    assert!(store.num_bytes() > 0 && store.remove(None, "39999"));
    assert_eq!(store.num_bytes(), 0);
}

#[test]
fn a_long_conversation_is_freed_on_the_blocking_pool() {
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let _entered = runtime.enter();
    let store = ResponseStore::new(usize::MAX);
    put(&store, "a", None, &"x".repeat(2 << 20));
    put(&store, "b", Some("a"), "x");
    let first = Arc::downgrade(&store.get(None, "a").unwrap().0);
    assert!(store.remove(None, "a"));
    // The pool's only thread is busy.
    let (release, released) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || released.recv());
    assert!(store.remove(None, "b"));
    assert!(first.upgrade().is_some(), "it was freed on this thread");
    drop(release);
    runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
    assert!(first.upgrade().is_none());
}

#[test]
fn responses_of_other_tenants_are_missing() {
    let store = ResponseStore::new(1 << 20);
    put_for(&store, "alice", "a", 1);
    assert!(store.get(Some("alice"), "a").is_some());
    assert!(store.get(Some("bob"), "a").is_none() && store.get(None, "a").is_none());
    assert!(!store.remove(Some("bob"), "a"));
}

fn put_for(store: &ResponseStore, owner: &str, id: &str, num_bytes: usize) {
    store_turn(store, Some(owner), None, id, &"x".repeat(num_bytes));
}

#[test]
fn a_tenant_evicts_its_own_responses_before_those_of_smaller_tenants() {
    let store = ResponseStore::new(100_000);
    put_for(&store, "small", "kept", 20_000);
    for idx in 0..100 {
        put_for(&store, "large", &format!("r{idx}"), 10_000);
        assert!(store.num_bytes() <= 100_000);
    }
    assert!(store.get(Some("small"), "kept").is_some(), "another tenant's responses evicted it");
    assert!(store.get(Some("large"), "r99").is_some() && store.get(Some("large"), "r0").is_none());
    // A tenant that comes later gets its share from the largest one.
    put_for(&store, "late", "first", 30_000);
    assert!(store.get(Some("small"), "kept").is_some() && store.get(Some("late"), "first").is_some());
    // A response that exceeds the store by itself evicts only its own tenant's.
    put_for(&store, "late", "huge", 200_000);
    assert!(store.get(Some("late"), "huge").is_none() && store.get(Some("late"), "first").is_none());
    assert!(store.get(Some("small"), "kept").is_some() && store.get(Some("large"), "r99").is_some());
}

#[test]
fn json_counts_by_its_memory() {
    let store = ResponseStore::new(usize::MAX);
    let items = vec![serde_json::Value::from(0); 100_000];
    let text = serde_json::to_string(&items).unwrap();
    let extra = serde_json::Map::from_iter([("tool_calls".to_owned(), items.into())]);
    let message = ChatMessage { role: "assistant".into(), content: None, extra };
    let response = ResponseObject { id: "a".into(), ..ResponseObject::default() };
    store.put(None, None, vec![message].into(), Messages::default(), response.stored(response.json()));
    assert!(store.num_bytes() > 20 * text.len(), "{} bytes for {} of text", store.num_bytes(), text.len());
    assert!(store.remove(None, "a"));
    assert_eq!(store.num_bytes(), 0);
}

#[test]
fn a_conversation_that_a_request_holds_takes_no_room_from_other_tenants() {
    let store = ResponseStore::new(100_000);
    put_for(&store, "bob", "kept", 20_000);
    put_for(&store, "alice", "first", 60_000);
    let (held, _) = store.get(Some("alice"), "first").unwrap();
    for idx in 0..20 {
        put_for(&store, "alice", &format!("r{idx}"), 50_000);
        assert!(store.num_bytes() <= 100_000, "{} bytes", store.num_bytes());
    }
    assert!(store.get(Some("alice"), "first").is_none(), "it is the least recently used");
    assert!(store.get(Some("bob"), "kept").is_some(), "another tenant's responses evicted it");
    assert!(store.get(Some("alice"), "r19").is_some());
    // A response that continues the evicted one brings its bytes back.
    store_turn(&store, Some("alice"), Some(held), "second", "x");
    assert!(store.num_bytes() <= 100_000 && store.num_bytes() > 80_000);
    let (turn, _) = store.get(Some("alice"), "second").unwrap();
    assert_eq!(turn.conversation().len(), 2);
    assert!(store.get(Some("alice"), "r19").is_none() && store.get(Some("bob"), "kept").is_some());
    for (owner, id) in [("alice", "second"), ("bob", "kept")] {
        assert!(store.remove(Some(owner), id));
    }
    assert_eq!(store.num_bytes(), 0);
}

#[test]
fn items_are_found_without_their_response() {
    let store = ResponseStore::new(1 << 20);
    let output = ["m1", "m2"].map(|id| json!({"id": id, "content": [{"text": "two\nlines"}]})).to_vec();
    let response = ResponseObject { id: "a".into(), output: output.clone(), ..ResponseObject::default() };
    store.put(
        Some("alice"),
        None,
        Messages::default(),
        Messages::default(),
        response.stored(response.json()),
    );
    for item in &output {
        let json = store.item(Some("alice"), item["id"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&json).unwrap(), *item);
    }
    assert!(store.item(Some("bob"), "m1").is_none() && store.item(None, "m1").is_none());
    assert!(store.item(Some("alice"), "m3").is_none());
    assert!(store.remove(Some("alice"), "a") && store.item(Some("alice"), "m1").is_none());
}

#[test]
fn an_item_that_is_used_keeps_its_response() {
    let store = ResponseStore::new(100_000);
    let output = vec![json!({"id": "m", "text": "x"})];
    let response = ResponseObject { id: "a".into(), output, ..ResponseObject::default() };
    store.put(None, None, Messages::default(), Messages::default(), response.stored(response.json()));
    for idx in 0..20 {
        put(&store, &idx.to_string(), None, &"x".repeat(20_000));
        assert!(store.item(None, "m").is_some(), "{idx}");
    }
}

/// What should be stored, by the ids of responses.
#[derive(Default)]
struct Model {
    /// The owner, the response that it continues, and the bytes of its own turn.
    turns: HashMap<String, (&'static str, Option<String>, usize)>,
}

impl Model {
    /// Returns the bytes of the owner's stored responses and of all turns that they continue, and the number of
    /// responses.
    fn of(&self, store: &ResponseStore, owner: &str) -> (usize, usize) {
        let (mut reached, mut num_bytes, mut num_responses) = (HashSet::new(), 0, 0);
        for (id, (of, ..)) in &self.turns {
            let Some((_, json)) = store.peek(Some(owner), id).filter(|_| *of == owner) else { continue };
            num_bytes += json.len();
            num_responses += 1;
            let mut next = Some(id);
            while let Some(id) = next.filter(|id| reached.insert(*id)) {
                num_bytes += self.turns[id].2;
                next = self.turns[id].1.as_ref();
            }
        }
        (num_bytes, num_responses)
    }
}

/// Stores, continues, uses and removes responses at random, and compares the store with what its responses reach.
#[test]
fn any_operations_keep_the_bound_and_every_tenants_share() {
    const MAX_BYTES: usize = 40_000;
    const OWNERS: [&str; 3] = ["a", "b", "c"];
    let empty = ResponseStore::new(MAX_BYTES);
    put(&empty, "x", None, "");
    let turn_bytes = empty.num_bytes() - empty.get(None, "x").unwrap().1.len();
    let first = draw::first_seed();
    for seed in first..first + draw::count("TRUNKLINE_CASES", 20, 1_000) {
        let mut random = draw::Random(seed);
        let (store, mut model) = (ResponseStore::new(MAX_BYTES), Model::default());
        // The turns that requests hold.
        let mut held: Vec<(&str, String, Arc<Turn>)> = Vec::new();
        for step in 0..100 {
            let owner = OWNERS[random.below(OWNERS.len())];
            let before: HashMap<&str, (usize, usize)> =
                OWNERS.iter().map(|owner| (*owner, model.of(&store, owner))).collect();
            let mut own: Vec<&String> = model.turns.keys().filter(|id| id.starts_with(owner)).collect();
            own.retain(|id| store.peek(Some(owner), id).is_some());
            own.sort_unstable();
            match random.below(5) {
                0 if !own.is_empty() => {
                    let id = own[random.below(own.len())];
                    held.push((owner, id.clone(), store.get(Some(owner), id).unwrap().0));
                }
                1 if !held.is_empty() => drop(held.swap_remove(random.below(held.len()))),
                2 if !own.is_empty() && random.below(4) == 0 => {
                    assert!(store.remove(Some(owner), own[random.below(own.len())]));
                }
                _ => {
                    let mine: Vec<_> = held.iter().filter(|(of, ..)| *of == owner).collect();
                    let parent = (!mine.is_empty()).then(|| mine[random.below(mine.len())].clone());
                    let id = format!("{owner}{step}");
                    let num_bytes = random.below(8_000_usize);
                    let turn = parent.as_ref().map(|(_, _, turn)| turn.clone());
                    store_turn(&store, Some(owner), turn, &id, &"x".repeat(num_bytes));
                    let parent = parent.map(|(_, id, _)| id);
                    model.turns.insert(id, (owner, parent, turn_bytes + num_bytes));
                    let num_owners = before.iter().filter(|(of, (_, num))| **of == owner || *num > 0).count();
                    for other in OWNERS.into_iter().filter(|other| *other != owner) {
                        let (num_bytes, num_responses) = before[other];
                        let num_lost = num_responses - model.of(&store, other).1;
                        assert!(
                            num_lost == 0 || num_bytes > MAX_BYTES / num_owners,
                            "seed {seed}: {other} held {num_bytes} bytes, and lost {num_lost} responses"
                        );
                    }
                }
            }
            let wanted: usize = OWNERS.iter().map(|owner| model.of(&store, owner).0).sum();
            assert_eq!(store.num_bytes(), wanted, "seed {seed}, step {step}");
            assert!(wanted <= MAX_BYTES, "seed {seed}: {wanted} bytes");
        }
    }
}
