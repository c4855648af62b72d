use trunkline_router::api::response_store::ResponseStore;
use trunkline_router::api::responses::ResponseObject;
use trunkline_text::ChatMessage;

fn put(store: &ResponseStore, id: &str, before: Option<&str>, text: &str) {
    let before = before.map(|id| store.get(None, id).unwrap().0);
    let response = ResponseObject { id: id.into(), ..ResponseObject::default() };
    store.put(None, before, vec![ChatMessage::new("user", text)], response.stored());
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
    for idx in 1..100_000 {
        put(&store, &idx.to_string(), Some(&(idx - 1).to_string()), "x");
        assert!(store.remove(None, &(idx - 1).to_string()));
    }
    assert!(store.num_bytes() > 0 && store.remove(None, "99999"));
    assert_eq!(store.num_bytes(), 0);
}

#[test]
fn responses_of_other_tenants_are_missing() {
    let store = ResponseStore::new(1 << 20);
    let response = ResponseObject { id: "a".into(), ..ResponseObject::default() };
    store.put(Some("alice"), None, Vec::new(), response.stored());
    assert!(store.get(Some("alice"), "a").is_some());
    assert!(store.get(Some("bob"), "a").is_none() && store.get(None, "a").is_none());
    assert!(!store.remove(Some("bob"), "a"));
}
